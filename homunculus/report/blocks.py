"""What a page is made of. One list of blocks is written twice, as HTML and as Markdown, so both say the same.

Texts may hold `code` and **bold**, as in Markdown; nothing else is marked up, and everything is escaped.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from homunculus.report.numbers import NONE

TONES = {
    **dict.fromkeys(("holds", "held", "GO"), "good"),
    **dict.fromkeys(("does not hold", "did not hold", "NO-GO"), "bad"),
    **dict.fromkeys(("cannot be told", "open", "not measured", "Not decided"), "open"),
}


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2

    @property
    def anchor(self) -> str:
        """
        >>> Heading("Accuracy, by budget").anchor
        'accuracy-by-budget'
        """
        return re.sub(r"[^a-z0-9]+", "-", self.text.lower()).strip("-")


@dataclass(frozen=True)
class Text:
    text: str
    kind: str = ""  # a class: lead, note, warning


@dataclass(frozen=True)
class Table:
    """Lines of cells under a head; the first cell names the line. `groups` are (name, columns) above the head."""

    head: Sequence[str]
    lines: Sequence[Sequence[str]]
    groups: Sequence[tuple[str, int]] = ()
    prose: bool = False  # sentences, which are wrapped, rather than numbers, which are not


@dataclass(frozen=True)
class Drawing:
    """Pictures side by side, each as markup of its own; Markdown says only what would be seen."""

    pictures: Sequence[str]
    caption: str
    kind: str = ""


@dataclass(frozen=True)
class Box:
    """The decision: a word and what it means."""

    word: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Folded:
    """Blocks behind a line that opens."""

    summary: str
    blocks: Sequence["Block"]


Block = Heading | Text | Table | Drawing | Box | Folded


def marked(text: str) -> str:
    """
    >>> marked("`a<b` is **so**; 1 & 2")
    '<code>a&lt;b</code> is <strong>so</strong>; 1 &amp; 2'
    """
    text = html.escape(text, quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
    text = re.sub(r"\S+ \[[^\]]+\]", r'<span class="whole">\g<0></span>', text)  # a mean stays with its interval
    return text.replace("\n", "<br>")


def to_html(blocks: Sequence[Block]) -> str:
    return "\n".join(map(_html, blocks))


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f'<h{block.level} id="{block.anchor}">{marked(block.text)}</h{block.level}>'
    if isinstance(block, Text):
        return f'<p class="{block.kind}">{marked(block.text)}</p>' if block.kind else f"<p>{marked(block.text)}</p>"
    if isinstance(block, Table):
        return _html_table(block)
    if isinstance(block, Drawing):
        inside = "".join(f"<div>{picture}</div>" for picture in block.pictures)
        caption = f"<figcaption>{marked(block.caption)}</figcaption>"
        return f'<figure class="{block.kind}"><div class="pictures">{inside}</div>{caption}</figure>'
    if isinstance(block, Box):
        lines = "".join(f"<p>{marked(line)}</p>" for line in block.lines)
        tone = TONES.get(block.word, "open")
        return f'<section class="decision {tone}"><h2>{block.word}</h2><div>{lines}</div></section>'
    return f"<details><summary>{marked(block.summary)}</summary>{to_html(block.blocks)}</details>"


WORDS = ' class="text"'


def _html_table(table: Table) -> str:
    groups = ""
    if table.groups:
        cells = "".join(f'<th colspan="{columns}">{marked(name)}</th>' for name, columns in table.groups)
        groups = f'<tr class="groups">{cells}</tr>'
    words = {i for line in table.lines for i, text in enumerate(line) if text[:1].isalpha()}  # columns without numbers
    head = "".join(f"<th{WORDS if i in words else ''}>{marked(name)}</th>" for i, name in enumerate(table.head))
    lines = "".join(
        f"<tr>{''.join(_cell(text, i, table.prose, i in words) for i, text in enumerate(line))}</tr>"
        for line in table.lines
    )
    kind = "prose" if table.prose else "sortable"
    inside = f"<thead>{groups}<tr>{head}</tr></thead><tbody>{lines}</tbody>"
    return f'<div class="scroll"><table class="{kind}">{inside}</table></div>'


def _cell(text: str, column: int, prose: bool, words: bool) -> str:
    if column == 0:
        return f'<th scope="row">{marked(text)}</th>'
    if text in TONES:
        return f'<td><span class="tone {TONES[text]}">{text}</span></td>'
    if not prose and (parts := re.fullmatch(r"(\S+) (\[[^\]]*\])", text)):  # an interval goes under its mean
        return f"<td>{parts[1]} <small>{parts[2]}</small></td>"
    if text == NONE:
        return f'<td class="none">{NONE}</td>'
    return f"<td{WORDS if words else ''}>{marked(text)}</td>"


def to_markdown(blocks: Sequence[Block]) -> str:
    """
    >>> print(to_markdown([Heading("A"), Table(["x", "y"], [["`t`", "1"]])]), end="")
    ## A
    <BLANKLINE>
    | x | y |
    | --- | --- |
    | `t` | 1 |
    """
    return "\n\n".join(text for block in blocks if (text := _markdown(block))) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Text):
        return block.text.replace("\n", "  \n")
    if isinstance(block, Table):
        lines = [block.head, ["---"] * len(block.head), *block.lines]
        return "\n".join(f"| {' | '.join(_plain(cell) for cell in line)} |" for line in lines)
    if isinstance(block, Drawing):
        return f"*(in the HTML page) {block.caption}*"
    if isinstance(block, Box):
        return "\n".join(f"> {line}  " for line in (f"**{block.word}**", *block.lines)).rstrip()
    return f"**{block.summary}**\n\n{to_markdown(block.blocks).rstrip()}"


def _plain(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", "<br>")
