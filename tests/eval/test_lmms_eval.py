"""lmms-eval runs a local task through our model, offline; and what the model does with requests of every kind."""

import gc
import json
import os
import subprocess
import sys
import warnings
import weakref

import pytest
import torch

from homunculus.errors import BudgetError, HomunculusError
from homunculus.integrations import qwen_vl
from homunculus.integrations.qwen_vl.loading import LoadError
from homunculus.integrations.qwen_vl.prompts import image_runs
from tests.qwen.tiny import picture

with warnings.catch_warnings():  # of lmms-eval and what it imports
    warnings.simplefilter("ignore")
    from lmms_eval.api.instance import Instance
    from loguru import logger

    from homunculus.integrations import lmms_eval as plug_in
    from tests.eval.local import TASK, save_pair, write_task

BUDGET, NEW_TOKENS = 16, 8
IMAGES = [picture(300, 200), picture(200, 300, 1), picture(64, 64, 2)]  # the last has fewer leaves than the budget
QUESTIONS = ["what ?", "who signed at the top left of the page ?", "where is it written ?"]
SYSTEM = "You are a helpful assistant."
GREEDY = {"max_new_tokens": NEW_TOKENS, "do_sample": False}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    save_pair(folder)
    return str(folder)


def make(pretrained, **arguments):
    return plug_in.HomunculusQwenVL(pretrained, **({"budget": BUDGET, "device": "cpu"} | arguments))


def chat(images, question):
    content = [{"type": "image", "url": image} for image in images]
    return [{"role": "user", "content": [*content, {"type": "text", "text": question}]}]


def requests_for(lm, chats, options):
    """One request to a chat, as lmms-eval makes them."""
    lm.task_dict = {TASK: {"test": chats}}
    options = options if isinstance(options, list) else [options] * len(chats)
    return [
        Instance(
            request_type="generate_until",
            arguments=(messages[0]["content"][-1].get("text", ""), _copied, how, number, TASK, "test"),
            idx=0,
            metadata={"task": TASK, "doc_id": number, "repeats": 1},
        )
        for number, (messages, how) in enumerate(zip(chats, options, strict=True))
    ]


def _copied(messages):
    return list(messages)  # a task makes them anew each time


def answers(lm, chats, options=GREEDY):
    return [result.text for result in lm.generate_until(requests_for(lm, chats, options))]


def one_by_one(model, processor, chats):
    """What a patched model says without us: each chat alone."""
    found = []
    for messages in chats:
        told = [{"role": "system", "content": SYSTEM}, *messages]
        text = processor.apply_chat_template(told, tokenize=False, add_generation_prompt=True)
        images = [part["url"] for part in messages[0]["content"] if part["type"] == "image"]
        inputs = processor(text=[text], images=images or None, return_tensors="pt")
        written = model.generate(**inputs, **GREEDY)[0, inputs["input_ids"].shape[1] :]
        found.append((processor.decode(written, skip_special_tokens=True), inputs["input_ids"].shape[1]))
    return found


@pytest.fixture(scope="module")
def lm(pretrained):
    return make(pretrained, batch_size=2)


@pytest.fixture
def chats():
    return [chat([image], question) for image, question in zip(IMAGES, QUESTIONS, strict=True)]


# ------------------------------------------------------------------------------------------------- the whole run


