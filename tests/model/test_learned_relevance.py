"""A question is heard by the scorer of the package, where it has one: in foveate, Observer and `homunculus look`."""

import gc
import json
import re
import shlex
import sys
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import homunculus
from bench.ask_figure import PAGES, Case, drawn, rows
from homunculus.cli import main
from homunculus.cli.look import leave_room
from homunculus.data.record import Question
from homunculus.density import normalise, resample_mass
from homunculus.errors import RelevanceError
from homunculus.foveate import make_view
from homunculus.model import learned, scorer, weights
from homunculus.model.config import tiny
from homunculus.model.learned import Listening, packaged_scorer
from homunculus.model.scorer import as_density
from homunculus.model.vlm import CompactVLM
from homunculus.model.weights import load_model, save_weights
from homunculus.viz.example import example_page
from homunculus.viz.overlay import to_pil

ROOT = Path(__file__).parent.parent.parent
QUESTION = "What is the total?"
CPU = torch.device("cpu")
shipped = pytest.mark.skipif(not (weights.SHIPPED / weights.ABOUT).exists(), reason="no weights in this checkout")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(2)
    model = CompactVLM(tiny()).requires_grad_(False)
    model.scorer.out.weight *= 20  # scores that tell places apart
    path = tmp_path_factory.mktemp("weights") / "tiny"
    save_weights(model, path)
    return path


