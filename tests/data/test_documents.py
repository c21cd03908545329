"""Documents: every page of every kind is asked about in all regions, and every answer stands where its box says."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import fields
from hashlib import blake2b

import numpy as np
import PIL
import pytest
from PIL import Image, ImageChops, ImageDraw, ImageFont, features

from homunculus.data.dice import Dice
from homunculus.data.documents import LAYOUTS, arrangements, compose, draw
from homunculus.data.documents.glyphs import Glyphs
from homunculus.data.documents.page import TYPE, Page
from homunculus.data.documents.vocabulary import HELD_OUT, ORDINARY, Vocabulary
from homunculus.data.documents.words import Words, currency, different, money
from homunculus.data.fonts import FACES, faces, load
from homunculus.data.record import REGIONS, SPLITS, Box, Split
from homunculus.data.stream import make
from homunculus.errors import DataError

OURS = ("invoice", "receipt", "form", "ticket")
SIZES = ((1024, 1024), (512, 512), (1024, 1536), (1600, 900), (512, 1400), (2048, 2048))
# val and test-iid are arranged as train is.
WAYS = [
    (kind, split, way)
    for kind in LAYOUTS
    for split in ("train", "test-ood")
    for way in range(len(arrangements(kind, split)))
]
OUR_WAYS = [way for way in WAYS if way[0] in OURS]


def pages(kind: str, split: Split, way: int, count: int, size: tuple[int, int] = (1024, 1024)) -> Iterator[Page]:
    for index in range(count):
        yield compose(arrangements(kind, split)[way], Dice("test", kind, split, way, index), split, size)


def content_words(vocabulary: Vocabulary) -> set[str]:
    """Every word that only content is made of; the forms of firms (Ltd, KG) are too short to count."""
    compounds = {"surname_heads", "surname_tails", "town_heads", "town_tails"}
    lists = [getattr(vocabulary, field.name) for field in fields(vocabulary) if field.name not in compounds]
    words = {word.lower() for texts in lists for text in texts for word in re.findall("[A-Za-z]{4,}", text)}
    for heads, tails in (
        (vocabulary.surname_heads, vocabulary.surname_tails),
        (vocabulary.town_heads, vocabulary.town_tails),
    ):
        words |= {(head + tail).lower() for head in heads for tail in tails}
    return words


# What every page owes


@pytest.mark.parametrize(("kind", "split", "way"), WAYS)
def test_every_page_is_asked_about_in_all_regions(kind: str, split: Split, way: int) -> None:
    for page in pages(kind, split, way, 6):
        texts = [question.text for question in page.questions]
        assert {question.region for question in page.questions} == set(REGIONS)
        assert len(texts) >= 6
        assert len(set(texts)) == len(texts)
        assert all(question.kind and question.boxes for question in page.questions)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", LAYOUTS)
def test_boxes_hold_ink_at_every_size(kind: str, size: tuple[int, int]) -> None:
    ways = [(split, way) for name, split, way in WAYS if name == kind]
    for page in (page for split, way in ways for page in pages(kind, split, way, 1, size)):
        assert page.image.size == size
        pixels = np.asarray(page.image).astype(int)
        for question in page.questions:
            for x0, y0, x1, y1 in question.boxes:
                assert 0 <= x0 < x1 <= size[0]
                assert 0 <= y0 < y1 <= size[1]
                inside = pixels[int(y0) : int(y1), int(x0) : int(x1)]
                assert np.ptp(inside, axis=(0, 1)).max() > 40, (question.text, question.answer)


@pytest.mark.parametrize(("kind", "split", "way"), OUR_WAYS)
def test_answers_stand_in_their_boxes_and_nothing_is_printed_over(kind: str, split: Split, way: int) -> None:
    for page in pages(kind, split, way, 5):
        written = defaultdict(list)
        for text, box in page.written:
            written[text].append(box)
        for question in page.questions:
            if "the stamp" not in question.text:  # turned, and so with a box of its own
                assert any(box in question.boxes for box in written[question.answer]), (question.text, question.answer)
        upright = [box for text, box in page.written if not _is_stamp(page, text)]
        for place, box in enumerate(upright):
            assert not any(_overlap(box, other) for other in upright[:place]), (page.written[place], page.face.name)


def _is_stamp(page: Page, text: str) -> bool:
    return text.isupper() or any("the stamp" in asked.text and asked.answer == text for asked in page.questions)


def _overlap(one: Box, other: Box) -> bool:
    return min(one[2], other[2]) - max(one[0], other[0]) > 1 and min(one[3], other[3]) - max(one[1], other[1]) > 1


@pytest.mark.parametrize(("kind", "split", "way"), OUR_WAYS)
def test_type_is_12_to_40_pixels_at_1024(kind: str, split: Split, way: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    plain = Page.font

    def noted(self: Page, size: float = 20, *rest: object, **more: object) -> ImageFont.FreeTypeFont:
        sizes.append(size)
        return plain(self, size, *rest, **more)

    monkeypatch.setattr(Page, "font", noted)
    for _ in pages(kind, split, way, 3):
        pass
    assert TYPE[0] <= min(sizes)
    assert max(sizes) <= TYPE[1]


# Splits


def test_vocabularies_share_no_word() -> None:
    ordinary, held_out = content_words(ORDINARY), content_words(HELD_OUT)
    assert len(ordinary) > 4000
    assert len(held_out) > 2500
    assert not ordinary & held_out


@pytest.mark.parametrize("kind", LAYOUTS)
def test_no_held_out_word_is_printed_in_other_splits(kind: str) -> None:
    held_out = content_words(HELD_OUT)
    for split, count in (("train", 4), ("val", 1), ("test-iid", 1)):
        for way in range(len(arrangements(kind, split))):
            for page in pages(kind, split, way, count, (512, 512)):
                printed = {word.lower() for text, _ in page.written for word in re.findall("[A-Za-z]{4,}", text)}
                assert not printed & held_out


@pytest.mark.parametrize("kind", LAYOUTS)
def test_held_out_pages_have_their_own_faces_and_arrangements(kind: str) -> None:
    assert len(arrangements(kind, "train")) >= 2
    assert arrangements(kind, "train") == arrangements(kind, "val") == arrangements(kind, "test-iid")
    assert not set(arrangements(kind, "train")) & set(arrangements(kind, "test-ood"))
    for page in pages(kind, "test-ood", 0, 3):
        assert {page.face, page.head, page.mono} <= set(faces("test-ood"))


def test_records_are_the_same_each_time_and_differ_between_splits_and_indices() -> None:
    one, again = (make("documents", "train", 5, size=(640, 640)) for _ in range(2))
    assert one.image.tobytes() == again.image.tobytes()
    assert one.questions == again.questions
    others = [make("documents", split, 5, size=(640, 640)) for split in SPLITS[1:]]
    others.append(make("documents", "train", 6, size=(640, 640)))
    assert len({record.image.tobytes() for record in (one, *others)}) == 5


def test_many_records_of_all_kinds_worn_and_clean() -> None:
    seen = Counter()
    for split in SPLITS:
        for index in range(18):
            drawing = draw(Dice("worn", split, index), split, (512, 512), clean=index % 2 == 0)
            seen[drawing.meta["kind"]] += 1
            assert drawing.image.shape == (512, 512, 3)
            for question in drawing.questions:
                for x0, y0, x1, y1 in question.boxes:
                    assert 0 <= x0 < x1 <= 512
                    assert 0 <= y0 < y1 <= 512
    assert set(seen) == set(LAYOUTS)


def test_answers_cannot_be_guessed_from_the_question() -> None:
    """Who answers each question as it was answered most often elsewhere is right less than once in twenty times."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    overall: Counter[str] = Counter()
    right = asked = 0
    for index in range(240):
        drawing = draw(Dice("blind", index), "train", (512, 512), clean=True)
        for question in drawing.questions:
            if index < 170:
                seen[question.text][question.answer] += 1
                overall[question.answer] += 1
            else:
                guesses = seen.get(question.text, overall)
                right += max(guesses, key=lambda guess: guesses[guess]) in question.answers
                asked += 1
    assert asked > 600
    assert right / asked < 0.05


