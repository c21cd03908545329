"""JSON read in pieces: the same as whole, and refused in one line where it is none."""

import json

import pytest

from homunculus.errors import DataError
from homunculus.gaze import json_stream


def test_large_files_are_read_in_pieces(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    value = {"numbers": [1, -2.5e10, 3], "text": 'a "quoted" }] word', "nothing": None, "deep": [[{"x": [1]}]] * 3}
    file.write_text(json.dumps({"first": [value] * 40, "version": 12, "second": [], "third": [1234567, "x"]}, indent=1))
    whole = [("first", value)] * 40 + [("version", 12), ("third", 1234567), ("third", "x")]
    for piece in (1, 7, 64, 1 << 20):
        monkeypatch.setattr(json_stream, "PIECE", piece)
        assert list(json_stream.elements(file)) == whole


def test_a_file_is_not_held_whole(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    file.write_text(json.dumps([{"fixations": [[1, 2]] * 100}] * 500))
    longest = 0
    original = json_stream._Reader.more

    def more(self, characters):
        nonlocal longest
        original(self, characters)
        longest = max(longest, len(self.text))

    monkeypatch.setattr(json_stream, "PIECE", 4096)
    monkeypatch.setattr(json_stream._Reader, "more", more)
    assert len(list(json_stream.elements(file))) == 500
    assert longest < file.stat().st_size / 20


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_file_that_was_cut_off_is_refused_wherever_it_was_cut(tmp_path, cut):
    file = tmp_path / "a.json"
    text = json.dumps({"images": [{"id": 1, "name": "a b"}], "annotations": [{"id": 2, "fixations": [[1, 2]]}]})
    file.write_text(text[:-cut])
    with pytest.raises(DataError, match=r"a\.json"):
        list(json_stream.elements(file))


def test_what_is_before_and_behind(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(b"\xef\xbb\xbf [1, 2] \n")  # a byte order mark, spaces
    assert list(json_stream.elements(file)) == [("", 1), ("", 2)]
    for text in ("[1, 2] more", '{"a": 1} {"a": 1}', "[1][2]", "[1]]"):
        file.write_text(text)
        with pytest.raises(DataError, match=r"a\.json is no JSON"):
            list(json_stream.elements(file))


@pytest.mark.parametrize("text", ["[" + "[" * 200_000 + "]" * 200_000 + "]", "[" + "1" * 5000 + "]"])
def test_what_python_will_not_read_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=r"a\.json is no JSON"):
        list(json_stream.elements(tmp_path / "a.json"))
