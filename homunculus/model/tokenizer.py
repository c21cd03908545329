"""Text as numbers: three special ones, 256 bytes, then pieces: words with their leading space, and parts of words.

Pieces only ever shorten what bytes can say, so any text comes back whole. Digits are always single: a number is read
digit by digit. Answers are spelled in bytes alone, so that an unseen word costs no more than a seen one.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from homunculus.errors import DataError

PAD, BOS, EOS = 0, 1, 2
FIRST_BYTE = 3
FIRST_PIECE = FIRST_BYTE + 256

VOCABULARY = Path(__file__).with_name("vocabulary.json")
KNOWN = 1 << 16  # words whose numbers are remembered

_WORD = re.compile(r" ?[^\W\d_]+| ?[^\w\s]+|.", re.DOTALL)  # letters, signs, and one of anything else: digits, spaces


class Tokenizer:
    """Numbers for text and text for numbers; `pieces` are what it has besides bytes.

    >>> tokenizer = Tokenizer(["What", " is", " total"])
    >>> ids = tokenizer.encode("What is it?")
    >>> ids, tokenizer.decode(ids)
    ([259, 260, 35, 108, 119, 66], 'What is it?')
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        self.pieces = tuple(pieces)
        self._ids = {piece: FIRST_PIECE + i for i, piece in enumerate(self.pieces)}
        if len(self._ids) < len(self.pieces) or not all(len(_bytes(piece)) > 1 for piece in self.pieces):
            raise DataError("a vocabulary is of different pieces of two bytes or more: train it again")
        self._text = [b""] * FIRST_BYTE + [bytes([i]) for i in range(256)] + [piece.encode() for piece in self.pieces]
        self._longest = max(map(len, self.pieces), default=1)
        self._known: dict[str, list[int]] = {}

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return len(self._text)

    def encode(self, text: str) -> list[int]:
        """The numbers of a question: from the left of each word the longest piece that fits, or else a byte."""
        return [number for word in words_of(text) for number in self._of_word(word)]

    def spell(self, text: str) -> list[int]:
        """The numbers of an answer, bytes only; no EOS.

        >>> Tokenizer([]).spell("No. 7")
        [81, 114, 49, 35, 58]
        """
        return [FIRST_BYTE + byte for byte in _bytes(text)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these numbers up to the first EOS; bytes that are no UTF-8 become U+FFFD.

        >>> Tokenizer([]).decode([BOS, 81, 114, EOS, 49, PAD])
        'No'
        """
        text = bytearray()
        for number in ids:
            if number == EOS:
                break
            if not 0 <= number < self.size:
                raise DataError(f"{number} stands for no text: numbers go from 0 to {self.size - 1}")
            text += self._text[number]
        return text.decode("utf-8", errors="replace")

    def batch(self, lists: Sequence[Sequence[int]], length: int | None = None) -> Int64[Tensor, "b length"]:
        """Lists of numbers as one tensor, filled with PAD on the right; longer ones are cut.

        >>> Tokenizer([]).batch([[81, 114], [58]], length=3).tolist()
        [[81, 114, 0], [58, 0, 0]]
        """
        if length is None:
            length = max(map(len, lists), default=0)
        rows = [[*ids[:length], *[PAD] * (length - len(ids))] for ids in lists]
        return torch.tensor(rows, dtype=torch.int64).reshape(len(lists), length)

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> "Tokenizer":
        """A tokenizer of at most `size` numbers: again and again the piece that saves most tokens on these texts.

        >>> Tokenizer.train(["which date", "which dates?", "a date"], size=FIRST_PIECE + 2).pieces
        (' date', 'which')
        """
        if size < FIRST_PIECE:
            raise DataError(f"a vocabulary of {size} is too small: {FIRST_PIECE} are needed for bytes alone")
        words = Counter(word for text in texts for word in words_of(text))
        parts = {word: list(word) for word in words if len(_bytes(word)) > 1}
        saved: Counter[str] = Counter()
        for word, split in parts.items():
            _count(saved, words[word], split, set())
        pieces: set[str] = set()
        while len(pieces) < size - FIRST_PIECE:
            most = max(saved.values(), default=0)
            if most <= 0:
                break
            best = max(piece for piece, tokens in saved.items() if tokens == most)  # one of them, always the same
            pieces.add(best)
            tokenizer = cls(pieces)
            for word in parts:
                if best in word:
                    _count(saved, -words[word], parts[word], pieces - {best})
                    parts[word] = list(tokenizer._split(word))
                    _count(saved, words[word], parts[word], pieces)
        return cls(sorted(pieces))

    def save(self, path: str | os.PathLike) -> None:
        """As JSON, a piece a line."""
        Path(path).write_text(json.dumps({"pieces": self.pieces}, ensure_ascii=False, indent=0) + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Tokenizer":
        """What `save` wrote."""
        try:
            return cls(json.loads(Path(path).read_text("utf-8"))["pieces"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is no vocabulary ({error}): write one with Tokenizer.save") from None

    def _of_word(self, word: str) -> list[int]:
        ids = self._known.get(word)
        if ids is None:
            ids = []
            for part in self._split(word):
                ids += [self._ids[part]] if part in self._ids else self.spell(part)
            if len(self._known) == KNOWN:
                self._known.clear()
            self._known[word] = ids
        return ids

    def _split(self, word: str) -> Iterator[str]:
        """The word's pieces, and its characters where no piece fits."""
        start = 0
        while start < len(word):
            ends = range(min(len(word), start + self._longest), start, -1)
            end = next((end for end in ends if word[start:end] in self._ids), start + 1)
            yield word[start:end]
            start = end


def words_of(text: str) -> list[str]:
    """A text cut into what pieces are sought in: words and signs with their leading space, digits, other spaces.

    >>> words_of("Look at row 12.")
    ['Look', ' at', ' row', ' ', '1', '2', '.']
    """
    return _WORD.findall(text)


@cache
def default_tokenizer() -> Tokenizer:
    """The vocabulary of the shipped model; `python -m homunculus.train.vocabulary` makes it.

    >>> default_tokenizer().size
    1024
    """
    return Tokenizer.load(VOCABULARY)


def _count(saved: Counter[str], times: int, split: list[str], pieces: set[str]) -> None:
    """Add what each run of these parts would save if it were one piece, in a word seen so many times."""
    for start in range(len(split)):
        tokens = 0
        for end in range(start, len(split)):
            part = split[end]
            tokens += 1 if part in pieces else len(_bytes(part))
            if tokens > 1:
                saved["".join(split[start : end + 1])] += times * (tokens - 1)


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise DataError(f"{text!r} holds half a character: give text that can be written as UTF-8") from None
