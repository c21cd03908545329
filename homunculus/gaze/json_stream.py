"""Large JSON files piece by piece: the elements of an array, or of the arrays in an object, without holding all.

Only what gaze data sets need: a file that is one array, or one object whose long values are arrays. An element is
decoded as soon as it is whole; a file that ends in the middle, or goes on behind its end, is refused by name.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from homunculus.errors import DataError

PIECE = 1 << 20  # characters read at once

_decoder = json.JSONDecoder()


def elements(path: Path) -> Iterator[tuple[str, Any]]:
    """(key, element) of every element of every array of a file, in order; the key is "" where the file is one array.

    Values of an object that are no arrays come whole, as one element.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "a.json"
    ...     _ = file.write_text('{"images": [{"id": 1}, {"id": 2}], "type": "fixations"}')
    ...     list(elements(file))
    [('images', {'id': 1}), ('images', {'id': 2}), ('type', 'fixations')]
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield from _Reader(file, path).elements()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path} cannot be read ({reason}): give a JSON file as it was published") from None


class _Reader:
    """A window on a file of text that moves forward."""

    def __init__(self, file: Any, path: Path) -> None:
        self.file, self.path = file, path
        self.text, self.at, self.ended = "", 0, False

    def elements(self) -> Iterator[tuple[str, Any]]:
        opening = self.peek()
        if opening == "[":
            for element in self.array():
                yield "", element
        elif opening == "{":
            self.at += 1
            while self.peek() != "}":
                key = self.value()
                self.expect(":")
                if self.peek() == "[":
                    for element in self.array():
                        yield key, element
                else:
                    yield key, self.value()
                if self.peek() == ",":
                    self.at += 1
                elif self.peek() != "}":
                    raise self.broken()
            self.at += 1
        else:
            raise self.broken()
        if not self.at_end():
            raise self.broken()

    def array(self) -> Iterator[Any]:
        self.expect("[")
        while self.peek() != "]":
            yield self.value()
            if self.peek() == ",":
                self.at += 1
            elif self.peek() != "]":
                raise self.broken()
        self.at += 1

    def value(self) -> Any:
        """The next value whole; more is read until it is, twice as much each time."""
        self.peek()
        piece = PIECE
        while True:
            try:
                value, end = _decoder.raw_decode(self.text, self.at)
                if end < len(self.text) or self.ended:  # at the very end a number might go on
                    self.at = end
                    return value
            except json.JSONDecodeError as error:
                # What is only cut off fails at the end of the text, or a few letters before it; the rest is no JSON.
                left = len(self.text.rstrip()) - error.pos
                at_end = left <= 0 or "Unterminated" in error.msg
                if self.ended:
                    raise (self.cut_off() if at_end else self.broken()) from None
                if not at_end and left > 32:
                    raise self.broken() from None
            except (RecursionError, ValueError):  # lists in lists without end, a number of thousands of digits
                raise self.broken() from None
            self.more(piece)
            piece *= 2

    def peek(self) -> str:
        """The next character that is no space."""
        if self.at_end():
            raise self.cut_off()
        return self.text[self.at]

    def at_end(self) -> bool:
        """Whether nothing follows but spaces; these are skipped."""
        while True:
            while self.at < len(self.text) and self.text[self.at].isspace():
                self.at += 1
            if self.at < len(self.text):
                return False
            if self.ended:
                return True
            self.more(PIECE)

    def expect(self, character: str) -> None:
        if self.peek() != character:
            raise self.broken()
        self.at += 1

    def more(self, characters: int) -> None:
        read = self.file.read(characters)
        self.text, self.at, self.ended = self.text[self.at :] + read, 0, not read

    def broken(self) -> DataError:
        return DataError(f"{self.path} is no JSON: give the file as it was published")

    def cut_off(self) -> DataError:
        return DataError(f"{self.path} ends in the middle: download it again")
