"""Pictures of wins and losses: what two methods looked at where one of them was right and the other was not.

The image is drawn anew from its key; relevance is predicted by the weights that are given, and the cells follow. Under
each page is what was left of the place of the answer. Which questions are shown follows from their keys alone: for
every family, the first win and the first loss.
"""

import base64
import html
import io
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image, ImageDraw

from homunculus.allocation import allocate_view
from homunculus.data import FAMILIES, make
from homunculus.errors import HomunculusError
from homunculus.foveate import make_view
from homunculus.model.looking import LearnedRelevance
from homunculus.reconstruct import reconstruct
from homunculus.report.blocks import Block, Drawing, Heading, Text
from homunculus.report.decision import BASE, OURS
from homunculus.report.numbers import Found, Row
from homunculus.report.sheet import ARMS, Arm
from homunculus.sampling import sample
from homunculus.structures import VisualTokens, rectangular
from homunculus.viz.overlay import overlay, panel_size, to_pil

WIDE = 560  # pixels of a picture
FRAME = (215, 20, 60)  # round the place of the answer


def choose(first: Found, second: Found) -> str | None:
    """The first question, by its image's number, that one answers right and the other wrong.

    >>> keys = "scenes/val/10#0", "scenes/val/9#0", "scenes/val/9#1"
    >>> some = [{key: {"exact": value} for key, value in zip(keys, own)} for own in ((1, 1, 1), (0, 1, 1))]
    >>> choose(*(Found("", "", "", rows) for rows in some))
    'scenes/val/10#0'
    """
    keys = (key for key, row in first.rows.items() if key in second.rows and row["exact"] > second.rows[key]["exact"])
    return min(keys, key=_place, default=None)


def _place(key: str) -> tuple[str, int, int]:
    image, _, question = key.partition("#")
    folder, _, index = image.rpartition("/")
    return folder, int(index) if index.isdigit() else 0, int(question or 0)


def example_sections(arm: Arm, model: Any, own_weights: bool) -> list[Block]:
    """For every family, a question that ours wins and one that it loses, with what both looked at."""
    blocks: list[Block] = []
    for family in FAMILIES:
        ours, theirs = arm.find(OURS, [family]), arm.find(BASE, [family])
        for title, key in (("won", choose(ours, theirs)), ("lost", choose(theirs, ours))):
            if key is not None and (pictures := drawn(model, arm, key, ours.rows[key], theirs.rows[key])):
                row = ours.rows[key]
                caption = f"{family}, {title}: “{row['question']}” The answer is “{row['answers'][0]}”. ({key})"
                blocks.append(Drawing(pictures, caption, "examples"))
    if not blocks:
        return []
    lead = f"`{OURS}` and `{BASE}` on one question, {ARMS[arm.name]}: the first of each family that only one has right."
    if not own_weights:
        lead += (
            " The cells are drawn by other weights than those that answered, and may differ from what these looked at."
        )
    return [Heading("Wins and losses"), Text(lead), *blocks]


def drawn(model: Any, arm: Arm, key: str, ours: Row, theirs: Row) -> list[str]:
    """A picture for each method; nothing where the image is not one of ours to draw."""
    family, split, index = key.partition("#")[0].rsplit("/", 2)
    try:
        record = make(family, split, int(index), size=arm.sheet.size)  # type: ignore[arg-type]
    except HomunculusError:
        return []
    image = torch.from_numpy(record.image).permute(2, 0, 1)
    view = make_view(image, ours["question"], arm.sheet.budget, None, LearnedRelevance(model))
    pictures = []
    for method, row in ((OURS, ours), (BASE, theirs)):
        allocation = rectangular(allocate_view(view, arm.sheet.budget, method))
        tokens = VisualTokens(sample(view.pyramid.images, allocation), allocation)
        cells = overlay(image, allocation, panel_size(arm.sheet.size, (WIDE, WIDE)))
        _outline(cells, row["boxes"], cells.width / arm.sheet.size[0])
        seen = to_pil(reconstruct(tokens, max(arm.sheet.size)).images[0])
        mark = "right" if row["exact"] else "wrong"
        said = f'<p class="said"><code>{method}</code> said “{html.escape(row["said"])}”: {mark}</p>'
        alts = f"cells of {method}", f"what {method} kept of the answer"
        shown = [cells, *([closely(seen, row["boxes"][0])] if row["boxes"] else [])]
        pictures.append(said + "".join(_inline(one, alt) for one, alt in zip(shown, alts, strict=False)))
    return pictures


def closely(picture: Image.Image, box: Sequence[float]) -> Image.Image:
    """The place of the answer with a margin, four times as wide as high, as wide as the other pictures."""
    x0, y0, x1, y1 = box
    scale = picture.width, picture.height
    width = min(scale[0], max(x1 - x0 + 48, 4 * (y1 - y0 + 24)))
    height = width / 4
    left = min(max(0.0, (x0 + x1 - width) / 2), scale[0] - width)
    top = min(max(0.0, (y0 + y1 - height) / 2), scale[1] - height)
    part = picture.crop((round(left), round(top), round(left + width), round(top + height)))
    return part.resize((WIDE, WIDE // 4), Image.Resampling.BICUBIC)


def _outline(picture: Image.Image, boxes: Sequence[Sequence[float]], scale: float) -> None:
    draw = ImageDraw.Draw(picture)
    for x0, y0, x1, y1 in boxes:
        draw.rectangle((x0 * scale - 3, y0 * scale - 3, x1 * scale + 3, y1 * scale + 3), outline=FRAME, width=2)


def _inline(picture: Image.Image, alt: str) -> str:
    out = io.BytesIO()
    picture.save(out, format="WEBP", quality=78, method=6)
    data = base64.b64encode(out.getvalue()).decode()
    size = f'width="{picture.width}" height="{picture.height}"'
    return f'<img {size} alt="{html.escape(alt)}" src="data:image/webp;base64,{data}">'
