"""Rows that are packed to be kept give the report that they gave before."""

import json
import lzma
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.pack import main
from homunculus.errors import DataError, OutputError
from homunculus.eval.columns import from_columns, to_columns
from homunculus.eval.lines import read_rows
from homunculus.eval.plans import Plan
from homunculus.eval.rows import Kept, is_row
from homunculus.report.blocks import to_markdown
from homunculus.report.page import document
from homunculus.report.sheet import Sheet
from tests.report.made_up import rich


def test_the_report_is_the_same(tmp_path):
    """Also where images have numbers of several digits, which are sorted otherwise than they were drawn."""
    plain, kept = rich(tmp_path / "rows.jsonl", questions=80), tmp_path / "kept.jsonl.xz"
    main([str(plain), "--out", str(kept)])
    assert kept.stat().st_size < plain.stat().st_size / 100
    before, after = (to_markdown(document(Sheet([Kept(file, process=None)]))) for file in (plain, kept))
    assert before == after


def test_only_what_follows_is_left_out(tmp_path):
    file = rich(tmp_path / "rows.jsonl", questions=10)
    with (tmp_path / "again.jsonl").open("w") as again:
        again.writelines(json.dumps(line) + "\n" for line in from_columns(to_columns(read_rows(file, is_row))))
    first, second = (Kept(one, process=None).rows for one in (file, tmp_path / "again.jsonl"))
    assert first.keys() == second.keys()
    for mark, rows in first.items():
        assert rows.keys() == second[mark].keys()
        for key, row in rows.items():
            other = second[mark][key]
            assert set(row) - set(other) <= {"logp"}
            for name in set(row) & set(other):
                own = row[name]
                assert other[name] == (pytest.approx(own, rel=6e-3) if isinstance(own, float) else own), name


def test_what_was_said_follows_only_where_it_is_what_counts_first():
    fact = {"key": "k", "answers": ["7 May", "7.5."], "size": [64, 64]}
    said = {"a": "7 May", "b": "7 may", "c": "7.5.", "d": "", "e": "8 May"}
    exact = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0, "e": 0.0}
    ways = [{"mark": mark, "size": [64, 64]} for mark in said]
    rows = [{"mark": mark, "key": "k", "said": text, "exact": exact[mark]} for mark, text in said.items()]
    lines = [*ways, fact, *rows]
    column = list(to_columns(lines))[-1]
    assert column["said"] == [None, "7 may", "7.5.", "", "8 May"]
    assert [line for line in from_columns(to_columns(lines)) if line.get("key") and "mark" in line] == rows
    other = fact | {"answers": ["8 May"], "size": [32, 32]}  # another size asks otherwise: nothing follows
    assert list(to_columns([*ways, fact, other, *rows]))[-1]["said"] == list(said.values())


def test_what_other_processes_wrote_goes_in(tmp_path, capsys):
    """Also where their files lack what the first one tells: of what was asked, and of questions."""
    lines = read_rows(rich(tmp_path / "whole.jsonl", questions=20), is_row)
    told = [line for line in lines if "mark" not in line or "key" not in line]
    rows = [line for line in lines if "mark" in line and "key" in line]
    parts = {"rows.jsonl": [*told, *rows[::2]], "rows.1.jsonl": rows[1::2]}
    for name, own in parts.items():
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in own))
    first, second = tmp_path / "rows.jsonl", tmp_path / "rows.1.jsonl"
    main([str(first), "--out", str(tmp_path / "kept.jsonl.xz")])
    assert f"{len(rows)} answers" in capsys.readouterr().out
    expected = Kept(tmp_path / "whole.jsonl", None).rows
    for kept in (Kept(first, None), Kept(first, None, second), Kept(second, None, first)):
        assert kept.rows == expected
    assert Kept(tmp_path / "kept.jsonl.xz", None).rows.keys() == expected.keys()
    with pytest.raises(DataError, match="no file says what was asked or how: give all files"):
        Kept(second, None)


