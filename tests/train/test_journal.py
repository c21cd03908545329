"""Lines that survive a kill, what is told, and curves."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from homunculus.errors import DataError
from homunculus.train.journal import Journal, Teller, plot, read_journal, told


def lines(*steps: int) -> list[dict]:
    return [{"step": step, "loss": 1 / (step + 1), "error": 0.5, "samples": 8.0} for step in steps]


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 40))
def test_wherever_a_kill_cuts_it_the_lines_before_the_checkpoint_stay(tmp_path_factory, written, step, lost):
    path = tmp_path_factory.mktemp("journal") / "stage.jsonl"
    with Journal(path) as journal:
        journal.write(lines(*range(written)))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - lost])
    whole = len(read_journal(path))
    with Journal(path, step) as journal:
        journal.write(lines(step))
    assert read_journal(path) == lines(*range(min(step, whole)), step)


def test_what_is_not_finite_is_null(tmp_path):
    with Journal(tmp_path / "a.jsonl") as journal:
        journal.write([{"step": 0, "loss": math.nan, "evaluation": {"score": math.inf}}])
    strict = json.loads((tmp_path / "a.jsonl").read_text(), parse_constant=pytest.fail)
    assert strict == {"step": 0, "loss": None, "evaluation": {"score": None}}
    assert told(strict) == ""


def test_lines_are_there_as_soon_as_they_are_written(tmp_path):
    with Journal(tmp_path / "a.jsonl") as journal:
        journal.write(lines(0, 1))
        assert read_journal(tmp_path / "a.jsonl") == lines(0, 1)


def test_another_file_is_not_taken_for_a_journal(tmp_path):
    (tmp_path / "a.jsonl").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"a.jsonl is not a journal"):
        Journal(tmp_path / "a.jsonl")


def test_a_line_every_ten_seconds_and_at_the_end(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr("homunculus.train.journal.time.monotonic", lambda: clock[0])
    with Teller("stage", steps=100, step=40) as teller:
        for step in range(41, 101):
            clock[0] += 1
            teller.tell(step, {"step": step - 1, "loss": 0.5, "evaluation": {"score": 0.25}})
    printed = capsys.readouterr().err.splitlines()
    assert printed[0] == "stage: step 50 of 100  loss 0.5  score 0.25  50 s left"
    assert [line.split()[2] for line in printed] == ["50", "60", "70", "80", "90", "100"]


def test_quiet_is_quiet(capsys):
    with Teller("stage", steps=1, step=0, shown=False) as teller:
        teller.tell(1, {"loss": 1.0})
        teller.say("nothing")
    assert capsys.readouterr() == ("", "")


def test_curves_of_all_stages_are_drawn(tmp_path):
    with pytest.raises(DataError, match="no journal with lines"):
        plot(tmp_path)
    for name, steps in (("one", 1), ("two", 900)):
        with Journal(tmp_path / f"{name}.jsonl") as journal:
            journal.write(
                line | {"evaluation": {"loss": 0.1}} if line["step"] % 3 else line for line in lines(*range(steps))
            )
            journal.write([{"step": steps, "loss": None, "skipped": True}])
    with Image.open(plot(tmp_path)) as picture:
        colours = len(picture.convert("RGB").getcolors(1 << 20))
        height = picture.height
    assert colours > 10, "lines were drawn"
    (tmp_path / "one.jsonl").unlink()
    with Image.open(plot(tmp_path)) as picture:
        assert picture.height * 2 == height
