"""Images drawn by processes are those that are drawn here, and nothing that goes wrong on the way is waited for."""

import errno
import multiprocessing
import tempfile
from concurrent.futures import CancelledError, Future
from pathlib import Path

import numpy as np
import pytest

from homunculus.errors import DataError
from homunculus.eval import drawing
from homunculus.eval.drawing import Drawn, drawers

PICTURES = ("scenes", "val", (160, 96))


def done(value):
    future = Future()
    future.set_result(value)
    return future


def same(one, other):
    labels = (one.labels is None) == (other.labels is None) and np.array_equal(one.labels, other.labels)
    return np.array_equal(one.image, other.image) and one.questions == other.questions and labels


def test_processes_draw_what_is_drawn_here_and_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    wanted = [(PICTURES, i, i == 2) for i in range(4)]
    with drawers(2) as draw, drawers(0) as here:
        coming = [draw(*which) for which in wanted]
        impossible = draw(("documents", "val", (64, 64)), 0, False)
        after = draw(PICTURES, 9, False)
        for come, which in zip(coming, wanted, strict=True):
            drawn = come()
            assert same(drawn, here(*which)()) and same(come(), drawn)  # however often one asks for it
            assert drawn.image.dtype == np.uint8 and drawn.image.flags.writeable
        with pytest.raises(DataError, match="cannot be read"):
            impossible()
        assert same(after(), here(PICTURES, 9, False)())
        assert not list(tmp_path.rglob("*.npy"))  # read as soon as they come
    assert not list(tmp_path.iterdir())


def test_a_process_that_is_killed_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with drawers(2) as draw:
        assert draw(PICTURES, 0, False)().questions
        waiting = [draw(PICTURES, i, False) for i in range(40)]
        multiprocessing.active_children()[0].kill()
        with pytest.raises(DataError, match=r"ended from outside.*fewer --workers"):
            [come() for come in waiting]
        with pytest.raises(DataError, match="ended from outside"):
            draw(PICTURES, 1, False)()
    assert not list(tmp_path.iterdir()) and not multiprocessing.active_children()


def test_what_is_not_waited_for_is_not_drawn():
    with drawers(1) as draw:
        draw(PICTURES, 0, False)()
        coming = [draw(PICTURES, i, False) for i in range(200)]
    with pytest.raises(CancelledError):
        coming[-1]()


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(file, image):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DataError, match=r"No space left on device.*: set TMPDIR"):
        drawing._leave(str(tmp_path), PICTURES, 0, False)


def test_a_lost_file_is_an_error_of_its_image_alone(tmp_path):
    file, drawn = drawing._leave(str(tmp_path), PICTURES, 0, False)
    assert drawn.image.size == 0 and drawn.questions  # pixels are not sent twice
    lost, found = Future[Drawn](), Future[Drawn]()
    drawing._take(lost, done((Path(tmp_path, "gone.npy"), drawn)))
    drawing._take(found, done((file, drawn)))
    with pytest.raises(FileNotFoundError):
        lost.result(0)
    assert same(found.result(0), drawing._draw(PICTURES, 0, False)) and not file.exists()
