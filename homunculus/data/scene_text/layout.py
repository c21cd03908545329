"""Where writing is in a picture: a large thing in the middle, smaller ones beside it, the smallest along the border.

A plan is a list of slots that do not overlap, as shares of the picture; plans are mirrored at random. A slot is filled
with a thing that suits its region and shape, seen at an angle, as large as its letters may be and the slot allows.
"""

from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFilter

from homunculus.data.dice import Dice
from homunculus.data.record import Box, Region, Split
from homunculus.data.scene_text.held_out import HELD_OUT_SURFACES
from homunculus.data.scene_text.panel import Panel
from homunculus.data.scene_text.surfaces import COLOURS, SURFACES, Surface
from homunculus.data.scene_text.warp import onto, projection, through, tilted, window
from homunculus.errors import DataError

Share = tuple[float, float, float, float]

# height of capitals in pixels of a picture of 1024 x 1024
HEIGHTS: dict[Region, tuple[int, int]] = {"target": (46, 90), "secondary": (24, 44), "periphery": (12, 22)}
ZOOM = 1.5  # things are drawn this much larger than they are seen
_SKETCH = 20  # height of letters at which a thing is measured
_MOST = 8  # texts in a picture
FAINTEST = 32  # of 255: what counts as ink

_CORNERS: tuple[Share, ...] = (
    (0.01, 0.01, 0.29, 0.13),
    (0.71, 0.01, 0.99, 0.13),
    (0.01, 0.87, 0.29, 0.99),
    (0.71, 0.87, 0.99, 0.99),
    (0.34, 0.01, 0.66, 0.13),
    (0.34, 0.87, 0.66, 0.99),
)
_PLANS: tuple[tuple[Share, tuple[Share, ...]], ...] = (  # the main slot and the others
    ((0.17, 0.16, 0.83, 0.56), ((0.17, 0.6, 0.52, 0.84), (0.58, 0.59, 0.8, 0.85))),
    ((0.37, 0.15, 0.68, 0.85), ((0.04, 0.2, 0.33, 0.52), (0.04, 0.56, 0.33, 0.84), (0.72, 0.25, 0.95, 0.75))),
    ((0.16, 0.42, 0.84, 0.85), ((0.17, 0.16, 0.48, 0.38), (0.54, 0.15, 0.83, 0.39))),
    ((0.04, 0.16, 0.64, 0.62), ((0.68, 0.16, 0.93, 0.6), (0.2, 0.65, 0.8, 0.84))),
)
_HELD_OUT_PLANS: tuple[tuple[Share, tuple[Share, ...]], ...] = (
    ((0.22, 0.34, 0.78, 0.68), ((0.2, 0.15, 0.8, 0.31), (0.2, 0.71, 0.8, 0.85))),
    ((0.4, 0.2, 0.96, 0.66), ((0.04, 0.17, 0.36, 0.44), (0.06, 0.5, 0.34, 0.82))),
)


@dataclass(frozen=True)
class Text:
    """A text as it is seen: what is asked of it (or nothing), what it says, the box of its ink, its region."""

    question: str
    answer: str
    kind: str
    box: Box
    region: Region
    surface: str


def arranged(image: Image.Image, dice: Dice, split: Split) -> list[Text]:
    """Hang things with writing on a wall, in place; every text that can be read, asked for or not."""
    surfaces = HELD_OUT_SURFACES if split == "test-ood" else SURFACES
    colours, unused = dice.shuffled(sorted(COLOURS)), list(surfaces)
    texts: list[Text] = []
    for number, (region, slot) in enumerate(_slots(dice, split)):
        room = 1 if region == "periphery" else 4  # for what one thing brings, and the periphery after it
        if len(texts) + room > _MOST and any(text.region == region for text in texts):
            continue
        tall = (slot[3] - slot[1]) * image.height > (slot[2] - slot[0]) * image.width * 0.9
        fitting = [name for name in unused if region in surfaces[name].regions]
        name = dice.choice([name for name in fitting if surfaces[name].tall == tall] or fitting)
        # Signs and banners are told apart by colour; of the others there is one.
        if name not in ("sign", "banner"):
            unused.remove(name)
        colour = colours.pop()
        texts += _hung(image, dice.fork("thing", number), split, name, surfaces[name], region, slot, colour)
    return texts


