"""The README's commands run, its example works, its tree exists, its figures are in the log."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

import homunculus
from homunculus.viz.example import example_page
from homunculus.viz.overlay import to_pil
from tests.test_cli import run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def commands(first: str) -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.split()[:1] == [first]]


@pytest.fixture
def page(tmp_path) -> Path:
    to_pil(example_page()).save(tmp_path / "page.png")
    return tmp_path


@pytest.mark.parametrize("command", commands("homunculus"))
def test_commands_run(command, page):
    arguments = shlex.split(command)[1:]
    done = run(*arguments, cwd=page)
    assert done.returncode == 0, done.stderr
    out = arguments[arguments.index("--out") + 1] if "--out" in arguments else f"{arguments[0]}.png"
    assert (page / out).stat().st_size > 10_000


@pytest.mark.parametrize("command", commands("make"))
def test_make_targets_exist(command):
    done = subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_make_demo_draws(tmp_path):
    if not (ROOT / ".venv" / ".core").exists():
        pytest.skip("not set up by make")
    pictures = [ROOT / "out" / name for name in ("look.png", "gallery.png")]
    done = subprocess.run(["make", "demo"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(picture.stat().st_size > 10_000 for picture in pictures)


def test_the_two_commands_come_first():
    assert [command.split()[1] for command in commands("make")] == ["demo", "test"]


def test_python_examples(page, monkeypatch, capsys):
    monkeypatch.chdir(page)
    examples = blocks("python")
    assert len([line for line in examples[0].splitlines() if line]) == 3
    scope: dict = {}
    for example in examples:
        exec(compile(example, "README.md", "exec"), scope)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "torch.Size([1, 273, 3, 16, 16]) torch.Size([1, 273, 4])"
    assert 0 < float(said[1]) < 1
    assert said[-3:] == [f"torch.Size([1, {n}, 3, 16, 16])" for n in (64, 128, 273)]
    assert scope["tokens"].allocation.budget == 273


def test_the_examples_on_data_run():
    text = (ROOT / "docs" / "data.md").read_text()
    scope: dict = {}
    for example in re.findall(r"```python\n(.*?)```", text, flags=re.S):
        exec(compile(example, "data.md", "exec"), scope)
    assert scope["record"].key == "scene-text/train/0"


def test_the_tree_is_there():
    (tree,) = blocks("text")
    parent = ROOT
    for line in tree.splitlines():
        name = line.split()[0]
        if name == "#":
            continue
        parent = ROOT / "homunculus" if line.startswith("  ") else ROOT
        assert (parent / name).exists(), name
    listed = {line.split()[0].rstrip("/") for line in tree.splitlines() if line.startswith("  ") and "#" not in line}
    present = {path.name for path in (ROOT / "homunculus").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert present - listed <= {"__init__.py", "__main__.py", "__pycache__", "errors.py"}


def test_every_allocator_is_described_as_the_code_describes_it():
    for name, what in homunculus.allocators().items():
        assert f"| `{name}` | {what} |" in README


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_figures_come_from_the_log():
    """Every row of the speed table stands in the log, word for word."""
    log = (ROOT / "docs" / "LOG.md").read_text()
    rows = [line for line in README.splitlines() if re.search(r"\| \d+\.\d+ ms", line)]
    assert len(rows) >= 3
    assert all(row in log for row in rows)