@pytest.mark.parametrize("stage", ["pre", "post", "views"])
def test_lmms_eval_runs_a_local_task_offline(stage, tmp_path, chats):
    model, processor = save_pair(tmp_path / "checkpoint")
    qwen_vl.patch(model, processor, BUDGET, stage, "detail", positions="true")
    expected = one_by_one(model, processor, chats)
    right = expected[1][0]
    assert len({text for text, _ in expected}) == 3
    options = json.dumps({"max_new_tokens": NEW_TOKENS, "temperature": 0, "image_aspect_ratio": "original"})
    write_task(tmp_path / "task", IMAGES, QUESTIONS, ["no", right, "no"], options)
    arguments = f"pretrained={tmp_path / 'checkpoint'},budget={BUDGET},stage={stage},allocator=foveated-pyramid"
    command = ["--model", plug_in.NAME, "--model_args", f"{arguments},relevance=detail,positions=true"]
    command += ["--tasks", TASK, "--include_path", str(tmp_path / "task"), "--batch_size", "2", "--device", "cpu"]
    command += ["--log_samples", "--output_path", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "lmms_eval", *command],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")},
        cwd=tmp_path,  # not the repository: the plug-in is found as an installed package
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "image_aspect_ratio" in done.stdout + done.stderr
    (results,) = tmp_path.glob("out/*/*_results.json")
    (samples,) = tmp_path.glob(f"out/*/*_samples_{TASK}.jsonl")
    found = json.loads(results.read_text())
    assert found["results"][TASK]["right,none"] == pytest.approx(1 / 3)
    assert found["throughput"]["avg_visual_tokens_per_image"] == BUDGET
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert [row["doc_id"] for row in rows] == [0, 1, 2]
    assert [row["filtered_resps"] for row in rows] == [text for text, _ in expected]
    assert [row["token_counts"][0]["input_tokens"] for row in rows] == [length for _, length in expected]


# ------------------------------------------------------------------------------------------------------ requests


def test_every_image_has_the_budget(lm):
    chats = [chat(IMAGES[:1], "what ?"), chat(IMAGES, "which ?"), chat([], "who ?")]
    inputs, images = lm._inputs(requests_for(lm, chats, GREEDY))
    assert images == 4
    runs = image_runs(inputs["input_ids"].numpy(), lm.model.config.image_token_id)
    assert runs == [[BUDGET], [BUDGET] * 3, []]


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_answers_come_in_order_whatever_is_batched(lm, batch_size, chats, monkeypatch):
    chats = [*chats, chat(IMAGES[:2], "which ?"), chat([], "who ?")]
    expected = [text for text, _ in one_by_one(lm.model, lm.processor, chats)]
    monkeypatch.setattr(lm, "batch_size", batch_size)
    assert answers(lm, chats) == expected
    options = [GREEDY | {"max_new_tokens": n} for n in (8, 3, 8, 3, 8)]
    mixed = lm.generate_until(requests_for(lm, chats, options))
    assert [result.token_counts.output_tokens for result in mixed] == [8, 3, 8, 3, 8]
    assert [mixed[i].text for i in (0, 2, 4)] == [expected[i] for i in (0, 2, 4)]


def test_batches_share_their_options_and_are_full(lm, chats):
    options = [GREEDY, GREEDY | {"until": ["x"]}, GREEDY]
    made = requests_for(lm, chats, options)
    assert list(plug_in.batches(made, 2)) == [[2, 0], [1]]  # the longer question first
    assert list(plug_in.batches(made, 1)) == [[2], [0], [1]]


@pytest.mark.parametrize("beams", [1, 2])
def test_an_answer_ends_at_the_first_stop_string(lm, chats, beams):
    options = GREEDY | {"num_beams": beams}
    (whole,) = lm.generate_until(requests_for(lm, chats[1:2], options))
    stop = next(c for c in whole.text[2:] if c.isascii() and c not in whole.text[:2])
    (short,) = lm.generate_until(requests_for(lm, chats[1:2], options | {"until": ["never", stop]}))
    assert stop not in short.text
    if beams == 1:  # beams that stop compete with others
        assert short.text == whole.text.split(stop)[0]
        assert short.token_counts.output_tokens < whole.token_counts.output_tokens == NEW_TOKENS


def test_beams_and_sampling_reach_the_model(lm, chats):
    greedy = answers(lm, chats)
    assert answers(lm, chats, {"max_new_tokens": NEW_TOKENS, "temperature": 0, "do_sample": True}) == greedy
    assert answers(lm, chats, {"max_new_tokens": NEW_TOKENS, "temperature": 0.7, "do_sample": False}) == greedy
    assert answers(lm, chats, GREEDY | {"num_beams": 4}) != greedy
    hot = {"max_new_tokens": NEW_TOKENS, "temperature": 2.0}
    drawn = [answers(lm, chats, hot) for _ in range(3)]
    assert len({tuple(texts) for texts in drawn}) > 1