def test_packed_rows_are_gone_on_with(tmp_path):
    """Unpacked, they are rows like any: another answer can be added, and packed again they are what they were."""
    plain, kept, again = (tmp_path / name for name in ("rows.jsonl", "kept.jsonl.xz", "again.jsonl"))
    main([str(rich(plain, questions=10)), "--out", str(kept)])
    main([str(kept), "--out", str(again)])
    assert Kept(again).rows == Kept(kept, process=None).rows
    repacked = tmp_path / "repacked.jsonl.xz"
    main([str(again), "--out", str(repacked)])
    assert repacked.read_bytes() == kept.read_bytes()


def test_columns_are_read_whatever_their_file_is_called(tmp_path):
    """Unpacked by another program they are what they were; beside other files their ways keep their numbers."""
    first, second = rich(tmp_path / "rows.jsonl", questions=10), tmp_path / "second.jsonl"
    way = {"mark": "other", "weights": "w"} | Plan("scenes").settings()
    fact, answer = {"key": "k", "image": "i", "of": 1, "question": "?", "answers": ["2"]}, {"mark": "other", "key": "k"}
    lines = way, fact | {"size": [1024, 1024]}, answer | {"said": "2", "exact": 1.0}
    second.write_text("".join(json.dumps(line) + "\n" for line in lines))
    kept, plain, both = tmp_path / "kept.jsonl.xz", tmp_path / "plain.jsonl", tmp_path / "both.jsonl.xz"
    main([str(first), "--out", str(kept)])
    plain.write_bytes(lzma.decompress(kept.read_bytes()))
    assert Kept(plain, None).rows == Kept(kept, None).rows
    main([str(second), str(plain), "--out", str(both)])
    assert Kept(both, None).rows == Kept(kept, None, second).rows
    Kept(plain).add(Plan("scenes", budget=7), "w", [fact | {"said": "2", "exact": 1.0}])  # goes on as any other
    assert len(Kept(plain, None).rows) == len(Kept(kept, None).rows) + 1


def test_packed_files_one_behind_the_other_are_refused(tmp_path):
    """The numbers of the second would be taken for ways of the first."""
    kept, twice = tmp_path / "kept.jsonl.xz", tmp_path / "twice.jsonl.xz"
    main([str(rich(tmp_path / "rows.jsonl", questions=10)), "--out", str(kept)])
    twice.write_bytes(2 * kept.read_bytes())
    with pytest.raises(OutputError, match="one behind the other"):
        Kept(twice, None)


def test_what_would_lose_rows_is_refused(tmp_path, capsys):
    for out, said in (("kept.jsonl.xz", "does not exist"), ("kept.zip", ".jsonl.xz")):
        with pytest.raises(SystemExit):
            main([str(tmp_path / "none.jsonl"), "--out", str(tmp_path / out)])
        assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    plain = rich(tmp_path / "rows.jsonl", questions=10)
    before = plain.read_bytes()
    for rows in ("rows.jsonl", "none.jsonl", "empty.jsonl"):  # whatever it holds
        (tmp_path / "empty.jsonl").touch()
        with pytest.raises(SystemExit):
            main([str(tmp_path / rows), "--out", str(plain)])
        assert "choose another name" in capsys.readouterr().err and plain.read_bytes() == before
    with pytest.raises(SystemExit):
        main([str(tmp_path / "empty.jsonl"), "--out", str(tmp_path / "kept.jsonl.xz")])
    assert "no rows to write" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", "empty.jsonl"}


