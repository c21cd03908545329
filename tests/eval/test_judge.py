"""Tesseract reads clean pages, reads less of coarse ones, and says what to install where it is missing."""

import sys

import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from homunculus.errors import DataError
from homunculus.eval import judge
from homunculus.eval.judge import legibility, read_text
from homunculus.viz.example import example_page

LINES = ("Purchase order 58-2041-KX", "Delivered on 14 March 2031", "Contact Margaret Hollis", "Total due 1,946.30 EUR")


@pytest.fixture(scope="module")
def page():
    """A page of four lines of 22 pixels, and the box of each."""
    image = Image.new("RGB", (640, 360), (252, 250, 244))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(22)
    boxes = []
    for number, line in enumerate(LINES):
        place = (60 + 40 * number, 40 + 70 * number)
        draw.text(place, line, (30, 30, 40), font)
        boxes.append(draw.textbbox(place, line, font))
    return image, boxes


def coarse(image, factor):
    small = image.resize((image.width // factor, image.height // factor), Image.Resampling.BOX)
    return small.resize(image.size, Image.Resampling.BICUBIC)


def mean(image, boxes):
    return sum(legibility(line, read_text(image, [box])) for line, box in zip(LINES, boxes, strict=True)) / len(LINES)


def test_a_clean_page_is_read_and_a_coarse_one_is_not(page):
    image, boxes = page
    sharp, soft, lost = mean(image, boxes), mean(coarse(image, 3), boxes), mean(coarse(image, 8), boxes)
    assert sharp >= 0.95
    assert lost < 0.3
    assert lost < soft <= sharp


def test_the_whole_page_is_read_too(page):
    image, _ = page
    text = read_text(image)
    assert sum(legibility(line, text) for line in LINES) / len(LINES) >= 0.9
    assert legibility("Fovea Instruments", read_text(example_page().permute(1, 2, 0).numpy())) >= 0.9


def test_boxes_are_read_in_their_order_and_apart(page):
    image, boxes = page
    text = read_text(image, [boxes[2], boxes[0]])
    assert legibility(f"{LINES[2]} {LINES[0]}", text) > 0.9
    assert legibility(LINES[3], text) < 0.5


@pytest.mark.parametrize("size", [12, 40, 110])
def test_letters_of_any_size_are_read(size):
    font = ImageFont.load_default(size)
    image = Image.new("RGB", (900, 300), "white")
    draw = ImageDraw.Draw(image)
    draw.text((40, 60), "Gate 72", "black", font)
    assert legibility("Gate 72", read_text(image, [draw.textbbox((40, 60), "Gate 72", font)])) >= 0.85


def test_several_lines_in_a_box_and_light_on_dark(page):
    image, boxes = page
    everything = (min(b[0] for b in boxes), boxes[0][1], max(b[2] for b in boxes), boxes[-1][3])
    assert legibility(LINES[1], read_text(image, [everything])) >= 0.9
    dark = Image.eval(image, lambda level: 255 - level)
    assert mean(dark, boxes) >= 0.9


def test_lines_that_run_up_or_down_are_read(page):
    image, (x0, y0, x1, y1), line = page[0], page[1][2], LINES[2]
    up, down = image.transpose(Image.Transpose.ROTATE_90), image.transpose(Image.Transpose.ROTATE_270)
    assert legibility(line, read_text(up, [(y0, image.width - x1, y1, image.width - x0)])) >= 0.9
    assert legibility(line, read_text(down, [(image.height - y1, x0, image.height - y0, x1)])) >= 0.9


def test_nothing_is_read_on_an_empty_page_and_noise_scores_little():
    boxes = [(100, 100, 300, 130)]
    assert read_text(Image.new("RGB", (400, 400), "white"), boxes) == ""
    noise = (torch.rand(400, 400, 3, generator=torch.Generator().manual_seed(0)) * 255).byte().numpy()
    assert max(legibility(line, read_text(noise, boxes)) for line in LINES) < 0.3


def test_boxes_at_the_edge_and_tiny_ones_do_no_harm(page):
    image, _ = page
    for box in [(0, 0, 3, 2), (630, 350, 640, 360), (0, 0, 640, 1), (5, 0, 6, 360)]:
        assert isinstance(read_text(image, [box]), str)


def test_reading_twice_reads_the_same(page):
    image, boxes = page
    first = [read_text(image, [box]) for box in boxes]
    assert first == [read_text(image, [box]) for box in boxes]


def test_versions_name_engine_and_language():
    assert judge.versions().startswith("Tesseract ") and "eng.traineddata" in judge.versions()


def test_where_the_engine_is_missing_the_error_says_what_to_install(monkeypatch, page):
    image, boxes = page
    judge._engine.cache_clear()
    monkeypatch.setitem(sys.modules, "tesserocr", None)
    with pytest.raises(DataError, match=r"apt install tesseract-ocr && pip install tesserocr"):
        read_text(image, boxes)


def test_where_the_language_is_missing_the_error_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("TESSDATA_PREFIX", str(tmp_path))
    with pytest.raises(DataError, match=r"no eng.traineddata .*TESSDATA_PREFIX.*apt install tesseract-ocr"):
        judge.tessdata()


def test_language_data_is_found_by_its_variable_and_by_the_command(monkeypatch, tmp_path):
    found = judge.tessdata()
    monkeypatch.setenv("TESSDATA_PREFIX", found)
    assert judge.tessdata() == found
    (tmp_path / "tessdata").mkdir()
    (tmp_path / "tessdata" / "eng.traineddata").touch()
    monkeypatch.setenv("TESSDATA_PREFIX", str(tmp_path))
    assert judge.tessdata() == str(tmp_path / "tessdata")
    monkeypatch.delenv("TESSDATA_PREFIX")
    command = tmp_path / "tesseract"
    command.write_text(f"""#!/bin/sh\necho 'List of available languages in "{tmp_path}/tessdata/" (1):'\necho eng\n""")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(judge, "FOLDERS", ())
    assert judge.tessdata() == str(tmp_path / "tessdata")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DataError, match="tesseract-ocr"):
        judge.tessdata()
