"""lmms-eval runs a local task through our model, offline; and what the model does with requests of every kind."""

import gc
import json
import os
import re
import subprocess
import sys
import warnings
import weakref
from pathlib import Path

import pytest
import torch

from homunculus.errors import AllocatorError, BudgetError, RelevanceError
from homunculus.integrations import qwen_vl
from homunculus.integrations.qwen_vl.loading import LoadError, load
from homunculus.integrations.qwen_vl.prompts import image_runs
from homunculus.peers import get_peer, peers
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


def run_offline(command, folder):
    """What it says, run in a folder that is not the repository: the plug-in is found as an installed package."""
    here = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    done = subprocess.run(command, env=os.environ | here, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


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
    assert "image_aspect_ratio" in run_offline([sys.executable, "-m", "lmms_eval", *command], tmp_path)
    (results,) = tmp_path.glob("out/*/*_results.json")
    (samples,) = tmp_path.glob(f"out/*/*_samples_{TASK}.jsonl")
    found = json.loads(results.read_text())
    assert found["results"][TASK]["right,none"] == pytest.approx(1 / 3)
    assert found["throughput"]["avg_visual_tokens_per_image"] == BUDGET
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert [row["doc_id"] for row in rows] == [0, 1, 2]
    assert [row["filtered_resps"] for row in rows] == [text for text, _ in expected]
    assert [row["token_counts"][0]["input_tokens"] for row in rows] == [length for _, length in expected]


def test_the_documented_rows_of_a_peer_beside_ours(tmp_path, chats):
    """The command of docs/qwen.md as it stands there, but for the model, the task and the budget."""
    page = (Path(__file__).parents[2] / "docs" / "qwen.md").read_text()
    (block,) = re.findall(r"```sh\n(for row in .*?done\n)```", page, re.DOTALL)
    model, processor = save_pair(tmp_path / "checkpoint")
    write_task(tmp_path / "task", IMAGES, QUESTIONS, ["no"] * 3, json.dumps(GREEDY))
    ours = {
        "python": sys.executable,
        "docvqa_val": f"{TASK} --include_path task --device cpu",
        "Qwen/Qwen3-VL-8B-Instruct": "checkpoint",
        "budget=273": f"budget={BUDGET}",
    }
    for theirs, own in ours.items():
        assert theirs in block
        block = block.replace(theirs, own)
    log = run_offline(["bash", "-euc", block], tmp_path)
    assert "Traceback" not in log, log  # lmms-eval ends well whatever happened
    found = {}
    for results in tmp_path.glob("out/*/*/*_results.json"):
        report = json.loads(results.read_text())
        row = results.relative_to(tmp_path / "out").parts[0]
        assert report["throughput"]["avg_visual_tokens_per_image"] == BUDGET
        assert f"stage=post,{row}" in report["config"]["model_args"]  # a file says which row it is
        (samples,) = results.parent.glob(f"*_samples_{TASK}.jsonl")
        found[row] = [json.loads(line)["filtered_resps"] for line in samples.read_text().splitlines()]
    assert found.keys() == {"relevance=coarse-pass", "peer=visionzip", "peer=uniform"}
    assert len({tuple(texts) for texts in found.values()}) == 3
    for row, texts in found.items():
        qwen_vl.patch(model, processor, BUDGET, "post", **dict([row.split("=")]))
        assert texts == [text for text, _ in one_by_one(model, processor, chats)]
        qwen_vl.unpatch(model)


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


NOWHERE = "./nowhere"  # no weights are needed to be told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("peer=nobody", f"unknown peer 'nobody': choose from {', '.join(peers())}"),
        ("peer=prumerge", "unknown peer 'prumerge': did you mean 'prumerge+'?"),
        ("peer=", "unknown peer '': choose from aim,"),
        ("peer=7", "a peer is given by name, got int"),
        ("peer=fastv", "fastv acts in layers of our own language model and cannot reduce another's features: choose"),
        ("peer=dyrate", "dyrate acts while our own language model writes and cannot reduce another's"),
        ("peer=cdpruner", "cdpruner needs to know what is asked: give relevance, such as 'coarse-pass'"),
        ("peer=cdpruner,relevance=coarse_pass", "unknown relevance source 'coarse_pass': choose from uniform, detail,"),
        ("peer=tome,relevance=detail", "tome is blind to the question: leave out relevance"),
        ("peer=tome,allocator=topk", "peer=tome and allocator=topk both choose what is left: leave one of them out"),
        ("peer=tome,allocator=foveated-pyramid", "peer=tome and allocator=foveated-pyramid both choose"),
        ("peer=tome,stage=pre", "tome reduces features of the whole image: give stage='post', got 'pre'"),
        ("peer=tome,stage=views", "give stage='post', got 'views'"),
    ],
)
def test_a_peer_that_cannot_be_is_refused_in_one_line_before_weights_are_read(arguments, message):
    stage = "" if "stage=" in arguments else ",stage=post"
    with pytest.raises((AllocatorError, RelevanceError, plug_in.EvalError)) as refused:
        plug_in.HomunculusQwenVL.create_from_arg_string(f"pretrained={NOWHERE},{arguments}{stage}")
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"batch_size": "auto"}, plug_in.EvalError),
        ({"batch_size": 0}, plug_in.EvalError),
        ({"dtype": "nn"}, plug_in.EvalError),
        ({"budget": 0}, BudgetError),
        ({"budget": 27.3}, BudgetError),
        ({"stage": "late"}, qwen_vl.PatchError),
        ({"positions": False}, qwen_vl.PatchError),
        ({"allocator": "nothing"}, AllocatorError),
        ({"allocator": ""}, AllocatorError),
    ],
)
def test_bad_arguments_cost_no_loading(arguments, error):
    with pytest.raises(error):
        make(NOWHERE, **arguments)


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


