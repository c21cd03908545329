"""DocVQA, VQAv2 and TextVQA from small parquet files with the columns they have on the hub."""

import io
import sys
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from homunculus.data import hub
from homunculus.errors import DataError
from homunculus.eval import score

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import datasets


def png(shade: int, mode: str = "RGB") -> dict:
    file = io.BytesIO()
    Image.new("RGB", (7, 5), (shade, 0, 255)).convert(mode).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


TEN = ["stop"] * 2 + ["Stop!"] + ["go"] * 4 + ["nothing"] * 3
ROWS = {
    "docvqa": [
        {
            "questionId": str(100 + number),
            "question": "What is the total?",
            "question_types": ["form", "table/list"] if number else ["layout"],
            "image": png(number),
            "docId": 14465,
            "ucsf_document_id": "pybv0228",
            "ucsf_document_page_no": "81",
            "answers": ["41.20", "$41.20"],
            "data_split": "val",
        }
        for number in range(3)
    ],
    "vqav2": [
        {
            "question_type": "what is",
            "multiple_choice_answer": "go",
            "answers": [{"answer": a, "answer_confidence": "yes", "answer_id": i} for i, a in enumerate(TEN, 1)],
            "image_id": 262148,
            "answer_type": "other",
            "question_id": 262148000 + number,
            "question": "What is on the sign?",
            "image": png(number),
        }
        for number in range(3)
    ],
    "textvqa": [
        {
            "image_id": "003a8ae2ef43b901",
            "question_id": 34602 + number,
            "question": "what does it say?",
            "question_tokens": ["what", "does", "it", "say"],
            "image": png(number),
            "image_width": 7,
            "image_height": 5,
            "flickr_original_url": "",
            "flickr_300k_url": "",
            "answers": TEN,
            "image_classes": ["Traffic sign"],
            "set_name": "val",
        }
        for number in range(3)
    ],
}


def write(name: str, path, rows=None, decoded: bool = True) -> None:
    """As `datasets` writes it, or without saying that the column holds images."""
    table = pa.Table.from_pylist(rows or ROWS[name])
    if decoded:
        features = datasets.Features.from_arrow_schema(table.schema) | {"image": datasets.Image()}
        table = table.replace_schema_metadata(datasets.Features(features).arrow_schema.metadata)
    pq.write_table(table, path)


@pytest.mark.parametrize("decoded", [True, False])
@pytest.mark.parametrize("name", hub.SOURCES)
def test_records_of_a_file(name, decoded, tmp_path):
    write(name, tmp_path / "some.parquet", decoded=decoded)
    records = list(hub.load(name, path=tmp_path / "some.parquet"))
    assert [record.image[0, 0].tolist() for record in records] == [[0, 0, 255], [1, 0, 255], [2, 0, 255]]
    assert all(record.image.shape == (5, 7, 3) and record.image.dtype == np.uint8 for record in records)
    key = hub.SOURCES[name].key
    assert [record.key for record in records] == [f"{name}/validation/{row[key]}" for row in ROWS[name]]
    for record, row in zip(records, ROWS[name], strict=True):
        assert record.question.text == row["question"] and not record.followups
        assert record.question.boxes == () and record.question.region is None


def test_answers_and_kinds(tmp_path):
    for name in hub.SOURCES:
        write(name, tmp_path / f"{name}.parquet")
    found = {name: list(hub.load(name, path=tmp_path / f"{name}.parquet"))[1] for name in hub.SOURCES}
    assert found["docvqa"].question.answers == ("41.20", "$41.20")
    assert found["docvqa"].question.kind == "form, table/list"
    assert found["docvqa"].meta == {
        "docId": 14465,
        "ucsf_document_id": "pybv0228",
        "ucsf_document_page_no": "81",
        "data_split": "val",
    }
    for name in ("vqav2", "textvqa"):
        question = found[name].question
        assert question.answer == "go" and sorted(question.answers) == sorted(TEN)
        assert score(name, "STOP", question.answers) == pytest.approx(0.9)
    assert found["vqav2"].question.kind == "what is" and found["vqav2"].meta["answer_type"] == "other"
    assert found["textvqa"].question.kind == "" and found["textvqa"].meta["image_classes"] == ["Traffic sign"]


def test_splits_of_a_folder(tmp_path):
    folder = tmp_path / "DocVQA"
    folder.mkdir()
    write("docvqa", folder / "validation-00000-of-00002.parquet", ROWS["docvqa"][:1])
    write("docvqa", folder / "validation-00001-of-00002.parquet", ROWS["docvqa"][1:])
    write("docvqa", folder / "test-00000-of-00001.parquet", ROWS["docvqa"][:1])
    for path in (tmp_path, folder):  # a copy of the repository, or of its config
        assert [record.key[-3:] for record in hub.load("docvqa", path=path)] == ["100", "101", "102"]
    plain = tmp_path / "plain"
    plain.mkdir()
    write("textvqa", plain / "a.parquet")
    assert len(list(hub.load("textvqa", "train", plain))) == 3


def test_records_are_streamed(tmp_path):
    broken = ROWS["docvqa"][0] | {"image": {"bytes": b"no image", "path": None}}
    write("docvqa", tmp_path / "a.parquet", [ROWS["docvqa"][0], broken])
    records = hub.load("docvqa", path=tmp_path)
    assert next(records).key == "docvqa/validation/100"
    with pytest.raises(DataError, match="the image of docvqa/validation/100 cannot be read"):
        next(records)


def test_grey_and_transparent_images(tmp_path):
    rows = [ROWS["docvqa"][0] | {"image": png(200, mode)} for mode in ("L", "RGBA", "P", "1")]
    write("docvqa", tmp_path / "a.parquet", rows)
    assert [record.image.shape for record in hub.load("docvqa", path=tmp_path)] == [(5, 7, 3)] * 4


# ------------------------------------------------------------------------------------------------------ refusals


def refused(*arguments, **options) -> str:
    with pytest.raises(DataError) as error:
        next(hub.load(*arguments, **options))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_missing_columns_are_named(tmp_path):
    rows = [{name: value for name, value in row.items() if name != "questionId"} for row in ROWS["docvqa"]]
    write("docvqa", tmp_path / "a.parquet", rows)
    assert "has no column questionId, only question," in refused("docvqa", path=tmp_path)
    write("textvqa", tmp_path / "b.parquet")
    assert "has no column question_type," in refused("vqav2", path=tmp_path / "b.parquet")


def test_rows_without_answers(tmp_path):
    write("textvqa", tmp_path / "a.parquet", [ROWS["textvqa"][0] | {"answers": [""] * 10}])
    assert "textvqa/validation/34602 has no answers" in refused("textvqa", path=tmp_path)


def test_unknown_names_and_places(tmp_path):
    assert "choose one of docvqa, vqav2, textvqa" in refused("gqa")
    assert "has no answers in a split 'test': choose validation" in refused("docvqa", "test")
    assert "does not exist" in refused("docvqa", path=tmp_path / "none")
    assert "holds no parquet files" in refused("docvqa", path=tmp_path)
    write("textvqa", tmp_path / "train-00000-of-00001.parquet")
    assert "holds only the splits train" in refused("textvqa", path=tmp_path)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    assert "cannot be read" in refused("textvqa", path=tmp_path / "bad.parquet")


def test_no_network(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    message = refused("vqav2")
    assert "lmms-lab/VQAv2" in message and "check the network, or give path=" in message


def test_no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install 'homunculus[eval]'" in refused("docvqa")
