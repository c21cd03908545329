"""`data write --engine ray` writes the same files as the local engine, and goes on where either left off."""

import subprocess
import sys

import pytest

from homunculus.data import files
from tests.test_cli import ENVIRONMENT, ROOT


def write(out, *options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "homunculus", "data", "write", "scenes", "--count", "7", "--size", "64"]
    command += ["--shard", "2", "--out", str(out), *options]
    environment = ENVIRONMENT | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    out = tmp_path_factory.mktemp("local")
    assert write(out, "--workers", "1").returncode == 0
    return out


def test_the_same_files(local, tmp_path):
    done = write(tmp_path, "--engine", "ray", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert "7 records" in done.stdout
    assert contents(tmp_path) == contents(local)
    assert [record.key for record in files.read(tmp_path)] == [f"scenes/train/{index}" for index in range(7)]


def test_what_is_missing_is_made(local, tmp_path):
    for name, content in contents(local).items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "train-00001-of-00004.parquet").unlink()
    done = write(tmp_path, "--engine", "ray")
    assert done.returncode == 0 and "2 records" in done.stdout and "5 were there" in done.stdout, done.stderr
    assert contents(tmp_path) == contents(local)
