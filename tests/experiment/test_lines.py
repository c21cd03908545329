"""Files of rows: what is not ours stays as it is, what a killed run left is mended, a full disk leaves no half row."""

import gzip
import io
import json
import lzma
import resource
from contextlib import suppress

import pytest

from homunculus.errors import DataError, HomunculusError, OutputError
from homunculus.eval.lines import append_rows, read_rows
from homunculus.eval.plans import Plan
from homunculus.eval.rows import Kept

MODEL = b'{"weights":"w","tuned":null}\n'
SETTINGS = {"mark": "m", "weights": "w"} | Plan("scenes").settings()
SHOWN = {"image": "scenes/val/0", "of": 1, "question": "How many?", "answers": ["2"]}


@pytest.mark.parametrize(
    "text",
    [
        b"my only copy of notes",
        b"my only copy\nof notes",
        b'{"name": "a project", "version": 1}',  # somebody's settings, on one line
        b'{\n  "name": "a project"\n}',
        b'{"mark":"m","wei',  # no whole row says that it is ours
        b"{",
        b'{"name":"a"}\n{"name":"b"}\n{"na',
        b'{"name":"a"}\n{"name":"b"}',
        MODEL + b"and my notes",
        MODEL + b"{and my notes",
        MODEL + b'{"name":"a"}',
        MODEL + b'no row\n{"weights":"v","tu',
        b"\0" * 100,
        b"   ",
        b"\xff\xfe\n",
    ],
)
def test_what_is_not_ours_is_refused_and_stays(tmp_path, text):
    file = tmp_path / "notes.txt"
    file.write_bytes(text)
    with pytest.raises(HomunculusError, match=r"notes\.txt"):
        Kept(file)
    assert file.read_bytes() == text and len(list(tmp_path.iterdir())) == 1


def test_only_the_beginning_of_a_row_is_cut_off(tmp_path):
    """One that lacks nothing but its end is a row, and what is written next stands on a line of its own."""
    file, other = tmp_path / "rows.jsonl", b'{"weights":"v","tuned":null}'
    for end, left, models in (
        (b"", b"", ["w"]),
        (b"{", b"", ["w"]),
        (b'{"', b"", ["w"]),
        (other[:-1], b"", ["w"]),
        (other, other + b"\n", ["w", "v"]),
        (b"\n\n", b"\n\n", ["w"]),
    ):
        file.write_bytes(MODEL + end)
        assert list(Kept(file, None).models) == models and file.read_bytes() == MODEL + end
        kept = Kept(file)
        assert list(kept.models) == models and file.read_bytes() == MODEL + left
        kept.add_model("u", {"tuned": None})
        assert list(Kept(file).models) == [*models, "u"]


def test_a_first_line_that_is_being_written_is_no_row_yet(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(MODEL[:9])
    assert not Kept(file, None).models and file.read_bytes() == MODEL[:9]


@pytest.mark.parametrize(
    "line",
    [
        "5",
        "[1,2]",
        "null",
        '"mark"',
        "{}",
        '{"a":1}',
        '{"key":"x"}',
        '{"mark":"m","weights":"w"}',
        '{"mark":"m","key":"k"}',
        '{"mark":["m"],"key":"k","exact":1.0}',
        '{"mark":"m","key":"k","exact":"yes"}',
        '{"weights":["w"]}',
        '{"spent":"m"}',
        '{"cost":"much"}',
        '{"asked":"k","by":[0]}',
        '{"asked":"k","by":[0],"exact":[1,0]}',
        '{"asked":"k","by":["0"],"exact":[1]}',
        '{"asked":"k","by":[-1],"exact":[1]}',
        json.dumps({name: value for name, value in SETTINGS.items() if name != "budget"}),
        '{"key":"documents/val/0","print":"p","budget":273,"allocator":"topk","score":0.5}',  # of legibility
        json.dumps({"key": "scenes/val/0#0", "size": [[64, 64]]} | SHOWN),
    ],
)
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.xz"])
def test_rows_of_another_kind_are_told_of_by_their_line(tmp_path, line, name):
    file, text = tmp_path / name, MODEL + b"\n" + line.encode() + b"\n" + MODEL
    file.write_bytes(lzma.compress(text) if name.endswith(".xz") else text)
    with pytest.raises(HomunculusError, match=r"rows\.jsonl.*line 3 is no row.*(give|name) a") as told:
        Kept(file, None)
    assert "\n" not in str(told.value)


def test_files_of_columns_that_do_not_fit_are_refused(tmp_path):
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"asked":"k","by":[7],"exact":[1]}\n'))
    with pytest.raises(OutputError, match="cannot go on from"):
        Kept(file, None)


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_damaged_packed_files_are_told_of_in_one_line(tmp_path, suffix, pack):
    file, packed = tmp_path / f"rows.jsonl{suffix}", pack(MODEL * 9)
    for place in range(len(packed)):
        file.write_bytes(packed[:place] + bytes([packed[place] ^ 255]) + packed[place + 1 :])
        with suppress(OutputError):
            assert set(Kept(file, None).models) == {"w"}  # a header's time, say, is no harm
    file.write_bytes(packed[:-9])
    with pytest.raises(OutputError, match="cannot go on from"):
        Kept(file, None)


def test_nothing_is_too_deep_to_be_refused(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(MODEL + b"[" * 200_000 + b"\n")
    with pytest.raises(OutputError, match="cannot go on from"):
        Kept(file)


def test_answers_to_what_nobody_asked_are_refused(tmp_path):
    file = tmp_path / "rows.jsonl"
    lines = SETTINGS, {"mark": "m", "key": "scenes/val/0#0", "exact": 1.0}
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError, match="no file says what was asked or how"):
        Kept(file)


def test_blank_lines_are_none(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\n" + MODEL.replace(b"\n", b"\r\n") + b"  \n\n" + MODEL.replace(b'"w"', b'"v"'))
    assert list(Kept(file).models) == ["w", "v"]
    file.write_bytes(file.read_bytes() + b"{}\n")
    with pytest.raises(DataError, match="line 6"):
        Kept(file)


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path):
    """What there is room for only in part is not written at all, here under a limit on how long a file may be."""
    file = tmp_path / "rows.jsonl"
    kept = Kept(file)
    fact = {"key": "scenes/val/0#0"} | SHOWN | {"exact": 1.0}
    kept.add(Plan("scenes", budget=64), "w", [fact])
    before, limit = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 30, limit[1]))
    try:
        with pytest.raises(OutputError, match="make room there, or choose another --out"):
            kept.add(Plan("scenes", budget=32), "w", [fact])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert file.read_bytes() == before and len(kept.rows) == 1
    again = Kept(file)
    again.add(Plan("scenes", budget=32), "w", [fact])
    assert [len(own) for own in Kept(file).rows.values()] == [1, 1]


def test_what_is_taken_in_parts_is_written_whole(tmp_path, monkeypatch):
    file, parts = tmp_path / "rows.jsonl", []

    class Slow(io.FileIO):
        def write(self, text):
            parts.append(len(text))
            return super().write(text[:7])

    monkeypatch.setattr(type(file), "open", lambda file, mode, buffering: Slow(file, mode))
    append_rows(file, [{"a": 1}, {"b": 2}])
    monkeypatch.undo()
    assert parts == [16, 9, 2] and read_rows(file, lambda row: True) == [{"a": 1}, {"b": 2}]