# The page itself


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
def test_lines_of_kept_letters_are_pillows_own(face: object) -> None:
    words, dice = Words("test-ood" if face.held_out else "train"), Dice("glyphs")
    for size in (6, 12, 17, 20, 33, 40):
        for cut in ("regular", "bold", "italic"):
            font = load(face, size, cut)
            kept = Glyphs(font)
            for text in (words.sentence(dice), words.street(dice), words.code(dice), "AVATo Wa. Yfi"):
                ours, theirs = (Image.new("L", (size * 90, size * 3)) for _ in range(2))
                box = kept.draw(ImageDraw.Draw(ours), size, size * 2, text, 255, "ls")
                ImageDraw.Draw(theirs).text((size, size * 2), text, 255, font, anchor="ls")
                assert ImageChops.difference(ours, theirs).getbbox() is None
                assert box == theirs.getbbox()
                assert kept.length(text) == pytest.approx(font.getlength(text))


def test_a_page_refuses_what_it_cannot_write() -> None:
    page = Page((512, 512), "test-ood", Dice("refused"))
    with pytest.raises(DataError, match="cannot write"):
        page.write(10, 10, "é")
    with pytest.raises(DataError, match="leaves the page"):
        page.write(500, 10, "too far to the right")
    with pytest.raises(DataError, match="no ink"):
        page.write(10, 10, "  ")
    with pytest.raises(DataError, match="wider than"):
        page.fit("a line that is much too long for this", 20)
    with pytest.raises(DataError, match="anchor"):
        page.write(10, 10, "x", anchor="lx")
    box = page.write(100, 100, "once")
    page.ask("What?", "once", [box], "target", "key")
    with pytest.raises(DataError, match="asked twice"):
        page.ask("What?", "once", [box], "target", "key")
    with pytest.raises(DataError, match="at least 512"):
        draw(Dice("small"), "train", (1024, 500), clean=True)


