"""Tiny random Qwen-VL models with a tokenizer and processor of their own: no download, no torchvision."""

import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    Qwen3VLProcessor,
)

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"]
SPECIAL += ["<|image_pad|>", "<|video_pad|>"]
WORDS = ["what is written at the top left of the page ?", "user assistant system", "who signed in the footer ?"]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ONE_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(WORDS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )


def without_videos(processor: type) -> type:
    """The stock processors also want a video processor, and that one wants torchvision."""

    def get_attributes(cls: type) -> list[str]:
        return [name for name in super(subclass, cls).get_attributes() if name != "video_processor"]

    subclass = type(processor.__name__, (processor,), {"get_attributes": classmethod(get_attributes)})
    return subclass


Qwen3Images, Qwen25Images = without_videos(Qwen3VLProcessor), without_videos(Qwen2_5_VLProcessor)
LEAF = {"qwen3": 32, "qwen2.5": 28}


def make_processor(family: str = "qwen3", largest: int = 512 * 512) -> Any:
    leaf = LEAF[family]
    images = Qwen2VLImageProcessorPil(
        patch_size=leaf // 2,
        temporal_patch_size=2,
        merge_size=2,
        size={"shortest_edge": leaf**2, "longest_edge": largest},
    )
    kind = Qwen3Images if family == "qwen3" else Qwen25Images
    return kind(image_processor=images, tokenizer=make_tokenizer(), chat_template=CHAT)


def make_model(processor: Any, attention: str = "sdpa") -> Any:
    tokenizer = processor.tokenizer
    ids = tokenizer.convert_tokens_to_ids
    is_qwen3 = processor.image_processor.patch_size == 16
    torch.manual_seed(0)
    vision = {
        "depth": 4, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "spatial_merge_size": 2,
        "temporal_patch_size": 2, "out_hidden_size": 48,
    }  # fmt: skip
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
        "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    tokens = {
        "image_token_id": ids("<|image_pad|>"),
        "video_token_id": ids("<|video_pad|>"),
        "vision_start_token_id": ids("<|vision_start|>"),
        "vision_end_token_id": ids("<|vision_end|>"),
    }
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    if is_qwen3:
        vision |= {"patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1, 2]}
        text |= {"head_dim": 16, "rope_parameters": rope | {"mrope_section": [4, 2, 2], "mrope_interleaved": True}}
        config, kind = Qwen3VLConfig(vision_config=vision, text_config=text, **tokens), Qwen3VLForConditionalGeneration
    else:
        vision |= {"patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1, 3]}
        text |= {"rope_parameters": rope | {"mrope_section": [2, 2, 2]}}
        config = Qwen2_5_VLConfig(vision_config=vision, text_config=text, **tokens)
        kind = Qwen2_5_VLForConditionalGeneration
    model = kind._from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():  # initial weights of 0.02 hardly look at positions or pixels: make them matter
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.mul_(8 if "pos_embed" in name else 4)
    model.generation_config.eos_token_id = None  # random weights: never stop early
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def make_moe_model(processor: Any) -> Any:
    """The same with experts."""
    dense = make_model(processor).config
    text = dense.text_config.to_dict() | {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }  # fmt: skip
    vision = dense.vision_config.to_dict()
    for part in (text, vision):
        part.pop("model_type", None)
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    torch.manual_seed(0)
    config = Qwen3VLMoeConfig(vision_config=vision, text_config=text, **{name: getattr(dense, name) for name in names})
    model = Qwen3VLMoeForConditionalGeneration(config).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = processor.tokenizer.pad_token_id
    return model


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise that is rougher in one corner, so that relevance has something to find."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, (height, width, 3))
    noise[: height // 2, : width // 2] //= 4
    return Image.fromarray(noise.astype(np.uint8))


def inputs_for(processor: Any, images: list, questions: list[str], images_each: int = 1) -> dict:
    texts = [ONE_IMAGE * images_each + " " + question for question in questions]
    return dict(processor(text=texts, images=images, padding=True, return_tensors="pt"))


def logits_of(model: Any, inputs: dict) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs).logits


def generated(model: Any, inputs: dict, **how: Any) -> torch.Tensor:
    return model.generate(**inputs, max_new_tokens=6, **({"do_sample": False} | how))


def seen_positions(model: Any, inputs: dict) -> torch.Tensor:
    """What the language model's rotary embedding is given, [3, B, T], padding included."""
    seen = []
    hook = model.model.language_model.rotary_emb.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(args[1] if len(args) > 1 else kwargs["position_ids"]), with_kwargs=True
    )
    logits_of(model, inputs)
    hook.remove()
    return seen[0]
