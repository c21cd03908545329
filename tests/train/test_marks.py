"""Letters and things are marked where they are, with numbers that are never mixed up."""

import numpy as np
import torch

from homunculus.data import make
from homunculus.model.tokenizer import FIRST_BYTE, FIRST_PIECE, PAD
from homunculus.train.letters import SLOTS, known, leaf_letters
from homunculus.train.marks import NAMES, letter_marks, marks, thing_marks
from homunculus.train.renderers import LONGEST_READING


def test_numbers_are_apart():
    numbers = list(NAMES.values())
    assert len(set(numbers)) == len(numbers) and min(numbers) >= FIRST_BYTE + 128 and max(numbers) < FIRST_PIECE


def test_letters_that_are_not_ascii_have_no_number():
    assert [number for _, _, number in letter_marks("aé", (0, 0, 10, 10), (0.2, 0.7))] == [FIRST_BYTE + ord("a"), PAD]
    assert letter_marks("abc", (0, 0, 10, 10), ()) == []  # a text whose letters are not known


def test_things_are_marked_inside_and_all_their_leaves_agree():
    record = make("scenes", "train", 3, size=(512, 512))
    made = marks(record, 64, LONGEST_READING)
    things = record.meta["things"]
    assert (made[len(things) :] == 0).all() and len(things) > 3
    for thing, row in zip(things, made.tolist(), strict=False):
        (x0, y0, x1, y1), own = thing["box"], [mark for mark in row if mark[2] != PAD]
        assert len(own) == 36 and all(x0 <= x <= x1 and y0 <= y <= y1 for x, y, _ in own)
        assert {number for _, _, number in own} == {NAMES[thing[what]] for what in ("shape", "colour", "texture")}
    leaves = leaf_letters(made[None].long(), (512, 512), (32, 32))[0]
    taught = leaves[(leaves != PAD).any(1)]
    kinds = [{NAMES[thing[what]] for thing in things} for what in ("shape", "colour", "texture")]
    for place, numbers in enumerate(kinds):  # shape first, then colour, then pattern, on every leaf
        assert set(taught[:, place].tolist()) <= numbers
    assert len(kinds) == SLOTS and known(made[None].long()).item()


def test_shapes_nobody_teaches_have_no_marks():
    assert thing_marks({"shape": "dodo", "colour": "red", "texture": "plain", "box": (0, 0, 9, 9)}) == []
    things = [thing for i in range(20) for thing in make("scenes", "test-ood", i, size=(256, 256)).meta["things"]]
    held_out = [thing for thing in things if thing["shape"] not in NAMES]
    assert held_out and not any(map(thing_marks, held_out))


def test_images_that_know_no_letters_are_told_apart():
    letters = torch.zeros(2, 3, 4, 3, dtype=torch.int64)
    letters[1, 2, 3] = torch.tensor([5, 6, 70])
    assert known(letters).tolist() == [[False], [True]]


def test_more_than_fits_is_cut():
    record = make("scenes", "train", 3, size=(512, 512))
    whole = marks(record, 64, LONGEST_READING)[0]
    # what is too long for a row goes on in the next
    assert np.array_equal(marks(record, 2, 6), whole[:12].unflatten(0, (2, 6)))