@pytest.mark.parametrize("name", peers())
def test_every_peer_is_exact_and_answers_as_the_integration_does(pretrained, chats, name):
    """In batches, against a model of its own, asked one by one."""
    how = {"stage": "post", "peer": name} | ({"relevance": "coarse-pass"} if get_peer(name).query else {})
    lm = make(pretrained, batch_size=2, **how)
    inputs, _ = lm._inputs(requests_for(lm, chats, GREEDY))
    assert image_runs(inputs["input_ids"].numpy(), lm.model.config.image_token_id) == [[BUDGET]] * 3
    assert [cells.budget for cells in looked(lm, chats)] == [BUDGET] * 3
    model, processor = load(pretrained, "cpu")
    qwen_vl.patch(model, processor, BUDGET, **how)
    assert answers(lm, chats) == [text for text, _ in one_by_one(model, processor, chats)]


def test_a_peer_is_no_allocator_and_no_other_peer(pretrained, chats):
    rows = [{}, {"peer": "visionzip"}, {"peer": "uniform"}, {"allocator": "uniform"}]
    models = [make(pretrained, stage="post", **row) for row in rows]
    assert len({tuple(answers(lm, chats)) for lm in models}) == len(rows)
    boxes = [looked(lm, chats)[0].boxes for lm in models]
    assert not any(torch.equal(a, b) for i, a in enumerate(boxes) for b in boxes[:i])


def looked(lm, chats):
    """The cells of every image of chats, asked in one call."""
    inputs, _ = lm._inputs(requests_for(lm, chats, GREEDY))
    with torch.no_grad():
        lm.model(**inputs)
    return lm.model.last_allocation


def test_the_entry_point_is_found_whichever_is_imported_first():
    show = "import lmms_eval.models as m; print(m.get_model('homunculus_qwen_vl').__name__)"
    for first in ("", "import homunculus.integrations.lmms_eval; "):
        done = subprocess.run([sys.executable, "-c", first + show], capture_output=True, text=True)
        assert done.stdout.strip() == "HomunculusQwenVL", done.stdout + done.stderr
