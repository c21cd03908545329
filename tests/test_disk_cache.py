"""What is kept on disk: names made of contents, whole files or none, allocations and back."""

import threading
import warnings

import pytest
import torch

import homunculus
from homunculus.cache import DiskCache, allocation_from_tensors, allocation_to_tensors, content_key, disk
from homunculus.errors import CacheError
from homunculus.structures import CELL_FIELDS
from tests.test_foveate import picture

# -------------------------------------------------------------------------------------------------------------- keys


def test_keys_follow_contents():
    base = torch.arange(12, dtype=torch.float32)
    parts = [
        (base,),
        (base.reshape(3, 4),),
        (base.double(),),
        (base.view(torch.int32),),
        (base, None),
        ("1",),
        (1,),
        (1.0,),
        (True,),
        (b"1",),
        (None,),
        ("ab", "c"),
        ("a", "bc"),
        ("astrb", "c"),
        ("a", "bstrc"),
        ([1, [2]],),
        ([[1], 2],),
        (1, [2]),
        (torch.tensor(1.0),),
        (torch.ones(2, dtype=torch.bfloat16),),
        (torch.ones(0),),
        (torch.tensor(True),),
        (),
    ]
    assert len({content_key(*part) for part in parts}) == len(parts)
    strided = torch.stack((base, base), dim=1)[:, 0].requires_grad_()
    assert not strided.is_contiguous() and content_key(strided) == content_key(base)
    with pytest.raises(CacheError, match="cannot make a key of dict"):
        content_key({"a": 1})


# -------------------------------------------------------------------------------------------------------------- disk


def tensors(seed: int = 0, rows: int = 20) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(rows, 5, generator=generator)
    return {"values": values, "mask": values > 0.5, "same": values[:, 1], "one": torch.tensor(3), "none": torch.ones(0)}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


def test_made_once(tmp_path):
    made = []

    def make():
        made.append(1)
        return tensors()

    for _ in range(2):  # another cache over the same folder knows it too
        cache = DiskCache(tmp_path / "deep" / "folder")
        for _ in range(2):
            assert same(cache.get_or_make(["pyramid", torch.ones(3)], make), tensors())
    assert len(made) == 1
    cache.get_or_make(["pyramid", torch.zeros(3)], make)
    assert len(made) == 2 and len(list(cache.folder.iterdir())) == 2


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "text"])
def test_damaged_files_are_made_again(tmp_path, damage):
    cache = DiskCache(tmp_path)
    cache.get_or_make(["a"], tensors)
    path = cache.path(["a"])
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes({"cut": content[:-7], "empty": b"", "flipped": content, "text": b"hello " * 50}[damage])
    with pytest.warns(RuntimeWarning, match="is damaged and will be made again"):
        assert same(cache.get_or_make(["a"], tensors), tensors())
    assert same(cache.get_or_make(["a"], dict), tensors())  # whole again, nothing made, no warning


def test_files_used_longest_ago_go_first(tmp_path):
    size = DiskCache(tmp_path / "measure")
    size.get_or_make([0], tensors)
    bytes_each = size.path([0]).stat().st_size
    cache = DiskCache(tmp_path / "bounded", max_bytes=3 * bytes_each)
    for i in (0, 1, 2, 0, 3):
        cache.get_or_make([i], lambda i=i: tensors(i))
        assert sum(path.stat().st_size for path in cache.folder.iterdir()) <= cache.max_bytes
    assert [cache.path([i]).exists() for i in range(4)] == [True, False, True, True]
    with pytest.raises(CacheError, match="raise max_bytes"):
        cache.get_or_make([9], lambda: tensors(rows=10_000))
    assert len(list(cache.folder.iterdir())) == 3  # refused before anything was removed


def test_nothing_is_left_behind_by_a_failure(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path)

    def fail(*_):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.get_or_make(["a"], fail)
    monkeypatch.setattr(disk.os, "replace", fail)
    with pytest.raises(RuntimeError):
        cache.get_or_make(["a"], tensors)
    assert list(tmp_path.iterdir()) == []


def test_writers_and_readers_at_once(tmp_path):
    """Everybody makes and reads the same few keys while a small bound keeps removing files: nobody sees half a file."""
    wrong = []

    def work(turn: int) -> None:
        cache = DiskCache(tmp_path, max_bytes=150_000)  # three of five files
        for step in range(25):
            i = (turn + step) % 5
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    if not same(cache.get_or_make([i], lambda i=i: tensors(i, 2000)), tensors(i, 2000)):
                        wrong.append(i)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(path.suffix == ".safetensors" for path in tmp_path.iterdir())


def test_what_a_file_cannot_hold(tmp_path):
    with pytest.raises(CacheError, match="named tensors, not float"):
        DiskCache(tmp_path).get_or_make(["a"], lambda: {"x": 1.0})
    with pytest.raises(CacheError, match="positive whole number"):
        DiskCache(tmp_path, 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="choose another folder"):
        DiskCache(tmp_path / "file")


@pytest.mark.parametrize("allocator", ["foveated-pyramid", "uniform"])
def test_allocations_survive_the_disk(tmp_path, allocator):
    images = [picture(320, 256), picture(200, 333)]
    allocation = homunculus.foveate(images, "top left", 64, allocator).allocation
    cache = DiskCache(tmp_path)
    for _ in range(2):
        stored = cache.get_or_make([allocator, *images], lambda: allocation_to_tensors(allocation))
    back = allocation_from_tensors(stored)
    for field in (*CELL_FIELDS, "gaze"):
        assert torch.equal(getattr(back, field).nan_to_num(7), getattr(allocation, field).nan_to_num(7)), field
    assert (back.image_sizes, back.grids) == (allocation.image_sizes, allocation.grids)
    assert (back.leaf, back.kind) == (allocation.leaf, allocation.kind)
    del stored["levels"]
    with pytest.raises(CacheError, match="levels missing"):
        allocation_from_tensors(stored)
