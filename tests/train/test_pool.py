"""The pool: the same records and draws however it got there, with any number of workers, and no worker hangs it."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homunculus.data.stream import make
from homunculus.errors import DataError
from homunculus.model.tokenizer import EOS, FIRST_PIECE, PAD, default_tokenizer
from homunculus.train.pool import Pool
from homunculus.train.renderers import AHEAD, Plan, Renderers
from tests.devices import no_sync
from tests.test_cli import ENVIRONMENT, ROOT

MIXED = {"scenes": 2.0, "scene-text": 1.0}
SMALL = {"size": (80, 64), "capacity": 6, "renewed": 2, "seed": 3}


def same(a: Pool, b: Pool) -> bool:
    return a.asked_of == b.asked_of and all(torch.equal(*pair) for pair in zip(a.rows, b.rows, strict=True))


def filled(step: int = 0, families=MIXED, **options) -> Pool:
    pool = Pool(families, **(SMALL | options))
    pool.fill(step)
    return pool


# ----------------------------------------------------------------------------------------------------- what it holds


def test_a_slot_holds_its_record():
    pool = filled(step=2)  # records 4 .. 9
    for number in range(4, 10):
        slot = number % 6
        family, index = pool.plan.record(number)
        record = make(family, "train", index, size=(80, 64))
        assert index == number
        assert np.array_equal(pool.rows.images[slot].numpy(), record.image)
        assert pool.asked_of[slot] == record.questions[:24]


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_advancing_is_filling_later(steps):
    walked = filled()
    for _ in range(steps):
        walked.advance()
    assert same(walked, filled(step=steps))
    assert not same(walked, filled(step=steps + 1))
    walked.fill(1)  # and back, where some of it is still held
    assert same(walked, filled(step=1))


def test_a_pool_may_begin_with_fewer_and_grow():
    """What is drawn is there; once it is full it is like any other that has come as far."""
    pool, seen = filled(first=2, capacity=6, renewed=2), []
    for step in range(5):
        seen.append(set(pool.draw(64, step).slot.tolist()))
        assert same(pool, filled(first=2, capacity=6, renewed=2, step=step))
        pool.advance()
    assert seen == [{0, 1}, {0, 1, 2, 3}, *[set(range(6))] * 3]
    assert same(pool, filled(capacity=6, renewed=2, step=3))


def test_families_come_by_their_weights():
    plan = Pool({"scenes": 3.0, "scene-text": 1.0, "documents": 0.0}, size=(8, 8), capacity=1, renewed=0).plan
    names = [plan.record(number)[0] for number in range(4000)]
    assert abs(names.count("scenes") / 4000 - 0.75) < 0.03 and "documents" not in names


@given(st.integers(1, 9), st.integers(0, 1000), st.integers(0, 5))
@settings(max_examples=20)
def test_parts_share_one_stream(parts, number, seed):
    options = {"size": (8, 8), "capacity": 1, "renewed": 0, "seed": seed}
    whole = Pool(MIXED, **options).plan
    for part in range(parts):
        mine = Pool(MIXED, part=part, parts=parts, **options).plan
        assert mine.record(number) == whole.record(part + parts * number)


def test_other_splits_and_clean_ones():
    pool = filled(families={"scenes": 1.0}, split="test-ood", clean=True, capacity=2)
    assert np.array_equal(pool.rows.images[1].numpy(), make("scenes", "test-ood", 1, size=(80, 64), clean=True).image)


def test_progress_is_told_of_each_record():
    told = []
    Pool(MIXED, **SMALL).fill(1, progress=told.append)
    assert told == [1] * 6


# -------------------------------------------------------------------------------------------------------- drawing


def test_samples_say_what_the_questions_say():
    pool, tokenizer = filled(), default_tokenizer()
    samples = pool.draw(64, step=5)
    assert samples.images.shape == (64, 3, 64, 80) and samples.images.dtype == torch.uint8
    asked = pool.asked(samples)
    for i, question in enumerate(asked):
        assert tokenizer.decode(samples.question[i].tolist()) == question.text
        assert tokenizer.decode(samples.answer[i].tolist()) == question.answer
        assert (samples.answer[i] == EOS).sum() == 1
        boxes = samples.boxes[i, : len(question.boxes)]
        torch.testing.assert_close(boxes, torch.tensor(question.boxes, dtype=torch.float32).reshape(-1, 4))
        assert not samples.boxes[i, len(question.boxes) :].any()
        assert torch.equal(samples.images[i].permute(1, 2, 0), pool.rows.images[samples.slot[i]])
    assert len({question.kind for question in asked}) > 3


def test_draws_follow_from_seed_step_and_part():
    pool = filled()
    first, again = pool.draw(32, step=1), filled().draw(32, step=1)
    assert torch.equal(first.slot, again.slot) and torch.equal(first.number, again.number)
    assert torch.equal(first.images, again.images) and torch.equal(first.answer, again.answer)
    for other in (pool.draw(32, step=2), filled(seed=4).draw(32, step=1), filled(part=1, parts=2).draw(32, step=1)):
        assert not torch.equal(first.slot, other.slot)


def test_every_image_and_every_question_is_as_likely():
    pool = filled()
    samples = pool.draw(6000, step=0)
    for slot in range(6):
        here = samples.slot == slot
        assert abs(int(here.sum()) - 1000) < 4 * (6000 * 5 / 36) ** 0.5
        n = len(pool.asked_of[slot])
        seen = torch.bincount(samples.number[here], minlength=n)
        assert len(seen) == n and seen.min() > 0.4 * 1000 / n and seen.max() < 1.8 * 1000 / n


def test_a_kind_comes_by_its_weight():
    plain, pool = filled(families={"scenes": 1.0}), filled(families={"scenes": 1.0}, kinds={"colour": 3.0})
    kinds = [[question.kind == "colour" for question in asked] for asked in pool.asked_of]
    assert any(map(any, kinds)) and not all(map(all, kinds))
    samples = pool.draw(6000, step=0)
    assert torch.equal(samples.slot, plain.draw(6000, step=0).slot)
    for slot, colours in enumerate(kinds):
        weights = torch.tensor(colours) * 2.0 + 1
        share = weights / weights.sum()
        here = samples.slot == slot
        seen = torch.bincount(samples.number[here], minlength=len(colours)) / here.sum()
        assert (seen - share).abs().max() < 4 * (0.25 / here.sum()) ** 0.5
    assert torch.equal(
        filled(families={"scenes": 1.0}, kinds={"word": 3.0}).draw(60, 0).number, plain.draw(60, 0).number
    )


@pytest.mark.parametrize("each", [2, 8, 30])
def test_several_questions_of_each_image(each):
    pool = filled(questions=12)
    samples = pool.draw(10 * each, step=0, each=each)
    assert samples.images.shape[0] == 10 and samples.each == each
    for image, slots, numbers in zip(samples.images, samples.slot.split(each), samples.number.split(each), strict=True):
        assert (slots == slots[0]).all()
        assert torch.equal(image.permute(1, 2, 0), pool.rows.images[slots[0]])
        asked = len(pool.asked_of[slots[0]])
        times = torch.bincount(numbers, minlength=asked)
        assert len(times) == asked and times.max() - times.min() <= 1  # none again before all had their turn
    for count in (0, each + 1):
        with pytest.raises(DataError, match="multiple"):
            pool.draw(count, step=0, each=each)


def test_what_is_too_much_is_cut():
    pool = filled(families={"scene-text": 1.0}, questions=3, longest_question=4, longest_answer=2)
    assert all(len(asked) == 3 for asked in pool.asked_of)
    samples, tokenizer = pool.draw(40, step=0), default_tokenizer()
    assert samples.question.shape == (40, 4) and samples.answer.shape == (40, 2)
    for i, question in enumerate(pool.asked(samples)):
        whole = [*tokenizer.spell(question.answer), EOS]
        assert samples.answer[i].tolist() == [*whole, PAD][:2]
        assert samples.question[i].tolist() == tokenizer.encode(question.text)[:4]
    assert not (samples.answer == EOS).all(1).any() and (samples.answer[:, 1] != EOS).any()


def test_a_share_of_the_words_is_spelled():
    tokenizer = default_tokenizer()
    some, all_of_them, none = (filled(spelled=share, longest_question=99) for share in (0.5, 1.0, 0.0))
    lengths = []
    for pool in (none, some, all_of_them):
        samples = pool.draw(50, step=0)
        for numbers, question in zip(samples.question.tolist(), pool.asked(samples), strict=True):
            assert tokenizer.decode(numbers) == question.text
        lengths.append(int((samples.question != PAD).sum()))
    assert int((samples.question >= FIRST_PIECE).sum()) == 0
    assert lengths[0] < 0.8 * lengths[1] < 0.8 * lengths[2]
    assert same(some, filled(spelled=0.5, longest_question=99))


@pytest.mark.parametrize(
    ("families", "options"),
    [
        ({}, {}),
        ({"scenes": 0.0}, {}),
        ({"scenes": 2.0, "documents": -1.0}, {}),
        ({"cats": 1.0}, {}),
        (MIXED, {"renewed": 7}),
        (MIXED, {"capacity": 0, "renewed": 0}),
        (MIXED, {"part": 2, "parts": 2}),
        (MIXED, {"questions": 0}),
        (MIXED, {"workers": -1}),
        (MIXED, {"kinds": {"side": 0.0}}),
    ],
)
def test_what_makes_no_pool_is_refused(families, options):
    with pytest.raises(DataError) as error:
        Pool(families, **(SMALL | options))
    assert "\n" not in str(error.value)


def test_an_empty_pool_is_refused():
    pool = Pool(MIXED, **SMALL)
    for use in (lambda: pool.draw(1, step=0), pool.advance):
        with pytest.raises(DataError, match="fill"):
            use()


# --------------------------------------------------------------------------------------------------- worker processes


def test_workers_change_nothing():
    alone = filled(spelled=0.3, readings=4)
    with filled(workers=2, spelled=0.3, readings=4) as pool:
        assert same(alone, pool)
        for _ in range(4):  # more than were drawn ahead
            pool.advance()
            alone.advance()
            assert same(alone, pool)
        for step in (40, 1, 2):  # jumps throw away what was under way, and no place of it is lost
            pool.fill(step)
            pool.advance()
            assert same(filled(step=step + 1, spelled=0.3, readings=4), pool)
        samples, expected = pool.draw(9, step=0), filled(step=3, spelled=0.3, readings=4).draw(9, step=0)
        assert torch.equal(samples.images, expected.images) and torch.equal(samples.boxes, expected.boxes)
        assert pool.waited > 0
    assert not any(process.is_alive() for process in pool._renderers._processes)
    pool.close()  # twice does no harm
    assert torch.equal(pool.draw(9, step=0).images, samples.images)  # what it holds stays


class Copy:
    """As a CUDA event that passes only when it is waited for."""

    passed = False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.passed = True


def test_a_place_is_left_alone_until_its_copy_has_passed():
    renderers = Renderers(Plan({"scenes": 1.0}, size=(80, 64)), workers=1)
    lent = []
    for number in range(AHEAD + 6):
        place, _ = renderers.take(number)
        copy = Copy()
        lent.append((place, renderers.rows.images[place].clone(), copy))
        renderers.release(place, copy)
        time.sleep(0.02)
        assert all(torch.equal(renderers.rows.images[place], image) for place, image, copy in lent if not copy.passed)
    assert [copy.passed for _, _, copy in lent] == [True] * 6 + [False] * AHEAD  # no wait that was not needed
    renderers.close()


@pytest.mark.parametrize(
    ("family", "size", "said"), [("documents", (64, 48), "at least 512 pixels"), ("scenes", (8, 8), "RuntimeError")]
)
def test_what_cannot_be_drawn_is_named(family, size, said):
    for workers in (0, 1):
        with (
            Pool({family: 1.0}, size=size, capacity=2, renewed=1, workers=workers, part=3, parts=4) as pool,
            pytest.raises(DataError, match=rf"^{family}/train/3 cannot be drawn .*{said}") as error,
        ):
            pool.fill()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("begun", [False, True])
def test_a_killed_worker_is_an_error(begun):
    with Pool(MIXED, workers=2, **SMALL) as pool:
        if begun:
            pool.fill()
        os.kill(pool._renderers._processes[1].pid, signal.SIGKILL)
        with pytest.raises(DataError, match="a worker died"):
            deque(map(pool.fill, range(1000)), maxlen=0)


HELD = """
import time
from homunculus.train.pool import Pool
if __name__ == "__main__":
    pool = Pool({"scenes": 1.0}, size=(80, 64), capacity=2, renewed=1, workers=2)
    pool.fill()
    print(*(process.pid for process in pool._renderers._processes), flush=True)
    time.sleep(0 if END else 60)
