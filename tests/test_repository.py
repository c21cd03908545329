"""What is tracked stays small and says nothing about the machine it was made on."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PICTURES = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".svg"}
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).exists()]


def test_the_tree_is_small(tracked):
    assert sum(path.stat().st_size for path in tracked) <= 48 * MEBIBYTE


def test_pictures_are_small(tracked):
    assert sum(path.stat().st_size for path in tracked if path.suffix in PICTURES) <= 8 * MEBIBYTE


def test_no_paths_of_a_machine(tracked):
    home = re.compile(r"(^|[\s'\"(=])/(root|home|Users|work|opt|mnt)/\w")
    for path in tracked:
        if path.suffix in (".py", ".md", ".toml", ".txt", ".sh", "") and path.name != "LICENSE":
            for number, line in enumerate(path.read_text().splitlines(), 1):
                assert not home.search(line), f"{path.relative_to(ROOT)}:{number}: {line}"


def test_files_can_be_held_by_a_reader(tracked):
    long = {
        str(p.relative_to(ROOT)): n
        for p in tracked
        if p.suffix == ".py" and (n := len(p.read_text().splitlines())) > 400
    }
    assert not long