def test_wrapped_lines_keep_every_word_and_fit() -> None:
    page, text = Page((1024, 1024), "train", Dice("wrap")), Words("train").text(Dice("words"), 12)
    lines = page.wrap(text, 400, 18)
    assert " ".join(lines) == text
    assert max(page.length(line, 18) for line in lines) <= 404
    boxes, below = page.paragraph(50, 60, 400, text, 18)
    assert [line for line, _ in boxes] == lines
    assert below >= boxes[-1][1][3]


@pytest.mark.parametrize("split", SPLITS)
def test_every_face_can_write_every_value(split: Split) -> None:
    words = Words(split)
    makers = [name for name in dir(Words) if not name.startswith("_") and name not in ("pattern", "number", "text")]
    assert "iban" in makers
    for index, face in enumerate(faces(split)):
        dice = Dice("values", index)
        page = Page((2048, 512), split, dice)
        page.face = face
        for name in makers:
            for _ in range(8):
                made = getattr(words, name)(dice, 2) if name == "products" else getattr(words, name)(dice)
                page.write(8, 100, made if isinstance(made, str) else made[0], 14)
        page.write(8, 100, words.amount(dice, currency(dice, page.can)))


def test_values_come_from_large_sets() -> None:
    words, dice = Words("val"), Dice("sets")
    for name, least in (
        ("code", 990),
        ("date", 960),
        ("amount", 800),
        ("person", 990),
        ("sentence", 990),
        ("town", 700),
    ):
        assert len({getattr(words, name)(dice) for _ in range(1000)}) >= least
    assert money(1234567, "CHF") == "12,345.67 CHF"
    assert len(set(different(lambda: dice.integer(1, 9), 9))) == 9


# The pixels, for the Pillow and FreeType that they were made with

SUMS = {
    "invoice": "2a8e9903ce875c34",
    "receipt": "95d7dfc88ece2cea",
    "form": "8c9a6d53129e3d12",
    "ticket": "0cf92c0a8e78f021",
}


@pytest.mark.parametrize("kind", SUMS)
def test_pixels_are_those_of_every_machine(kind: str) -> None:
    versions = PIL.__version__, features.version("freetype2")
    if versions != ("12.3.0", "2.14.3"):
        pytest.skip(f"Pillow and FreeType are {versions}: other versions may draw other pixels")
    digest = blake2b(digest_size=8)
    for split in ("train", "test-ood"):
        for page in pages(kind, split, 0, 1):
            digest.update(page.image.tobytes())
            digest.update(repr(page.questions).encode())
    assert digest.hexdigest() == SUMS[kind]