@pytest.fixture
def packaged(folder, monkeypatch):
    """A package with the weights of a tiny model; the model."""
    monkeypatch.setattr(weights, "SHIPPED", folder)
    return load_model(folder)


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A package without weights."""
    monkeypatch.setattr(weights, "SHIPPED", tmp_path / "nowhere")


def picture(seed: int = 0, height: int = 128, width: int = 192) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)


def density(image, question, relevance=None):
    return make_view(image, question, 64, relevance=relevance).density


# --------------------------------------------------------------------------------------------------------- the default


def test_a_question_is_two_fifths_of_the_default(packaged):
    image = picture()
    ids = packaged.tokenizer.batch([packaged.tokenizer.encode(QUESTION)])
    own = as_density(packaged.scorer(packaged.scorer.features(image[None]), ids)).double()
    view = make_view(image, QUESTION, 64)
    heard = normalise(resample_mass(own, view.grid))
    expected = 0.4 * heard + 0.3 * density(image, None, "saliency") + 0.3 * density(image, None, "detail")
    assert torch.allclose(view.density, expected, atol=1e-12)
    assert torch.allclose(density(image, QUESTION, "learned"), heard, atol=1e-12)
    assert not torch.allclose(view.density, density(image, "Who signed?"), atol=1e-6)


@pytest.mark.parametrize("nothing", [None, "", "  "])
def test_no_question_is_pixels_alone(packaged, nothing):
    assert torch.equal(density(picture(), nothing), density(picture(), nothing, "pixels"))


def test_pixels_are_what_the_default_was(packaged):
    mixed = [("saliency", 0.3), ("detail", 0.3)]
    assert torch.equal(density(picture(), QUESTION, "pixels"), density(picture(), QUESTION, mixed))
    halves = {"pixels": 0.5, "uniform": 0.5}
    expected = (density(picture(), None) + 1 / density(picture(), None).numel()) / 2
    assert torch.allclose(density(picture(), QUESTION, halves), expected, atol=1e-12)


def test_without_weights_a_question_still_moves_the_gaze_and_nothing_else(bare):
    assert packaged_scorer(CPU) is None
    for question in (QUESTION, "What is at the top left?"):
        found, pixels = (homunculus.foveate(picture(), question, 64, relevance=way) for way in (None, "pixels"))
        assert torch.equal(found.patches, pixels.patches)
    with pytest.raises(RelevanceError, match="no weights of the compact model"):
        homunculus.foveate(picture(), QUESTION, 64, relevance="learned")


def test_learned_is_relevance_to_a_question(packaged):
    for nothing in (None, " "):
        with pytest.raises(RelevanceError, match="ask one"):
            homunculus.foveate(picture(), nothing, 64, relevance="learned")
    with pytest.raises(RelevanceError, match="did you mean 'learned'"):
        homunculus.foveate(picture(), QUESTION, 64, relevance="learnt")


def test_each_image_of_a_batch_has_its_own_question(packaged):
    images = [picture(seed) for seed in range(3)]
    questions = [QUESTION, None, "Who signed the order, and when was it delivered?"]
    together = make_view(images, questions, 64).density
    for i, (image, question) in enumerate(zip(images, questions, strict=True)):
        assert torch.equal(together[i], density(image, question)[0])


def test_an_observer_hears_each_question(packaged):
    observer = homunculus.Observer(picture(), 64)
    for question in (QUESTION, None, "Who signed?", QUESTION):
        assert torch.equal(observer.view(question).density, density(picture(), question))
    named = homunculus.Observer(picture(), 64, relevance="learned")
    assert not torch.equal(named.view(QUESTION).density, named.view("Who signed?").density)


# ----------------------------------------------------------------------------------------------------------- the scorer


def test_the_model_is_loaded_once(packaged, folder, monkeypatch):
    calls = []
    learned._loaded.cache_clear()
    monkeypatch.setattr(weights, "load_model", lambda *given: calls.append(given) or load_model(*given))
    for seed in range(3):
        homunculus.foveate(picture(seed), QUESTION, 64)
    assert calls == [(folder, CPU)]
    learned._loaded.cache_clear()


def test_an_image_is_read_once_for_all_its_questions(packaged, monkeypatch):
    calls = []
    features = packaged.scorer.features
    monkeypatch.setattr(packaged.scorer, "features", lambda images: calls.append(len(images)) or features(images))
    listening = Listening(packaged.scorer, packaged.tokenizer)
    images = torch.stack([picture(0), picture(1)])
    first = listening(images, [QUESTION, "Who?"])
    again = listening(images, ["Who?", QUESTION])
    assert calls == [1, 1]  # one by one on a CPU, and not again
    assert torch.equal(listening(images, [QUESTION, "Who?"]), first) and not torch.equal(first, again)
    other = listening(images.flip(0), ["Who?", QUESTION])
    assert calls == [1] * 4 and torch.equal(other.flip(0), first)


def test_the_images_are_not_held(packaged):
    listening = Listening(packaged.scorer, packaged.tokenizer)
    images = picture()[None].clone()
    listening(images, [QUESTION])
    watched = weakref.ref(images)
    del images
    gc.collect()
    assert watched() is None


def test_large_images_are_scaled_down_for_the_scorer(packaged, monkeypatch):
    monkeypatch.setattr(scorer, "fitting", partial(scorer.fitting, most=40_000))
    monkeypatch.setattr(scorer, "MOST_PIXELS", 40_000)
    noisy = picture(3, 320, 480)
    listening = Listening(packaged.scorer, packaged.tokenizer)
    as_bytes, as_floats = (listening(way, [QUESTION]) for way in (noisy[None], noisy[None] / 255))
    assert as_bytes.shape[-2:] == (10, 15) and torch.allclose(as_bytes, as_floats, atol=1e-2 * as_bytes.max().item())


# ------------------------------------------------------------------------------------------------------------- commands


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """The command line in this process, beside a page: exit code, what it printed, what it complained of."""
    monkeypatch.chdir(tmp_path)
    to_pil(picture()).save(tmp_path / "page.png")
    threads = torch.get_num_threads()

    def call(*arguments) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["homunculus", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return end.value.code or 0, captured.out, captured.err

    yield call
    torch.set_num_threads(threads)


def test_look_says_what_it_looked_by(run, packaged):
    report = json.loads(run("look", "page.png", QUESTION, "--budget", "64", "--json")[1])
    assert report["relevance"] == pytest.approx({"learned": 0.4, "saliency": 0.3, "detail": 0.3})
    expected = homunculus.foveate(picture(), QUESTION, 64).allocation
    assert [cell["score"] for cell in report["cells"]] == pytest.approx(expected.scores[0].tolist())
    assert "learned 40%, saliency 30%, detail 30%" in run("look", "page.png", QUESTION, "--fixations", "2")[1]
    assert "learned 100%" in run("look", "page.png", QUESTION, "--relevance", "learned")[1]
    report = json.loads(run("look", "page.png", "--json")[1])
    assert report["relevance"] == {"saliency": 0.5, "detail": 0.5}


def test_look_without_weights_does_what_it_did(run, bare):
    report = json.loads(run("look", "page.png", QUESTION, "--budget", "64", "--json")[1])
    assert report["relevance"] == {"saliency": 0.5, "detail": 0.5}
    code, out, error = run("look", "page.png", QUESTION, "--relevance", "learned")
    assert code == 2 and out == "" and "no weights of the compact model" in error and error.count("\n") == 1


def test_learned_is_the_scorer_of_the_weights_that_answer(run, folder, bare):
    command = ("ask", "page.png", QUESTION, "--weights", folder, "--budget", "64", "--json")
    plain, named = (json.loads(run(*command, *more)[1]) for more in ((), ("--relevance", "learned")))
    assert named["cells"] == plain["cells"] and named["answer"] == plain["answer"]


def test_half_of_the_cores_unless_told(monkeypatch):
    set_to = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    leave_room()
    monkeypatch.delenv("OMP_NUM_THREADS")
    for threads in (1, 2, 16):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        leave_room()
    assert set_to == [1, 1, 8]


# ------------------------------------------------------------------------------------------------------ what is written


@shipped
def test_what_is_shipped_is_small_and_described():
    about = weights.read_about(weights.SHIPPED)
    files = sorted(weights.SHIPPED.glob("*.safetensors"))
    assert len(files) == about["shards"] and all(path.stat().st_size <= 15 << 20 for path in files)
    assert sum(path.stat().st_size for path in files) <= 32 << 20
    assert sum(weight.numel() for weight in load_model().parameters()) <= 16_000_000
    card = (weights.SHIPPED / "MODEL_CARD.md").read_text()
    assert all(f"**{part}" in card for part in ("Data", "Recipe", "Metrics", "Confidence", "Limits", "Licence"))


@shipped
def test_the_examples_on_the_model_run(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "model.md").read_text()
    to_pil(example_page()).save(tmp_path / "page.png")
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    for example in re.findall(r"```python\n(.*?)```", text, flags=re.S):
        exec(compile(example, "model.md", "exec"), scope)
    assert scope["said"].tokens == 273 and len(scope["both"]) == 2 and scope["tokens"].patches.shape[1] == 273
    assert "torch.Size([1, 273, 4])" in capsys.readouterr().out
    for line in re.findall(r"^homunculus (?:ask|look) .*$", text, flags=re.M):
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code and (tmp_path / shlex.split(line)[-1]).stat().st_size > 10_000


def case(key: str, said: str, truth: str) -> Case:
    question = Question("What is written?", (truth,))
    return Case(SimpleNamespace(key=key), question, SimpleNamespace(text=said, confidence=0.5))  # type: ignore[arg-type]


def test_examples_are_not_picked():
    keys = [f"{family}/test-iid/{index}" for family, index in PAGES]
    cases = [case(keys[0], "A|B", "A|B"), case(keys[0], "C", "D"), case(keys[1], "E", "F"), case(keys[2], "G", "G")]
    assert [rows(cases)[i].split(" | ")[-1] for i in (2, 3, 4)] == ["right |", "**wrong: D** |", "**wrong: F** |"]
    assert "A\\|B" in rows(cases)[2]
    assert drawn(cases) == [cases[0], cases[2], cases[3], cases[1]]  # the first of each page, then the first wrong one