def test_packed_rows_are_replaced_by_more_and_not_by_fewer(tmp_path, capsys):
    """Answers count, and all else that a file tells, such as how long they took; what both have is no loss."""
    small, large, kept = tmp_path / "small.jsonl", tmp_path / "large.jsonl", tmp_path / "kept.jsonl.xz"
    rich(small, questions=10)
    answers = len(rich(large, questions=20).read_text().splitlines()) - len(small.read_text().splitlines())
    main([str(small), "--out", str(kept)])
    main([str(large), "--out", str(kept)])
    before = kept.read_bytes()
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([str(small), "--out", str(kept)])
    said = capsys.readouterr().err
    found = re.search(
        r"kept\.jsonl\.xz has (\d+) answers and (\d+) other rows that small\.jsonl lacks: give both", said
    )
    assert found and 0 < int(found[1]) < answers and int(found[2]) > 0 and kept.read_bytes() == before
    spent = {"spent": "m", "questions": 8, "seconds": 1.5, "device": "Some GPU"}
    timed = tmp_path / "timed.jsonl"
    timed.write_text(json.dumps(spent) + "\n")
    main([str(timed), str(kept), "--out", str(kept)])  # both, as it says
    assert Kept(kept, None).spent == [spent] and Kept(kept, None).rows == Kept(large, None, kept).rows
    with pytest.raises(SystemExit):
        main([str(large), "--out", str(kept)])
    assert "0 answers and 1 other rows that large.jsonl lacks" in capsys.readouterr().err
    other = tmp_path / "other.jsonl.xz"
    other.write_bytes(b"no rows at all")
    with pytest.raises(OutputError, match=r"other\.jsonl\.xz"):
        main([str(large), "--out", str(other)])
    assert other.read_bytes() == b"no rows at all"


def test_time_counts_once_under_two_names(tmp_path):
    """Packed rows beside those they were made of, and a copy: what was spent is not spent twice."""
    plain, kept, copy = tmp_path / "rows.jsonl", tmp_path / "kept.jsonl.xz", tmp_path / "copy.jsonl"
    rich(plain, questions=8)
    spent = {"spent": "m", "questions": 8, "seconds": 1.23457, "device": "Some GPU"}
    with plain.open("a") as out:
        out.writelines(json.dumps(line) + "\n" for line in (spent, spent | {"seconds": 1.23458}))
    main([str(plain), "--out", str(kept)])
    copy.write_bytes(plain.read_bytes())
    alone = Kept(plain, None)
    assert alone.costs and [line["seconds"] for line in alone.spent] == [1.23457, 1.23458]
    for files in ((kept,), (kept, plain), (plain, copy), (copy, kept, plain)):
        both = Kept(files[0], None, *files[1:])
        assert both.costs == alone.costs and both.spent == alone.spent


def test_what_is_packed_stays_as_it_is(tmp_path):
    """A line that is cut short may still be written."""
    rows = rich(tmp_path / "rows.jsonl", questions=8)
    text = rows.read_bytes() + b'{"mark":"m","ke'
    for file in (rows, tmp_path / "rows.1.jsonl"):
        file.write_bytes(text)
    main([str(rows), "--out", str(tmp_path / "kept.jsonl.xz")])
    assert rows.read_bytes() == (tmp_path / "rows.1.jsonl").read_bytes() == text


def test_answers_that_nobody_tells_of_are_not_packed(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"mark":"m","key":"scenes/val/0#0","exact":1.0}\n')
    with pytest.raises(DataError, match="no file says what was asked or how: give all files"):
        main([str(rows), "--out", str(tmp_path / "kept.jsonl.xz")])


def test_what_is_wrong_is_said_in_one_line(tmp_path):
    """As a script says it, here and in every other that runs plainly."""
    (tmp_path / "rows.jsonl").write_text('{"weights":"a"}\nnot a row\n{"weights":"b"}\n')
    command = [sys.executable, "-m", "bench.pack", "rows.jsonl", "--out", "rows.jsonl.xz"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and not (tmp_path / "rows.jsonl.xz").exists()
    assert done.stderr.startswith("error: cannot go on from rows.jsonl (line 2 is not JSON)")
    assert done.stderr.count("\n") == 1
