"""Learning how `pyramid` shares its cells: counts that add up, moves that only improve, a loss that is the answer's."""

import math
import random
import sys

import pytest
import torch

from bench.level_split import counts, learned, lots_of, main, surprise
from homunculus.allocation.levels import SPLIT
from homunculus.model.config import tiny
from homunculus.model.tokenizer import PAD
from homunculus.model.vlm import CompactVLM, look


def test_counts_add_up_and_are_nearest():
    dice = random.Random(0)
    for _ in range(200):
        logits = [dice.uniform(-3, 3) for _ in range(4)]
        found, total = counts(logits), sum(map(math.exp, logits))
        assert sum(found) == 273
        assert all(abs(own - 273 * math.exp(logit) / total) < 1 for own, logit in zip(found, logits, strict=True))
    assert counts([math.log(share) for share in SPLIT]) == SPLIT


def test_a_planted_split_is_nearly_found_and_nothing_is_asked_twice():
    asked = []

    def value(split):
        asked.append(split)
        return sum(abs(own - wanted) for own, wanted in zip(split, (150, 80, 30, 13), strict=True))

    split, least = learned(value, [math.log(share) for share in SPLIT])
    assert len(asked) == len(set(asked)) and least == value(split) < value(SPLIT) / 4
    assert least == min(map(value, list(asked)))


def test_surprise_is_of_the_true_answers():
    torch.manual_seed(0)
    model = CompactVLM(tiny()).eval().requires_grad_(False)
    lots = lots_of(model, "scenes", 2)
    split = (30, 20, 10, 4)
    total, questions = 0.0, 0
    for lot in lots:
        for i in range(len(lot.question)):
            own = [part[i : i + 1] for part in lot]
            tokens = look(own[0], own[1], 64, "pyramid", mode="split", split=split)
            chances = model.decoder(model.see(tokens), own[2], own[3]).log_softmax(-1)[0]
            total -= sum(chances[k, letter].item() for k, letter in enumerate(own[3][0].tolist()) if letter != PAD)
            questions += 1
    assert questions == 4 and surprise(model, lots, split) == pytest.approx(total / questions, rel=1e-4)


def test_without_images_there_is_nothing_to_learn_from(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["level_split", "--images", "0"])
    with pytest.raises(SystemExit):
        main()
    assert "give --images 1 or more" in capsys.readouterr().err
