"""Everything a run of lmms-eval needs, in folders: a tiny model with its processor, and a task of a few rows."""

from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Value
from datasets import Image as ImageColumn
from PIL import Image

from tests.qwen.tiny import make_model, make_processor

TASK = "three_rows"
YAML = """
task: three_rows
dataset_path: parquet
dataset_kwargs: {{data_files: {{test: {parquet}}}}}
test_split: test
output_type: generate_until
doc_to_visual: !function three_rows.visual
doc_to_text: question
doc_to_target: answer
process_results: !function three_rows.judge
generation_kwargs: {options}
metric_list: [{{metric: right, aggregation: mean, higher_is_better: true}}]
metadata: [{{version: 1.0}}]
"""
FUNCTIONS = """
def visual(doc):
    return [doc["image"].convert("RGB")]

def judge(doc, results):
    return {"right": float(results[0] == doc["answer"])}
"""


def save_pair(folder: Path) -> tuple[Any, Any]:
    """A tiny Qwen3-VL and its processor, saved as a checkpoint."""
    processor = make_processor()
    model = make_model(processor)
    processor.save_pretrained(folder)
    model.save_pretrained(folder)
    return model, processor


def write_task(folder: Path, images: list[Image.Image], questions: list[str], answers: list[str], options: str) -> None:
    columns = {"image": images, "question": questions, "answer": answers}
    features = Features({"image": ImageColumn(), "question": Value("string"), "answer": Value("string")})
    folder.mkdir()
    Dataset.from_dict(columns, features=features).to_parquet(folder / "rows.parquet")
    (folder / f"{TASK}.yaml").write_text(YAML.format(parquet=folder / "rows.parquet", options=options))
    (folder / f"{TASK}.py").write_text(FUNCTIONS)
