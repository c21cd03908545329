"""Held-out questions: by family, in order, and right only where every letter is."""

import pytest
import torch

from homunculus.model.config import tiny
from homunculus.model.tokenizer import EOS, FIRST_PIECE, PAD
from homunculus.model.vlm import CompactVLM, look
from homunculus.train import check as checking
from homunculus.train.check import Check, part, same_letters
from homunculus.train.letters import letter_targets, text_density
from homunculus.train.pretrain import Pretraining
from homunculus.train.score import predicted


@pytest.fixture(scope="module")
def check():
    return Check({"scenes": 1.0, "scene-text": 2.0, "documents": 0.0}, images=6, each=3, size=(96, 96))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return CompactVLM(tiny()).requires_grad_(False)


def test_families_without_weight_are_not_asked(check):
    assert set(check.families) <= {"scenes", "scene-text"} and len(check.families) == 6
    assert check.samples.images.shape == (6, 3, 96, 96) and len(check.samples.question) == 18
    assert check.samples.each == 3


def test_parts_are_slices(check):
    own = part(check.samples, 2, 4)
    assert torch.equal(own.images, check.samples.images[2:4]) and torch.equal(own.boxes, check.samples.boxes[6:12])
    assert own.each == 3


def test_hits_are_those_of_each_question_alone(check, model, monkeypatch):
    monkeypatch.setattr(checking, "TOGETHER", 4)
    expected = {}
    density = predicted(model, check.samples)
    for i, family in enumerate(check.families):
        for j in range(3 * i, 3 * i + 3):
            row, column = divmod(int(density[j].argmax()), 6)
            boxes = [box for box in check.samples.boxes[j].tolist() if box[2] > box[0]]
            x0, y0, x1, y1 = column * 16, row * 16, column * 16 + 16, row * 16 + 16
            hit = any(a < x1 and x0 < c and b < y1 and y0 < d for a, b, c, d in boxes)
            expected.setdefault(f"{family}: hit", []).append(float(hit))
    assert check.hits(model) == pytest.approx({name: sum(v) / len(v) for name, v in expected.items()})


def test_answers_count_what_is_written_right(check, model, monkeypatch):
    assert set(check.answers(model, 64).values()) == {0.0}  # a model that was never trained
    answers = check.samples.answer

    class Wrote:
        letters = answers.clone()

    Wrote.letters[0, 0] += 1
    monkeypatch.setattr(checking, "TOGETHER", 6)
    monkeypatch.setattr(CompactVLM, "read", lambda *_: Wrote)
    found = check.answers(model, 64)
    first = check.families[0]
    count = 3 * check.families.count(first)
    assert found[f"{first}: true"] == found[f"{first}: predicted"] == pytest.approx(1 - 1 / count)
    assert all(value == 1.0 for name, value in found.items() if not name.startswith(first + ":"))


def test_letters_of_pages_nobody_trains_on(model):
    """Chance for a model that was never trained; all of them for heads that know."""
    check = Check({"documents": 1.0}, images=2, each=1, size=(512, 512))
    pretraining = Pretraining(model, [], budget=128)
    assert 0 <= check.letters(pretraining)["letters"] < 0.2
    targets = []

    class Knows(torch.nn.Module):
        def forward(self, features):
            density = text_density(check.pages.letters, (512, 512), (32, 32), 0)
            tokens = look(check.pages.images, density, 128, "foveated-pyramid")
            targets.append(letter_targets(check.pages.letters, tokens.allocation))
            return torch.nn.functional.one_hot(targets[-1], FIRST_PIECE).float().flatten(2)

    pretraining.letters = Knows()
    assert check.letters(pretraining) == {"letters": 1.0} and (targets[0] != PAD).any()


def test_letters_must_be_the_same_to_the_end():
    answer = torch.tensor([[70, 71, EOS, 0, 0]])
    for written, same in (
        ([70, 71, EOS], True),
        ([70, 71, EOS, 0, 0, 0, 0], True),
        ([70, 71, 72, EOS], False),
        ([70, 71], False),
        ([70, EOS], False),
    ):
        assert same_letters(torch.tensor([written]), answer).tolist() == [same]
    cut = torch.tensor([[70, 71, 72]])  # nobody asks for what was cut
    assert same_letters(torch.tensor([[70, 71, 72, 73, EOS]]), cut).item()
