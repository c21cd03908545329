"""`homunculus ask` through its entry point, on tiny models saved to a folder: what it answers, draws and refuses."""

import json
import re
import subprocess
import sys

import pytest
import torch
from PIL import Image

from homunculus.integrations import qwen_vl
from homunculus.integrations.qwen_vl.ask import answer_figure, ask
from homunculus.integrations.qwen_vl.loading import LoadError, load
from homunculus.viz.example import example_page
from tests.qwen.tiny import ONE_IMAGE, inputs_for, make_model, make_processor
from tests.qwen.tiny import picture as picture_of
from tests.test_cli import ENVIRONMENT, ROOT

QUESTION = "Which initials are on the stamp at the bottom right?"


@pytest.fixture(scope="module", params=["qwen3", "qwen2.5"])
def saved(request, tmp_path_factory):
    """A folder with a tiny model and its processor, and the two as they were before saving."""
    folder = tmp_path_factory.mktemp(request.param)
    processor = make_processor(request.param)
    model = make_model(processor)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder, model, processor


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.png"
    Image.fromarray(example_page().permute(1, 2, 0).numpy()).save(path)
    return path


def run(*arguments, cwd, code: str = "") -> subprocess.CompletedProcess:
    program = f"{code}\nfrom homunculus.cli import main\nmain()"
    command = [sys.executable, "-c", program, "ask", *map(str, arguments)]
    environment = ENVIRONMENT | {"HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def test_loading_is_the_model_that_was_saved(saved):
    folder, model, processor = saved
    again, own = load(folder, device="cpu")
    inputs = inputs_for(processor, [picture_of(200, 150)], ["what is it ?"])
    found = inputs_for(own, [picture_of(200, 150)], ["what is it ?"])
    assert all(torch.equal(found[name], inputs[name]) for name in inputs)
    with torch.no_grad():
        assert torch.equal(again(**found).logits, model(**inputs).logits)
    assert not again.training and own.tokenizer.padding_side == "left"


def test_a_question_is_answered_as_by_hand(saved):
    folder, _, _ = saved
    model, processor = load(folder, device="cpu")
    answer = ask(model, processor, example_page(), QUESTION, max_new_tokens=5, budget=100)
    assert answer.tokens == 100 == answer.allocation.budget
    assert answer.allocation.image_sizes == ((1024, 1280),)
    boxes = answer.allocation.boxes[0]
    assert boxes.min() >= 0 and boxes[:, 2].max() == pytest.approx(1024) and boxes[:, 3].max() == pytest.approx(1280)
    fine = answer.allocation.centers[0][answer.allocation.levels[0] == answer.allocation.levels[0].min()]
    assert (fine.mean(0) > torch.tensor([512.0, 640.0])).all()  # the question says bottom right
    assert answer_figure(example_page(), answer).width > 1000

    qwen_vl.patch(model, processor, 100)  # ask has given them back
    content = [{"type": "image", "image": Image.fromarray(example_page().permute(1, 2, 0).numpy())}]
    chat = [{"role": "user", "content": [*content, {"type": "text", "text": QUESTION}]}]
    inputs = processor.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    ids = model.generate(**inputs, max_new_tokens=5, do_sample=False)
    said = processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert answer.text == said.strip()


@pytest.mark.parametrize("stage", ["pre", "post", "views"])
def test_the_command(saved, page, tmp_path, stage):
    folder, _, _ = saved
    arguments = ("--model", folder, page, QUESTION, "--max-new-tokens", "3", "--stage", stage, "--relevance", "detail")
    arguments += ("--region", "the footer")
    done = run(*arguments, "--budget", "64", "--json", "--out", "seen.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tokens"] == 64 == len(report["cells"]) and report["image_size"] == [1024, 1280]
    assert report["question"] == QUESTION and report["stage"] == stage and report["answer"]
    with Image.open(tmp_path / report["out"]) as picture:
        assert picture.format == "PNG" and picture.width > 1000


@pytest.mark.parametrize("peer", ["tome", "cdpruner"])
def test_the_command_with_a_peer(saved, page, tmp_path, peer):
    folder, _, _ = saved
    arguments = ("--model", folder, page, QUESTION, "--max-new-tokens", "3", "--stage", "post", "--peer", peer)
    arguments += ("--relevance", "coarse-pass") if peer == "cdpruner" else ()
    done = run(*arguments, "--budget", "64", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tokens"] == 64 == len(report["cells"]) and report["peer"] == peer
    assert sum(cell["score"] for cell in report["cells"]) <= 1 + 1e-6
    assert (tmp_path / "ask.png").exists()


def test_the_command_in_words(saved, page, tmp_path):
    folder, _, _ = saved
    done = run("--model", folder, page, QUESTION, "--max-new-tokens", "3", "--budget", "64", cwd=tmp_path)
    model, processor = load(folder, device="cpu")
    said = ask(model, processor, example_page(), QUESTION, max_new_tokens=3, budget=64).text
    assert done.stdout.startswith(said) and "64 visual tokens" in done.stdout and done.stderr == ""
    assert (tmp_path / "ask.png").exists()


def refusal(*arguments, cwd, code: str = "") -> str:
    done = run(*arguments, cwd=cwd, code=code)
    assert done.returncode == 2 and done.stdout == "" and not list(cwd.glob("*.png"))
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_weights_that_cannot_be_fetched(page, tmp_path):
    said = refusal("--model", "Qwen/Qwen3-VL-8B-Instruct", page, "what?", cwd=tmp_path)
    assert "Qwen/Qwen3-VL-8B-Instruct" in said and "HF_HUB_OFFLINE is set" in said and "local folder" in said


def test_folders_that_are_no_model(saved, page, tmp_path):
    folder, _, _ = saved
    assert "there is no folder" in refusal("--model", "./nowhere", page, "what?", cwd=tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no config.json of a known model" in refusal("--model", empty, page, "what?", cwd=tmp_path)
    (empty / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert "type 'llama': give a Qwen3-VL" in refusal("--model", empty, page, "what?", cwd=tmp_path)
    (empty / "config.json").write_text((folder / "config.json").read_text())
    assert "not a whole model" in refusal("--model", empty, page, "what?", cwd=tmp_path)


def test_mistakes_cost_no_loading(page, tmp_path):
    model = ("--model", "./nowhere", page, "what?")
    assert "stage is one of pre, post, views" in refusal(*model, "--stage", "during", cwd=tmp_path)
    assert "allocator" in refusal(*model, "--allocator", "nothing", cwd=tmp_path)
    assert "budget" in refusal(*model, "--budget", "0", cwd=tmp_path)
    assert "give stage='post', got 'pre'" in refusal(*model, "--peer", "tome", cwd=tmp_path)
    assert "fastv acts in layers" in refusal(*model, "--stage", "post", "--peer", "fastv", cwd=tmp_path)
    both = (*model, "--stage", "post", "--peer", "tome", "--allocator", "topk")
    assert "leave out --peer or --allocator" in refusal(*both, cwd=tmp_path)
    assert "--peer goes only with --model" in refusal(page, "what?", "--peer", "tome", cwd=tmp_path)
    assert "homunculus ask --help" in refusal(*model, "--bugdet", "9", cwd=tmp_path)


def test_without_transformers(page, tmp_path):
    missing = "import sys\nsys.modules['transformers'] = None"
    said = refusal("--model", "./nowhere", page, "what?", cwd=tmp_path, code=missing)
    assert "pip install 'homunculus[hf]'" in said


def test_old_transformers_and_answers_of_no_length(saved, monkeypatch):
    folder, model, processor = saved
    with pytest.raises(ValueError, match="1 or more new tokens"):
        ask(model, processor, example_page(), QUESTION, max_new_tokens=0)
    monkeypatch.setattr("transformers.__version__", "5.9.1")
    with pytest.raises(LoadError, match=r"5\.9\.1 is too old"):
        load(folder)


def code_in(page: str, language: str, about: str) -> list[str]:
    text = (ROOT / page).read_text()
    return [block for block in re.findall(rf"```{language}\n(.*?)```", text, flags=re.S) if about in block]


def test_the_examples_of_the_documentation(saved, page, monkeypatch, capsys):
    folder, _, _ = saved
    monkeypatch.chdir(page.parent)
    examples = code_in("docs/qwen.md", "python", "")
    assert len(examples) == 2
    scope: dict = {}
    for example in examples:
        example = example.replace("Qwen/Qwen3-VL-8B-Instruct", str(folder)).replace("_tokens=64", "_tokens=4")
        exec(compile(example, "docs/qwen.md", "exec"), scope)
    assert capsys.readouterr().out.strip() and scope["inputs"]["input_ids"].shape[1] > 273
    with Image.open("looked.png") as picture:
        assert picture.size == (1024, 1280)

    (example,) = code_in("README.md", "py", "qwen_vl.patch")
    scope |= {"prompt": ONE_IMAGE + "what ?", "image": picture_of(300, 200)}
    exec(compile(example.replace("_tokens=64", "_tokens=4"), "README.md", "exec"), scope)
    assert int((scope["inputs"]["input_ids"] == scope["model"].config.image_token_id).sum()) == 273