"""


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("killed", [True, False])
def test_workers_end_with_their_parent(killed, tmp_path):
    script = tmp_path / "held.py"
    script.write_text(HELD.replace("END", str(not killed)))
    environment = ENVIRONMENT | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(
        [sys.executable, "-W", "error", str(script)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    workers = [int(process) for process in run.stdout.readline().split()]
    assert len(workers) == 2
    if killed:
        assert all(map(alive, workers))
        run.kill()
    said = run.communicate(timeout=60)[1]
    assert said == "" and run.returncode == (-signal.SIGKILL if killed else 0)
    until = time.monotonic() + 30
    while any(map(alive, workers)):
        assert time.monotonic() < until, "workers outlive their parent"
        time.sleep(0.05)
    own = tuple(f"torch_{process}_" for process in (run.pid, *workers))  # other tests may share memory just now
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(own)]


@pytest.mark.gpu
def test_the_device_makes_no_difference():
    alone = filled()
    with filled(workers=2, device="cuda") as pool:
        for step in range(8):
            there, here = pool.draw(16, step), alone.draw(16, step)
            for name in ("images", "question", "answer", "boxes", "slot", "number"):
                assert torch.equal(getattr(there, name).cpu(), getattr(here, name)), name
            pool.advance()
            alone.advance()


@pytest.mark.gpu
def test_the_hot_path_never_waits_for_the_device():
    with filled(workers=2, device="cuda") as pool:
        pool.draw(4, 0)
        with no_sync():
            for step in range(4):
                pool.draw(4, step)
                pool.advance()