def test_options_of_a_task():
    none = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    of = plug_in.generation_options
    assert of({}) == ([], none | {"max_new_tokens": 128})
    assert of({"until": ["", "x"]})[0] == ["x"]
    assert of({"until": "\n", "max_new_tokens": 4, "top_p": 0.5}) == (["\n"], none | {"max_new_tokens": 4})
    assert of({"do_sample": False, "temperature": 0.5})[1]["do_sample"] is False
    assert of({"temperature": 0.5, "top_p": None})[1] == {"do_sample": True, "temperature": 0.5, "max_new_tokens": 128}
    assert of({"do_sample": True, "top_k": 3})[1] == {"do_sample": True, "top_k": 3, "max_new_tokens": 128}


def test_options_for_other_models_are_left_out_and_that_is_said_once():
    said = []
    number = logger.add(lambda message: said.append(str(message)), level="WARNING")
    for _ in range(2):
        _, how = plug_in.generation_options({"image_aspect_ratio": "original", "num_beams": 2})
    logger.remove(number)
    assert "image_aspect_ratio" not in how and how["num_beams"] == 2
    assert len(said) == 1 and "image_aspect_ratio" in said[0]


def test_the_model_is_let_go(pretrained):
    lm = make(pretrained)
    gone = weakref.ref(lm.model)
    lm.clean()
    gc.collect()
    assert gone() is None


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("kind", ["video", "audio"])
def test_videos_and_sound_are_refused(lm, kind):
    messages = [{"role": "user", "content": [{"type": kind, "url": "clip"}, {"type": "text", "text": "what ?"}]}]
    with pytest.raises(plug_in.EvalError, match=f"{TASK} has video or audio.*images only"):
        answers(lm, [messages])


def test_what_is_not_asked_of_it_is_refused(lm):
    with pytest.raises(plug_in.EvalError, match="one round"):
        lm.generate_until_multi_round([])
    with pytest.raises(plug_in.EvalError, match="generate_until"):
        lm.loglikelihood([])


def test_weights_that_cannot_be_had(tmp_path):
    problems = {"nobody/no-such-model": "cannot fetch", str(tmp_path): "config.json", str(tmp_path / "no"): "no folder"}
    for name, problem in problems.items():
        with pytest.raises(LoadError, match=problem) as error:
            make(name)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"batch_size": "auto"}, plug_in.EvalError),
        ({"batch_size": 0}, plug_in.EvalError),
        ({"dtype": "nn"}, plug_in.EvalError),
        ({"budget": 0}, BudgetError),
        ({"stage": "late"}, HomunculusError),
        ({"positions": False}, HomunculusError),
    ],
)
def test_bad_arguments(pretrained, arguments, error):
    with pytest.raises(error):
        make(pretrained, **arguments)


def test_arguments_reach_the_model(pretrained):
    lm = make(pretrained, dtype="bfloat16", attn_implementation="eager", max_pixels=128 * 128)
    parts = (lm.model.config, lm.model.config.vision_config, lm.model.config.text_config)
    assert lm.model.dtype == torch.bfloat16 and {part._attn_implementation for part in parts} == {"eager"}
    assert lm.processor.image_processor.size["longest_edge"] == 128 * 128
    (text,) = answers(lm, [chat(IMAGES[:1], "what ?")])
    assert isinstance(text, str) and len(text) > 0


def test_relevance_and_allocator_decide_where_it_looks(pretrained):
    looks = []
    for arguments in ({}, {"relevance": "coarse-pass"}, {"allocator": "uniform"}):
        lm = make(pretrained, **arguments)
        assert len(answers(lm, [chat(IMAGES[:1], "what ?")])[0]) > 0
        looks.append(lm.model.last_allocation[0].boxes)
    assert all(boxes.shape == (1, BUDGET, 4) for boxes in looks)
    assert not torch.equal(looks[0], looks[1]) and not torch.equal(looks[0], looks[2])


def test_the_entry_point_is_found_whichever_is_imported_first():
    show = "import lmms_eval.models as m; print(m.get_model('homunculus_qwen_vl').__name__)"
    for first in ("", "import homunculus.integrations.lmms_eval; "):
        done = subprocess.run([sys.executable, "-c", first + show], capture_output=True, text=True)
        assert done.stdout.strip() == "HomunculusQwenVL", done.stdout + done.stderr
