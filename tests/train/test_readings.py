"""Texts that are read without being asked for: where they come from, when they are drawn, and letters one by one."""

import math

import pytest
import torch

from homunculus.data.stream import make
from homunculus.model.tokenizer import default_tokenizer
from homunculus.train.renderers import LONGEST_READING, MARKED, READ, READING
from tests.train.test_pool import filled


@pytest.mark.parametrize("kept", [3, 50])
def test_readings_are_texts_where_they_stand(kept):
    """So many of those short enough and inside the image, shortest first; after the questions."""
    pool = filled(families={"scene-text": 1.0}, readings=kept)
    for slot in range(6):
        record = make("scene-text", "train", slot, size=(80, 64))
        known = {(one["text"], tuple(one["box"])) for one in record.meta["texts"]}
        fits = {
            (text, box)
            for text, box in known
            if 2 <= len(text) <= LONGEST_READING and 0 <= box[0] < box[2] <= 80 and 0 <= box[1] < box[3] <= 64
        }
        asked, read = pool.asked_of[slot][: len(record.questions)], pool.asked_of[slot][len(record.questions) :]
        assert asked == record.questions
        assert {(one.answer, one.boxes[0]) for one in read} <= fits and len(read) == min(kept, len(fits))
        assert all(one.text == READ and one.kind == READING and len(one.boxes) == 1 for one in read)
        assert [len(one.answer) for one in read] == sorted(len(one.answer) for one in read)
    assert any(one.kind == READING for asked in pool.asked_of for one in asked)


@pytest.mark.parametrize(("share", "each"), [(0.4, 1), (1.0, 1), (1.0, 5)])
def test_readings_are_drawn_where_there_are_any(share, each):
    """The shortest of them, that share; of an image without texts questions are drawn."""
    pool, tokenizer = filled(readings=4), default_tokenizer()
    samples = pool.draw(60 * each, step=2, each=each, readings=share)
    reads = 0
    for i, question in enumerate(pool.asked(samples)):
        asked = pool.asked_of[samples.slot[i]]
        texts = [number for number, one in enumerate(asked) if one.kind == READING]
        allowed = texts[: math.ceil(share * len(texts))] or range(len(asked))
        assert samples.number[i] in allowed and 0 <= samples.number[i] < len(asked) <= pool.plan.rows
        assert tokenizer.decode(samples.question[i].tolist()) == question.text
        assert tokenizer.decode(samples.answer[i].tolist()) == question.answer
        assert samples.boxes[i, : len(question.boxes)].tolist() == [list(map(float, box)) for box in question.boxes]
        reads += question.kind == READING
    assert 0 < reads < 60 * each  # some images have texts and some have none
    again = filled(readings=4).draw(60 * each, step=2, each=each, readings=share)
    assert torch.equal(samples.number, again.number) and torch.equal(samples.answer, again.answer)
    assert all(question.kind != READING for question in pool.asked(pool.draw(60, step=2)))


def test_readings_change_no_question():
    """Which questions are drawn does not depend on whether texts are kept as well."""
    plain, more = filled(readings=0), filled(readings=4)
    for slot in range(6):
        n = len(plain.asked_of[slot])
        assert more.asked_of[slot][:n] == plain.asked_of[slot]
        assert torch.equal(more.rows.text[slot, :n], plain.rows.text[slot, :n])
        assert torch.equal(more.rows.boxes[slot, :n], plain.rows.boxes[slot, :n])


def test_pages_are_images_with_their_letters():
    pool = filled(readings=4)
    pages, again, other = pool.pages(30, 1), filled(readings=4).pages(30, 1), pool.pages(30, 2)
    assert pages.images.shape == (30, 3, 64, 80) and pages.letters.shape == (30, MARKED, LONGEST_READING, 3)
    assert torch.equal(pages.images, again.images) and torch.equal(pages.letters, again.letters)
    assert not torch.equal(pages.images, other.images)
    held = {image.numpy().tobytes() for image in pool.rows.images}
    assert {image.permute(1, 2, 0).contiguous().numpy().tobytes() for image in pages.images} == held
