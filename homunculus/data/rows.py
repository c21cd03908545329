"""A record as a row of a parquet file, and back: the columns, and what `datasets` wants to know about them."""

import io
import json
from typing import Any, Literal

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from homunculus.data.record import Question, Record
from homunculus.errors import DataError

ImageFormat = Literal["png", "jpeg"]
COLUMNS = ("key", "image", "question", "answers", "boxes", "region", "kind", "followups", "meta")


def to_row(record: Record, image_format: ImageFormat = "png") -> dict[str, Any]:
    """A record as the columns of a file."""
    name = f"{record.key.replace('/', '-')}.{image_format}"
    image = {"bytes": encoded(record.image, image_format), "path": name}
    meta = json.dumps(dict(record.meta), sort_keys=True, ensure_ascii=False)
    followups = [_question_row(question) for question in record.followups]
    row = _question_row(record.question) | {"followups": followups, "meta": meta}
    return {"key": record.key, "image": image} | row


def from_row(row: dict[str, Any]) -> Record:
    """The record that `to_row` took apart; tuples in its meta come back as lists."""
    with Image.open(io.BytesIO(row["image"]["bytes"])) as image:
        pixels = np.array(image.convert("RGB"))
    followups = tuple(map(_question, row["followups"]))
    return Record(row["key"], pixels, _question(row), followups, json.loads(row["meta"]))


def encoded(image: UInt8[np.ndarray, "h w 3"], image_format: ImageFormat) -> bytes:
    """PNG, every pixel kept; or JPEG at quality 92 with colours at full resolution, at a fraction of the size."""
    file = io.BytesIO()
    if image_format == "png":
        Image.fromarray(image).save(file, "PNG", compress_level=1)
    else:
        Image.fromarray(image).save(file, "JPEG", quality=92, subsampling=0)
    return file.getvalue()


def _question_row(question: Question) -> dict[str, Any]:
    return {
        "question": question.text,
        "answers": list(question.answers),
        "boxes": [list(map(float, box)) for box in question.boxes],
        "region": question.region,
        "kind": question.kind,
    }


def _question(row: dict[str, Any]) -> Question:
    boxes = tuple((x0, y0, x1, y1) for x0, y0, x1, y1 in row["boxes"])
    return Question(row["question"], tuple(row["answers"]), boxes, row["region"], row["kind"])


def schema() -> Any:
    """The columns, with what `datasets` wants to know in order to decode the image."""
    import pyarrow as pa

    question = {
        "question": pa.string(),
        "answers": pa.list_(pa.string()),
        "boxes": pa.list_(pa.list_(pa.float64())),
        "region": pa.string(),
        "kind": pa.string(),
    }
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    followups = pa.list_(pa.struct(list(question.items())))
    columns = {"key": pa.string(), "image": image} | question | {"followups": followups, "meta": pa.string()}
    features = {name: _feature(kind) for name, kind in columns.items()} | {"image": {"_type": "Image"}}
    return pa.schema(list(columns.items()), {"huggingface": json.dumps({"info": {"features": features}})})


def _feature(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_list(kind):
        return [_feature(kind.value_type)]
    if pa.types.is_struct(kind):
        return {field.name: _feature(field.type) for field in kind}
    return {"dtype": "float64" if pa.types.is_float64(kind) else str(kind), "_type": "Value"}


def parquet() -> Any:
    """pyarrow.parquet, or what to install."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError("parquet files need pyarrow: pip install 'homunculus[data]'") from None
    return pyarrow.parquet
