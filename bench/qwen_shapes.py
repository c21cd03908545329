"""Qwen3-VL at its published sizes, with random weights made where they are used, and prompts about images of any size.

The numbers are those of the config.json of Qwen/Qwen3-VL-{2B,4B,8B}-Instruct; tests/qwen/test_bench.py checks that they
make as many parameters as the published files have. Token ids are those of a small tokenizer of our own, since none of
the cost depends on them; the vocabulary, and so the head, keeps its size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from homunculus.geometry import Size
from homunculus.integrations.qwen_vl.loading import images_only

LEAF, PATCH = 32, 16
VALUES = 3 * 2 * PATCH**2  # of a row of pixel_values: channels, equal frames, pixels
QUESTION = "Which initials are on the stamp at the bottom right of the page, and what is the total?"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"]
SPECIAL += ["<|image_pad|>", "<|video_pad|>"]

SMALL_TOWER = {
    "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16,
    "deepstack_visual_indexes": [5, 11, 17],
}  # fmt: skip
LARGE_TOWER = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16,
    "deepstack_visual_indexes": [8, 16, 24],
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "8B": {
        "vision": LARGE_TOWER,
        "text": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
    },
    "4B": {
        "vision": SMALL_TOWER, "tied": True,
        "text": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
    },
    "2B": {
        "vision": SMALL_TOWER, "tied": True,
        "text": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    },
    "tiny": {  # to try the benchmark itself
        "vision": {
            "depth": 4, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1, 2],
        },
        "text": {
            "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320, "mrope_section": [4, 2, 2],
        },
    },
}  # fmt: skip


def make_config(shape: str, tokenizer: Any) -> Any:
    from transformers import Qwen3VLConfig

    given = SHAPES[shape]
    text: dict[str, Any] = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
    text |= {"max_position_embeddings": 262144, "eos_token_id": None, "mrope_section": [24, 20, 20], **given["text"]}
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_interleaved": True}
    text["rope_parameters"] = rope | {"mrope_section": text.pop("mrope_section")}
    vision = {"patch_size": PATCH, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 2304}
    vision |= {"out_hidden_size": text["hidden_size"], **given["vision"]}
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    names |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in names.items()}
    tied = given.get("tied", False)
    text["tie_word_embeddings"] = tied
    return Qwen3VLConfig(vision_config=vision, text_config=text, tie_word_embeddings=tied, **ids)


def make_model(shape: str, tokenizer: Any, device: str, dtype: torch.dtype) -> Any:
    """The whole model on the device, never stopping before it is told to."""
    from transformers import Qwen3VLForConditionalGeneration

    torch.manual_seed(0)
    with torch.device(device):
        config = make_config(shape, tokenizer)
        model = Qwen3VLForConditionalGeneration._from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.eval()


def make_processor() -> Any:
    """Bytes for words, and Qwen's own image processor."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2VLImageProcessorPil, Qwen3VLProcessor

    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    images = Qwen2VLImageProcessorPil(patch_size=PATCH, temporal_patch_size=2, merge_size=2)
    return images_only(Qwen3VLProcessor)(image_processor=images, tokenizer=fast)


def within(size: Size, pixels: int) -> Size:
    """The largest size of whole leaves and about the same aspect that has no more pixels, as the processor has it.

    >>> within((2048, 2048), 273 * 32**2), within((640, 480), 10**9)
    ((512, 512), (640, 480))
    """
    width, height = size
    scale = min(1.0, (pixels / (width * height)) ** 0.5)
    leaves = max(1, int(width * scale) // LEAF), max(1, int(height * scale) // LEAF)
    return leaves[0] * LEAF, leaves[1] * LEAF


def make_inputs(sizes: Sequence[Size], counts: Sequence[int], tokenizer: Any, device: str) -> dict[str, Tensor]:
    """One prompt about one image each, of these sizes in pixels and with so many placeholders, padded on the left."""
    before, after = (
        tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in (
            "<|im_start|>user\n<|vision_start|>",
            f"<|vision_end|>{QUESTION}<|im_end|>\n<|im_start|>assistant\n",
        )
    )
    image = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    longest = len(before) + max(counts) + len(after)
    ids = torch.full((len(sizes), longest), tokenizer.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, count in enumerate(counts):
        prompt = torch.tensor([*before, *[image] * count, *after])
        ids[row, longest - len(prompt) :] = prompt
        mask[row, longest - len(prompt) :] = 1
    grids = torch.tensor([(1, height // PATCH, width // PATCH) for width, height in sizes])
    generator = torch.Generator(device).manual_seed(0)
    rows = torch.randn(int(grids.prod(1).sum()), VALUES, generator=generator, device=device)
    inputs = {
        "input_ids": ids,
        "attention_mask": mask,
        "mm_token_type_ids": (ids == image).int(),
        "image_grid_thw": grids,
    }
    return {name: tensor.to(device) for name, tensor in inputs.items()} | {"pixel_values": rows}
