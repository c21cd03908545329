"""Rows that are packed to be kept give the report that they gave before."""

import json

import pytest

from bench.pack import main, packed
from homunculus.eval.lines import read_rows
from homunculus.eval.rows import Kept
from homunculus.report.blocks import to_markdown
from homunculus.report.page import document
from homunculus.report.sheet import Sheet
from tests.report.made_up import rich


def test_the_report_is_the_same(tmp_path):
    plain, kept = rich(tmp_path / "rows.jsonl", questions=40), tmp_path / "kept.jsonl.xz"
    main([str(plain), "--out", str(kept)])
    assert kept.stat().st_size < plain.stat().st_size / 10
    before, after = (to_markdown(document(Sheet([Kept(file, process=None)]))) for file in (plain, kept))
    assert before == after


def test_only_what_follows_is_left_out(tmp_path):
    file = rich(tmp_path / "rows.jsonl", questions=10)
    lines = read_rows(file)
    shorter = list(packed(lines))
    assert len(shorter) == len(lines)
    with (tmp_path / "again.jsonl").open("w") as again:
        again.writelines(json.dumps(line) + "\n" for line in shorter)
    first, second = (Kept(one, process=None).rows for one in (file, tmp_path / "again.jsonl"))
    assert first.keys() == second.keys()
    for mark, rows in first.items():
        for key, row in rows.items():
            other = second[mark][key]
            assert set(row) - set(other) <= {"logp"}
            for name in set(row) & set(other):
                own = row[name]
                assert other[name] == (pytest.approx(own, rel=6e-3) if isinstance(own, float) else own), name


def test_packed_rows_are_gone_on_with(tmp_path):
    """Unpacked, they are rows like any: another answer can be added, and packed again they are what they were."""
    plain, kept, again = (tmp_path / name for name in ("rows.jsonl", "kept.jsonl.xz", "again.jsonl"))
    main([str(rich(plain, questions=10)), "--out", str(kept)])
    main([str(kept), "--out", str(again)])
    assert Kept(again).rows == Kept(kept, process=None).rows
    repacked = tmp_path / "repacked.jsonl.xz"
    main([str(again), "--out", str(repacked)])
    assert repacked.read_bytes() == kept.read_bytes()


def test_what_would_lose_rows_is_refused(tmp_path, capsys):
    for out, said in (("kept.jsonl.xz", "does not exist"), ("kept.zip", ".jsonl.xz")):
        with pytest.raises(SystemExit):
            main([str(tmp_path / "none.jsonl"), "--out", str(tmp_path / out)])
        assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    plain = rich(tmp_path / "rows.jsonl", questions=10)
    before = plain.read_bytes()
    with pytest.raises(SystemExit):
        main([str(plain), "--out", str(plain)])
    assert "choose another name" in capsys.readouterr().err and plain.read_bytes() == before
