"""Text to numbers and back: nothing lost, digits single, answers in bytes, and the vocabulary can be made again."""

import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from homunculus.data.stream import FAMILIES, make
from homunculus.errors import DataError
from homunculus.model.tokenizer import (
    BOS,
    EOS,
    FIRST_BYTE,
    FIRST_PIECE,
    PAD,
    VOCABULARY,
    Tokenizer,
    default_tokenizer,
    words_of,
)
from homunculus.train.vocabulary import questions
from tests.test_cli import ENVIRONMENT, ROOT

ENGLISH = "What is the total of the invoice? Which date is given in Section 3.6, at the top left? "


@given(st.text())
@example("What is\nwritten  on the\tsign 🙂? 42 € – 'Größe' \0")
@example("👩‍👩‍👧‍👦 ٣٤ x² __a_b  ")
@example(ENGLISH)
def test_any_text_comes_back(text):
    tokenizer = default_tokenizer()
    for ids in (tokenizer.encode(text), tokenizer.spell(text)):
        assert all(FIRST_BYTE <= number < tokenizer.size for number in ids)
        assert tokenizer.decode([BOS, *ids, EOS, 99, PAD]) == text
    assert [number for word in words_of(text) for number in tokenizer.encode(word)] == tokenizer.encode(text)


@given(st.lists(st.text(max_size=20), max_size=8), st.text(), st.integers(0, 40))
def test_any_corpus_gives_a_tokenizer(corpus, text, more):
    tokenizer = Tokenizer.train(corpus, FIRST_PIECE + more)
    assert FIRST_PIECE <= tokenizer.size <= FIRST_PIECE + more
    assert list(tokenizer.pieces) == sorted(tokenizer.pieces)
    for one in (text, *corpus):
        assert tokenizer.decode(tokenizer.encode(one)) == one
        assert len(tokenizer.encode(one)) <= len(tokenizer.spell(one)) == len(one.encode())


@given(st.text("0123456789 .,-", max_size=30))
def test_digits_are_single(text):
    tokenizer = default_tokenizer()
    found = [tokenizer.decode([number]) for number in tokenizer.encode(text)]
    assert all(len(piece) == 1 for piece in found if any(map(str.isdigit, piece)))
    assert not any(character.isdigit() for piece in tokenizer.pieces for character in piece)


def test_answers_are_bytes():
    assert default_tokenizer().spell("What is the Größe") == [
        FIRST_BYTE + byte for byte in "What is the Größe".encode()
    ]


def test_the_longest_piece_is_taken():
    tokenizer = Tokenizer([" in", " invoice", "ed", "invoic"])
    names = [tokenizer.decode([number]) for number in tokenizer.encode("invoiced invoices in")]
    assert names == ["invoic", "ed", " invoice", "s", " in"]


def test_what_saves_most_is_learnt_first():
    corpus = ["colour colour colour", "colour of", "of of"]
    # " colour" saves 6 tokens twice and "our" 2 four times, but "colour" saves 5 four times.
    assert Tokenizer.train(corpus, FIRST_PIECE + 1).pieces == ("colour",)
    lengths = [
        sum(len(Tokenizer.train([ENGLISH] * 3, FIRST_PIECE + more).encode(text)) for text in [ENGLISH])
        for more in range(0, 30, 5)
    ]
    assert lengths == sorted(lengths, reverse=True) and lengths[-1] < lengths[0] / 2


def test_questions_are_short_in_the_shipped_vocabulary():
    tokenizer = default_tokenizer()
    assert tokenizer.size == 1024
    for family in FAMILIES:
        for index in range(1_000_000, 1_000_003):  # far from what it was learnt from
            for question in make(family, "train", index, size=(512, 512)).questions:
                assert len(tokenizer.encode(question.text)) <= 48
                assert len(tokenizer.encode(question.text)) <= 0.6 * len(question.text)


def test_numbers_stop_at_the_end_and_broken_bytes_show():
    tokenizer = Tokenizer([])
    assert tokenizer.decode([BOS, *tokenizer.spell("ab"), EOS, *tokenizer.spell("c")]) == "ab"
    assert tokenizer.decode(tokenizer.spell("é")[:1]) == "\ufffd"
    assert tokenizer.decode([]) == tokenizer.decode([PAD, BOS]) == ""


def test_batches_are_padded_and_cut():
    tokenizer = Tokenizer([])
    assert tokenizer.batch([[5, 6, 7], [], [8]]).tolist() == [[5, 6, 7], [0, 0, 0], [8, 0, 0]]
    assert tokenizer.batch([[5, 6, 7], [8]], length=2).tolist() == [[5, 6], [8, 0]]
    assert tokenizer.batch([[5]], length=0).shape == (1, 0) and tokenizer.batch([]).shape == (0, 0)


def test_what_was_saved_is_loaded(tmp_path):
    tokenizer = Tokenizer.train([ENGLISH, 'a "quoted" – dash'], FIRST_PIECE + 40)
    tokenizer.save(tmp_path / "v.json")
    assert Tokenizer.load(tmp_path / "v.json").pieces == tokenizer.pieces
    default_tokenizer().save(tmp_path / "w.json")
    assert (tmp_path / "w.json").read_bytes() == VOCABULARY.read_bytes()


def test_the_command_makes_the_same_vocabulary_again(tmp_path):
    out = tmp_path / "again.json"
    command = [sys.executable, "-m", "homunculus.train.vocabulary", "--records", "2", "--out", str(out)]
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT | {"PYTHONHASHSEED": "7"}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    Tokenizer.train(questions(2), 1024).save(tmp_path / "here.json")
    assert out.read_bytes() == (tmp_path / "here.json").read_bytes()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"pieces": ["ab", "ab"]}', '{"pieces": ["a"]}'])
def test_what_is_no_vocabulary_is_refused(content, tmp_path):
    (tmp_path / "v.json").write_text(content)
    with pytest.raises(DataError, match=r"v\.json is no vocabulary") as error:
        Tokenizer.load(tmp_path / "v.json")
    assert "\n" not in str(error.value)


def test_what_stands_for_nothing_is_refused():
    with pytest.raises(DataError, match="from 0 to 258"):
        Tokenizer([]).decode([259])
    with pytest.raises(DataError, match="half a character"):
        Tokenizer([]).encode("a\ud800")
    with pytest.raises(DataError, match="too small"):
        Tokenizer.train(["a"], 100)