def _slots(dice: Dice, split: Split) -> list[tuple[Region, Share]]:
    """The slots to fill, mirrored at random: the main one, one or two others, two to four along the border."""
    main, others = dice.choice(_HELD_OUT_PLANS if split == "test-ood" else _PLANS)
    border = dice.sample(_CORNERS, dice.integer(2, 4))
    slots: list[tuple[Region, Share]] = [("target", main)]
    slots += [("secondary", slot) for slot in dice.sample(others, dice.integer(1, 2))]
    slots += [("periphery", slot) for slot in border]
    if dice.chance(0.5):
        slots = [(region, (1 - x1, y0, 1 - x0, y1)) for region, (x0, y0, x1, y1) in slots]
    if dice.chance(0.5):
        slots = [(region, (x0, 1 - y1, x1, 1 - y0)) for region, (x0, y0, x1, y1) in slots]
    return slots


def _hung(
    image: Image.Image, dice: Dice, split: Split, name: str, surface: Surface, region: Region, slot: Share, colour: str
) -> list[Text]:
    """One thing, drawn flat, tilted into its slot, with its shadow; the texts on it."""
    width, height = image.size
    scale = min((width * height) ** 0.5 / 1024, min(width, height) / 512)
    into = (slot[0] * width, slot[1] * height, slot[2] * width, slot[3] * height)
    low, high = HEIGHTS[region]
    letter = dice.uniform(low, high) * scale * ZOOM
    sketch = surface.draw(dice.fork("look"), split, _SKETCH, colour).size  # how much room it takes
    room = min(ZOOM * (into[2] - into[0]) / sketch[0], ZOOM * (into[3] - into[1]) / sketch[1])
    panel = surface.draw(dice.fork("look"), split, _unit(min(letter, _SKETCH * room)), colour)
    _glare(panel, dice)
    seen_size = round(panel.size[0] / ZOOM), round(panel.size[1] / ZOOM)
    quad = tilted(dice, seen_size, into, surface.turn, 0.05 if surface.turn < 5 else 0.2)
    way, around = projection(panel.size, quad), window(quad, image.size)
    outline = through(panel.outline, way, around)
    _shadow(image, outline, around[:2])
    image.paste(through(panel.paint, way, around), around[:2], outline)
    texts = []
    for ink in panel.inks:
        x, y = ink.at
        corners = [(x, y), (x + ink.mask.width, y), (x + ink.mask.width, y + ink.mask.height), (x, y + ink.mask.height)]
        part = window([onto(corner, panel.size, quad) for corner in corners], image.size)
        mask = through(ink.mask, way, part, ink.at)
        found = mask.point([255 * (level >= FAINTEST) for level in range(256)]).getbbox()
        if found is None:
            raise DataError(f"no room to write {ink.answer!r} in {width} x {height} pixels: take at least 128 x 128")
        box = part[0] + found[0], part[1] + found[1], part[0] + found[2], part[1] + found[3]
        texts.append(Text(ink.question, ink.answer, ink.kind, box, region, name))
    return texts


def _unit(height: float) -> int:
    """The nearest height of letters that we draw: few sizes, so that fonts are opened once and not for each thing."""
    return max(8, int(height)) if height < 20 else int(height / 5) * 5


def _shadow(image: Image.Image, outline: Image.Image, at: tuple[int, int]) -> None:
    """A soft shadow to the lower right, blurred at half the size."""
    reach = max(1, max(outline.size) // 80)
    small = outline.reduce(2)
    room = Image.new("L", (small.width + 4 * reach, small.height + 4 * reach))
    room.paste(small.point([level * 11 // 20 for level in range(256)]), (2 * reach, 2 * reach))
    soft = room.filter(ImageFilter.BoxBlur(reach)).resize((2 * room.width, 2 * room.height), Image.Resampling.BILINEAR)
    image.paste((18, 16, 20), (at[0] - 2 * reach, at[1] - 2 * reach), soft)


def _glare(panel: Panel, dice: Dice) -> None:
    """A bright band across the thing, thin enough to read through."""
    if dice.chance(0.75):
        return
    width, height = panel.size
    band = Image.new("L", panel.size)
    x, wide = dice.integer(0, width), dice.integer(width // 8, width // 3)
    ImageDraw.Draw(band).polygon(
        [(x, 0), (x + wide, 0), (x + wide - height // 2, height), (x - height // 2, height)], fill=dice.integer(40, 90)
    )
    panel.paint.paste((255, 255, 252), (0, 0), band)
