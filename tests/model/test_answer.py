"""One question about one image: the same as by hand, alone and in any batch; what it refuses; confidence."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from homunculus.errors import HomunculusError
from homunculus.images import load_images
from homunculus.model.answer import Answer, answer
from homunculus.model.calibration import Calibration, fit_calibration, log_odds
from homunculus.model.config import tiny
from homunculus.model.vlm import CompactVLM, look

QUESTION = "What is the total?"
QUICK = {"budget": 64, "longest": 6}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    return CompactVLM(tiny()).eval().requires_grad_(False)


def picture(width: int, height: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)


def same(one: Answer, other: Answer) -> None:
    assert one.text == other.text and one.confidence == pytest.approx(other.confidence, rel=1e-4)
    assert torch.equal(one.allocation.boxes, other.allocation.boxes)
    assert torch.allclose(one.density, other.density) and one.tokens == other.tokens


@pytest.mark.parametrize("allocator", ["foveated-pyramid", "topk", "uniform"])
def test_one_look_is_what_the_model_was_trained_on(model, allocator):
    """The pipeline by hand, on the path that training takes."""
    image = picture(256, 192)
    said = answer(model, image, QUESTION, allocator=allocator, **QUICK)
    ids = model.tokenizer.batch([model.tokenizer.encode(QUESTION)])
    density = model.relevance(image[None], ids)
    tokens = look(image[None], density, 64, allocator)
    written = model.read(tokens, ids, 6)
    assert torch.equal(said.allocation.boxes, tokens.allocation.boxes)
    assert said.text == model.tokenizer.decode(written.letters[0].tolist())
    assert said.confidence == pytest.approx(written.confidence.item(), rel=1e-4)
    assert torch.allclose(said.density, density[0].double(), atol=1e-9)
    assert said.tokens == 64 and len(said.looks) == 1 and said.look is said.looks[0]


@pytest.mark.parametrize("how", [{}, {"looks": 3, "threshold": None}, {"progressive": True, "budgets": (32, 64)}])
def test_an_answer_does_not_depend_on_batch_mates(model, how):
    sizes = [(256, 192), (200, 300), (256, 192), (64, 64), (256, 192)]
    images = [picture(*size, seed) for seed, size in enumerate(sizes)]
    asked = [QUESTION, "Who?", "What is written in the footer on the right, in the second line?", "Why?", "When?"]
    together = answer(model, images, asked, **QUICK, **how)
    alone = [answer(model, image, question, **QUICK, **how) for image, question in zip(images, asked, strict=True)]
    for one, other in zip(together, alone, strict=True):
        same(one, other)
    in_pairs = answer(model, images, asked, batch=2, **QUICK, **how)
    for one, other in zip(together, in_pairs, strict=True):
        same(one, other)


def test_any_form_of_image_and_one_question_for_all(model):
    image = picture(128, 128)
    array = image.permute(1, 2, 0).numpy()
    single = answer(model, array, QUESTION, **QUICK)
    assert isinstance(single, Answer) and "64 tokens in 1 look" in repr(single)
    listed = answer(model, [array, image], QUESTION, **QUICK)
    stacked = answer(model, torch.stack([image, image]), QUESTION, **QUICK)
    for said in (*listed, *stacked):
        same(said, single)
    assert len(answer(model, [array], [QUESTION], **QUICK)) == 1  # a list stays a list


def test_relevance_from_elsewhere(model):
    """Maps, one for each image even among several sizes; names; callables that hear the question."""
    images = [picture(256, 256), picture(128, 192), picture(256, 256, 1)]
    maps = torch.zeros(3, 16, 16)
    maps[0, 2, 3] = maps[1, 8, 8] = maps[2, 12, 1] = 1.0
    said = answer(model, images, QUESTION, relevance=maps, **QUICK)
    for one, own in zip(said, maps, strict=True):
        height, width = one.density.shape
        y, x = divmod(int(one.density.argmax()), width)
        true_y, true_x = divmod(int(own.argmax()), 16)
        assert abs((x + 0.5) / width - (true_x + 0.5) / 16) < 1 / 16
        assert abs((y + 0.5) / height - (true_y + 0.5) / 16) < 1 / 16
    heard: list = []

    def scorer(pixels, questions):
        heard.extend(questions)
        return torch.ones(len(pixels), 4, 4)

    flat = answer(model, images, ["a", "b", "c"], relevance=scorer, **QUICK)
    assert sorted(heard) == ["a", "b", "c"]
    uniform = answer(model, images, ["a", "b", "c"], relevance="uniform", **QUICK)
    for one, other in zip(flat, uniform, strict=True):
        same(one, other)


def test_places_to_look_at(model):
    images = [picture(256, 256), picture(256, 256, 1), picture(256, 256, 2)]
    said = answer(model, images, QUESTION, fixation=[[(10, 20), (200, 200)], [], [(100, 50)]], **QUICK)
    looked = [one.look.fixations[one.look.fixations[:, 2] > 0, :2].tolist() for one in said]
    assert looked[0] == [[10, 20], [200, 200]] and looked[2] == [[100, 50]]
    own = answer(model, images[1], QUESTION, **QUICK)
    same(said[1], own)  # without a place of its own it looks at its peak
    assert looked[1] == own.look.fixations[:, :2].tolist()


@pytest.mark.parametrize(
    ("question", "how", "words"),
    [
        ("", {}, "empty"),
        ("  \n", {}, "empty"),
        (7, {}, "a question is text, got int"),
        (None, {}, "a question is text"),
        (["a", "b"], {}, "2 queries for 1 images"),
        ("0123456789" * 10, {}, "100 pieces is too long, the model reads 96"),
        ("a", {"looks": 0}, "positive whole number"),
        ("a", {"looks": True}, "positive whole number"),
        ("a", {"combine": "sum"}, "'tree', 'concat' or 'best'"),
        ("a", {"looks": 2, "progressive": True}, "one of them"),
        ("a", {"longest": 0}, "longest must be"),
        ("a", {"batch": 0}, "batch must be"),
        ("a", {"threshold": 2}, "from 0 to 1"),
        ("a", {"budget": 0}, "budget"),
        ("a", {"budget": 65537}, "give at most 65536"),
        ("a", {"allocator": "nothing"}, "unknown allocator"),
        ("a", {"allocator": "log-polar-rings", "looks": 2}, "single gaze"),
        ("a", {"allocator": "topk", "progressive": True}, "no nested budgets"),
        ("a", {"relevance": "nothing"}, "unknown relevance"),
        ("a", {"fixation": (900, 0)}, "outside the image"),
    ],
)
def test_refusals_are_one_line(model, question, how, words):
    with pytest.raises(HomunculusError, match=words) as caught:
        answer(model, picture(64, 64), question, **how)
    assert "\n" not in str(caught.value)


def test_the_model_is_asked_for_nothing_before_all_is_checked(model, monkeypatch):
    monkeypatch.setattr(model.scorer, "features", lambda images: pytest.fail("worked before it looked at the question"))
    with pytest.raises(HomunculusError, match="empty"):
        answer(model, [picture(64, 64)] * 2, ["fine", ""])


def test_images_are_read_as_everywhere(model, tmp_path):
    from PIL import Image

    path = tmp_path / "page.png"
    Image.fromarray(picture(96, 64).permute(1, 2, 0).numpy()).save(path)
    same(answer(model, path, QUESTION, **QUICK), answer(model, load_images(path)[0], QUESTION, **QUICK))


# ---------------------------------------------------------------------------------------------------- calibration


@given(st.floats(1e-6, 1 - 1e-6))
def test_the_default_believes_the_model(p):
    assert Calibration()(np.log(p)).item() == pytest.approx(p, abs=2e-7)


def test_a_curve_is_found_again():
    generator = torch.Generator().manual_seed(0)
    logps = torch.rand(20_000, generator=generator).double().clamp(1e-4, 1 - 1e-4).log()
    true = Calibration(0.6, -0.8)
    rights = torch.rand(20_000, generator=generator) < true(logps)
    found = fit_calibration(logps, rights)
    assert found.slope == pytest.approx(0.6, abs=0.05) and found.offset == pytest.approx(-0.8, abs=0.05)
    assert found(logps).mean().item() == pytest.approx(rights.double().mean().item(), abs=1e-3)


@given(st.lists(st.tuples(st.floats(-30, 0), st.booleans()), min_size=1, max_size=30))
def test_the_fit_is_the_minimum(pairs):
    """Against the gradient that autograd finds; all right, all wrong and cleanly parted answers included."""
    logps, rights = (torch.tensor(values, dtype=torch.float64) for values in zip(*pairs, strict=True))
    found = fit_calibration(logps, rights)
    at = torch.tensor([found.slope, found.offset], dtype=torch.float64, requires_grad=True)
    score = at[0] * log_odds(logps) + at[1]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(score, rights, reduction="sum")
    (loss + ((at - torch.tensor([1.0, 0.0])) ** 2).sum() / 2).backward()
    assert at.grad.abs().max() < 1e-6


def test_the_fit_wants_a_verdict_for_each_answer():
    for rights in ([1], [1, 2], [[1, 0]]):
        with pytest.raises(HomunculusError, match="one 0 or 1 for each"):
            fit_calibration([-0.1, -0.2], rights)


def test_an_answer_has_the_confidence_of_its_calibration(model):
    image = picture(64, 64)
    plain = answer(model, image, QUESTION, **QUICK)
    doubted = answer(model, image, QUESTION, calibration=Calibration(0.5, 1.0), **QUICK)
    odds = np.log(plain.confidence / (1 - plain.confidence))
    assert doubted.confidence == pytest.approx(1 / (1 + np.exp(-(0.5 * odds + 1))), rel=1e-4)
    assert doubted.text == plain.text
