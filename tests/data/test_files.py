"""Files of records: nothing lost on the way, whoever writes them and however often they are interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from homunculus.data import FAMILIES, Question, Record, files, make
from homunculus.data.rows import COLUMNS, encoded
from homunculus.errors import DataError
from tests.data import families
from tests.test_cli import ENVIRONMENT, ROOT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import datasets

OPTIONS = {"size": (64, 48), "shard": 7}


@pytest.fixture(autouse=True)
def _dots(monkeypatch):
    monkeypatch.setitem(FAMILIES, families.NAME, "tests.data.families")


def write(out, count=20, split="train", **options) -> int:
    return files.write("dots", split, count, out, **({"workers": 1} | OPTIONS | options))


def as_plain(record: Record) -> tuple:
    return record.key, record.image.tobytes(), record.image.shape, record.questions, dict(record.meta)


def refused(function, *arguments, **options) -> str:
    with pytest.raises(DataError) as error:
        function(*arguments, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


# --------------------------------------------------------------------------------------------------- round trips


def test_what_was_written_is_read(tmp_path):
    assert write(tmp_path / "a" / "b") == 20
    assert [path.name for path in sorted((tmp_path / "a" / "b").glob("*"))] == [
        files.MANIFEST,
        "train-00000-of-00003.parquet",
        "train-00001-of-00003.parquet",
        "train-00002-of-00003.parquet",
    ]
    found = [as_plain(record) for record in files.read(tmp_path / "a" / "b")]
    assert found == [as_plain(make("dots", "train", index, size=(64, 48))) for index in range(20)]


@pytest.mark.parametrize("family", ["documents", "scenes", "scene-text"])
def test_every_family_goes_there_and_back(family, tmp_path):
    records = [make(family, "val", index) for index in range(2)]
    files.write_records(records, tmp_path / "two.parquet")
    for before, after in zip(records, files.read(tmp_path), strict=True):
        assert as_plain(after)[:-1] == as_plain(before)[:-1]
        assert after.meta == json.loads(json.dumps(dict(before.meta)))


def test_records_of_others_without_places(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (5, 9, 3), dtype=np.uint8)
    records = [
        Record("docvqa/validation/7", image, Question("Wie groß?", ("1 m²", "1m²"))),
        Record("docvqa/validation/8", image[:1], Question("?", ("",)), (Question("x", ("y",), ((0.5, 1, 2, 3),)),)),
    ]
    files.write_records(records, tmp_path / "some.parquet")
    assert [as_plain(r) for r in files.read(tmp_path / "some.parquet")] == [as_plain(r) for r in records]
    assert [as_plain(r) for r in files.read(tmp_path)] == [as_plain(r) for r in records]


def test_many_row_groups_keep_their_order(tmp_path):
    write(tmp_path, 100, shard=80)
    assert pq.ParquetFile(tmp_path / "train-00000-of-00002.parquet").num_row_groups == 3
    assert [record.key for record in files.read(tmp_path)] == [f"dots/train/{index}" for index in range(100)]


def test_jpeg_is_near_and_smaller(tmp_path):
    write(tmp_path, 3, image_format="jpeg")
    for index, record in enumerate(files.read(tmp_path)):
        exact = make("dots", "train", index, size=(64, 48)).image
        assert record.image.shape == exact.shape and 0 < np.abs(record.image - exact.astype(float)).mean() < 4
    image = np.asarray(Image.effect_noise((64, 64), 40).convert("RGB"))
    assert len(encoded(image, "jpeg")) < len(encoded(image, "png"))


# ----------------------------------------------------------------------------------------------------- datasets


def test_datasets_decodes_the_images(tmp_path):
    write(tmp_path / "out")
    shards = sorted(map(str, (tmp_path / "out").glob("*.parquet")))
    for source in ({"path": "parquet", "data_files": shards}, {"path": str(tmp_path / "out")}):
        rows = datasets.load_dataset(**source, split="train", cache_dir=str(tmp_path / "cache"))
        assert tuple(rows.column_names) == COLUMNS and len(rows) == 20
        assert isinstance(rows.features["image"], datasets.Image)
        for index, row in enumerate(rows):
            record = make("dots", "train", index, size=(64, 48))
            assert np.array_equal(np.asarray(row["image"]), record.image)
            assert row["key"] == record.key and row["question"] == record.question.text
            assert row["answers"] == list(record.question.answers) and row["region"] == record.question.region
            assert row["boxes"] == [list(box) for box in record.question.boxes]
            assert [one["question"] for one in row["followups"]] == [one.text for one in record.followups]
            assert json.loads(row["meta"]) == record.meta


@pytest.mark.parametrize(("split", "known_as"), [("val", "validation"), ("test-iid", "test"), ("test-ood", "test")])
def test_datasets_knows_the_split_by_the_name(split, known_as, tmp_path):
    write(tmp_path / "out", 3, split)
    rows = datasets.load_dataset(str(tmp_path / "out"), streaming=True)
    assert list(rows) == [known_as] and next(iter(rows[known_as]))["key"] == f"dots/{split}/0"


# ---------------------------------------------------------------------------------------------------- going on


def test_a_finished_folder_is_left_alone(tmp_path):
    write(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    told = []
    assert write(tmp_path, advance=told.append) == 0 and sum(told) == 20
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_what_is_missing_or_damaged_is_made_again(tmp_path):
    write(tmp_path)
    expected = [as_plain(record) for record in files.read(tmp_path)]
    shards = sorted(tmp_path.glob("*.parquet"))
    shards[0].write_bytes(shards[0].read_bytes()[:200])
    shards[2].unlink()
    (tmp_path / ".train-00001-of-00003.parquet.0123.part").write_bytes(b"half")
    assert "lacks 1 of 3 files" in refused(lambda: list(files.read(tmp_path)))
    assert write(tmp_path) == 13
    assert [as_plain(record) for record in files.read(tmp_path)] == expected
    assert not list(tmp_path.glob(".*.part"))


def test_a_run_killed_before_its_manifest_is_begun_again(tmp_path):
    (tmp_path / f".{files.MANIFEST}.0123.part").touch()
    assert write(tmp_path, 3) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 21}, "count 20, not 21"),
        ({"size": (64, 64)}, r"size [64, 48], not [64, 64]"),
        ({"clean": True}, "clean False, not True"),
        ({"image_format": "jpeg"}, "image_format png, not jpeg"),
        ({"shard": 8}, "shard 7, not 8"),
        ({"split": "val"}, "split train, not val"),
    ],
)
def test_other_options_are_refused(options, message, tmp_path):
    write(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert message in refused(write, tmp_path, **options)
    assert sorted(tmp_path.iterdir()) == before


def test_another_version_is_refused(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr(files.PIL, "__version__", "99.0")
    assert "pillow" in refused(write, tmp_path)


def test_two_runs_at_once_are_refused(tmp_path):
    plan = files.Plan("dots", "train", 20, **OPTIONS)
    with files.opened(plan, tmp_path) as missing:
        assert missing == [0, 1, 2]
        assert "another run is writing" in refused(write, tmp_path)
    assert write(tmp_path) == 20


def test_places_that_will_not_do(tmp_path):
    (tmp_path / "text").write_text("hello")
    assert "holds something else" in refused(write, tmp_path)
    assert "cannot write into" in refused(write, tmp_path / "text")
    assert "no parquet files" in refused(lambda: list(files.read(tmp_path)))
    assert "no parquet files" in refused(lambda: list(files.read(tmp_path / "none")))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    assert "cannot be read" in refused(lambda: list(files.read(tmp_path / "bad.parquet")))
    datasets.Dataset.from_dict({"key": ["a"], "kind": ["b"]}).to_parquet(tmp_path / "other.parquet")
    assert "lacks the columns image, question" in refused(lambda: list(files.read(tmp_path / "other.parquet")))


@pytest.mark.parametrize("options", [{"count": 0}, {"workers": 0}, {"shard": 0}, {"size": (0, 64)}])
def test_options_that_will_not_do(options, tmp_path):
    refused(write, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert "pip install 'homunculus[data]'" in refused(write, tmp_path / "out")


def test_an_error_in_a_drawing_leaves_nothing_half_done(tmp_path, monkeypatch):
    monkeypatch.setattr(families, "draw", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [files.MANIFEST]


# ------------------------------------------------------------------------------------------------- several processes

COUNT, SHARD = 60, 4


def start(out: Path, workers: int, slow: float) -> subprocess.Popen:
    command = [
        sys.executable,
        "-m",
        "tests.data.families",
        "data",
        "write",
        "dots",
        "--count",
        str(COUNT),
        "--size",
        "64",
    ]
    command += ["--shard", str(SHARD), "--workers", str(workers), "--out", str(out)]
    environment = ENVIRONMENT | {"SLOW": str(slow), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    run = start(out, 1, 0.0)
    said = run.communicate(timeout=120)[0].decode()
    assert run.returncode == 0 and f"{COUNT} records" in said, said
    return out


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_twice_and_finished(workers, uninterrupted, tmp_path):
    kept: dict[str, int] = {}
    for _ in range(2):
        run = start(tmp_path, workers, 0.05)
        enough, until = len(kept) + 2, time.monotonic() + 90
        while len(list(tmp_path.glob("*.parquet"))) < enough or not list(tmp_path.glob(".*.part")):
            assert run.poll() is None and time.monotonic() < until, "it should have been in the middle of a shard"
            time.sleep(0.01)
        workers_then = children(run.pid)
        os.kill(run.pid, signal.SIGKILL)
        run.communicate(timeout=30)
        until = time.monotonic() + 30
        while any(map(alive, workers_then)):  # they end with the one that started them
            assert time.monotonic() < until, "workers outlive a killed run"
            time.sleep(0.05)
        assert len(workers_then) >= workers - 1
        done = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.parquet")}
        assert done.items() >= kept.items() and len(done) < COUNT // SHARD
        kept = done
    last = start(tmp_path, workers, 0.0)
    said = last.communicate(timeout=120)[0].decode()
    assert last.returncode == 0, said
    assert f"{len(kept) * SHARD} were there" in said
    found = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.parquet")}
    assert found.items() >= kept.items()  # nothing was made twice
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in uninterrupted.iterdir())
    whole, resumed = (list(map(as_plain, files.read(folder))) for folder in (uninterrupted, tmp_path))
    assert len(resumed) == COUNT and resumed == whole
    assert [record[0] for record in resumed] == [f"dots/train/{index}" for index in range(COUNT)]


def test_a_worker_that_dies_is_an_error(tmp_path):
    run = start(tmp_path, 2, 0.05)
    while not list(tmp_path.glob("*.parquet")):
        assert run.poll() is None
        time.sleep(0.01)
    for child in children(run.pid):
        if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
            os.kill(child, signal.SIGKILL)
            break
    said = run.communicate(timeout=60)[0].decode()
    assert run.returncode == 2 and said.startswith("error: a worker died") and said.count("\n") == 1
