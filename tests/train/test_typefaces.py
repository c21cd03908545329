"""More typefaces for drills, from a folder."""

from pathlib import Path

import pytest

from homunculus.data.dice import Dice
from homunculus.data.documents.page import Page
from homunculus.data.fonts import _folder, faces, load
from homunculus.errors import DataError
from homunculus.train.drills import compose, make
from homunculus.train.drills.typefaces import check_faces, faces_in, held_out
from homunculus.train.pool import Pool


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """Three families: files of matplotlib under other names. One has all cuts, one is bold alone, one plain."""
    here = tmp_path_factory.mktemp("faces")
    files = {
        "Heavy-regular": "DejaVuSans-Bold",
        "Plain-regular": "STIXGeneral",
        "Whole-bold": "DejaVuSerif-Bold",
        "Whole-italic": "DejaVuSerif-Italic",
        "Whole-regular": "DejaVuSerif",
    }
    for name, file in files.items():
        (here / f"{name}.ttf").write_bytes((_folder() / f"{file}.ttf").read_bytes())
    (here / "notes.txt").write_text("not a face")
    return str(here)


def test_a_folder_is_families_with_their_cuts(folder):
    heavy, plain, whole = faces_in(folder)
    assert [face.name for face in (heavy, plain, whole)] == ["Heavy", "Plain", "Whole"]
    assert whole.bold.endswith("Whole-bold.ttf") and whole.italic.endswith("Whole-italic.ttf")
    assert heavy.bold == heavy.italic == "" and load(heavy, 20, "bold").path == load(heavy, 20).path
    widths = {cut: load(whole, 20, cut).getlength("width") for cut in ("regular", "bold")}
    assert widths["bold"] > widths["regular"] > 0


KIN = [
    "cmr10", "cmtt10", "lmr10", "CMBright", "CMU Serif", "Latin Modern Mono", "LM Roman 12", "ComputerModern",
    "NewCM10", "MLModern", "SFRM1000",
]  # fmt: skip


@pytest.mark.parametrize("name", KIN)
def test_kin_of_the_held_out_faces_are_known_by_name(name):
    assert held_out(name)


@pytest.mark.parametrize("name", ["Palm Sans", "FilmMono", "Calm Roman", "Century CM"])
def test_others_are_not(name):
    assert not held_out(name) and not any(held_out(face.name) for face in faces("train"))


@pytest.mark.parametrize("name", ["CMU Serif", "Harmless"])
def test_faces_of_the_held_out_split_are_refused(tmp_path, name):
    """By the name of the file or by the one in it."""
    (tmp_path / f"{name}-regular.ttf").write_bytes((_folder() / "cmr10.ttf").read_bytes())
    with pytest.raises(DataError, match=f"{name}-regular.ttf is a face of test-ood: take it out"):
        check_faces(str(tmp_path))


def test_a_broken_file_is_named_before_anything_is_drawn(folder, tmp_path):
    for name in ("Plain-regular.ttf", "Plain-bold.ttf"):
        (tmp_path / name).write_bytes((Path(folder) / "Plain-regular.ttf").read_bytes())
    assert check_faces(str(tmp_path)) != check_faces(folder)
    (tmp_path / "Plain-bold.ttf").write_text("junk")
    with pytest.raises(DataError, match=r"Plain-bold.ttf is no typeface \(unknown file format\): take it out"):
        Pool({"drills": 1.0}, faces=str(tmp_path))
    (tmp_path / "Plain-bold.ttf").write_bytes((_folder() / "cmex10.ttf").read_bytes())
    with pytest.raises(DataError, match=r"is a face of test-ood|lacks"):
        check_faces(str(tmp_path))


def test_names_of_files_are_taken_in_any_case(folder, tmp_path):
    for cut in ("Regular", "Bold"):
        (tmp_path / f"Roboto-{cut}.TTF").write_bytes((Path(folder) / "Whole-bold.ttf").read_bytes())
    (only,) = faces_in(str(tmp_path))
    assert only.name == "Roboto" and only.bold.endswith("Roboto-Bold.TTF")
    assert load(only, 20).getlength("width") > 0


def test_the_held_out_faces_are_known_by_the_names_in_their_files():
    for face in faces("test-ood"):
        assert held_out(load(face, 20).getname()[0]) and held_out(face.name) and held_out(face.regular)


def test_pages_are_mostly_set_in_them_and_few_at_a_time(folder, monkeypatch):
    used: dict[str, int] = {}
    write = Page.write

    def noted(page, *arguments, face=None, **rest):
        used[(face or page.face).name] = used.get((face or page.face).name, 0) + 1
        return write(page, *arguments, face=face, **rest)

    monkeypatch.setattr(Page, "write", noted)
    own = 0
    for index in range(12):
        used.clear()
        compose(Dice("faces", index), "train", (768, 768), faces_in(folder))
        more = sum(count for name, count in used.items() if name in ("Heavy", "Plain", "Whole"))
        own += more > sum(used.values()) / 2
        assert not more or len(used) <= 4
    assert own >= 7


def test_without_a_folder_nothing_changes_and_with_one_it_does(folder):
    plain, same = make("drills", "train", 3, size=(512, 512)), make("drills", "train", 3, size=(512, 512), faces=None)
    other = make("drills", "train", 3, size=(512, 512), faces=folder)
    assert plain.image.tobytes() == same.image.tobytes() != other.image.tobytes()
    documents = [make("documents", "train", 3, size=(512, 512), faces=faces) for faces in (None, folder)]
    assert documents[0].image.tobytes() == documents[1].image.tobytes()


def test_a_pool_takes_them(folder, tmp_path):
    with Pool({"drills": 1.0}, size=(512, 512), capacity=2, renewed=0, faces=folder) as pool:
        pool.fill()
        record = make(*_record(pool, 1), size=(512, 512), faces=folder)
        assert pool.rows.images[1].numpy().tobytes() == record.image.tobytes()
    with pytest.raises(DataError, match=r"is no folder with a NAME-regular.ttf: gather some with runs/faces.py"):
        Pool({"drills": 1.0}, faces=str(tmp_path))


def _record(pool: Pool, number: int) -> tuple:
    family, index = pool.plan.record(number)
    return family, pool.plan.split, index
