"""The tree shows the architecture: a stage imports only from the foundations and from earlier stages."""

import ast
import subprocess
import sys
from pathlib import Path

import homunculus

PACKAGE = Path(homunculus.__file__).parent

# What everything may use, then the pipeline in order, then what stands on it.
ORDER = [
    "errors",
    "geometry",
    "biology",
    "kernels",
    "density",
    "structures",
    "images",
    "pyramid",
    "steerable",
    "relevance",
    "segments",
    "allocation",
    "sampling",
    "cache",
    "foveate",
    "unseen",
    "fixation",
    "reconstruct",
    "viz",
    "model",
    "peers",
    "data",
    "eval",
    "gaze",
    "train",
    "report",
    "integrations",
    "cli",
    "__main__",
]
HEAVY = ["transformers", "datasets", "gradio", "ray", "matplotlib", "scipy", "skimage", "kornia", "triton", "pandas"]
HEAVY += ["pyarrow", "tesserocr", "pytesseract"]


def stage_of(path: Path) -> str:
    part = path.relative_to(PACKAGE).parts[0]
    return part.removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("homunculus"):
            assert node.level == 0, f"{path}: relative import"
            rest = node.module.split(".")[1:]
            found |= {rest[0]} if rest else {alias.name for alias in node.names if not alias.name.startswith("__")}
        if isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("homunculus.")}
    return found


def test_every_stage_has_its_place():
    assert {stage_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__"} == set(ORDER)


def test_imports_go_one_way():
    for path in sorted(PACKAGE.rglob("*.py")):
        stage = stage_of(path)
        if stage == "__init__":
            continue
        for imported in imports_of(path):
            assert ORDER.index(imported) <= ORDER.index(stage), f"{path.name} ({stage}) imports {imported}"


def test_kernels_know_nothing_of_the_pipeline():
    for path in (PACKAGE / "kernels").glob("*.py"):
        assert imports_of(path) <= {"kernels", "errors", "geometry"}


def test_the_core_needs_nothing_heavy():
    code = f"import sys, homunculus, homunculus.viz, homunculus.cli; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
