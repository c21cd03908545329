"""What can be asked of a scene: attributes, existence, counts, relations, extremes; each with one true answer.

Nothing is asked that a person could dispute: a thing is named by words that fit no other, "small" needs the others of
its name to be much larger, "above" needs boxes that do not overlap in height, an extreme needs a clear lead. Answers
are drawn before the things they are true of wherever that keeps them even (yes and no, textures).

The region of a question is that of the thing the answer is seen on; where that is several things or the whole image
it is `target`.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations, product

from homunculus.data.dice import Dice
from homunculus.data.record import Question
from homunculus.data.scenes.layout import Scene, Thing
from homunculus.data.scenes.objects import TEXTURE_SIDE
from homunculus.data.scenes.shapes import plural
from homunculus.geometry import Size

LEAD = 1.6  # how much larger the others must be before one is "the small" of them, or smaller for "the large"
NEAR = 0.3  # "directly left of": the gap between the boxes, as a share of the image's side, is at most this

DIRECTIONS = ("left", "right", "above", "below")
_NEXT = {
    "left": "directly to the left of",
    "right": "directly to the right of",
    "above": "directly above",
    "below": "directly below",
}
_BESIDE = {"left": "to the left of", "right": "to the right of", "above": "above", "below": "below"}


def questions(scene: Scene, size: Size, dice: Dice) -> tuple[Question, ...]:
    """Questions on all three regions, no text twice."""
    asked: dict[str, Question] = {}
    makers: tuple[Callable[[Scene, Size, Dice], Iterator[Question]], ...] = (
        _colours,
        _textures,
        _shapes,
        _existence,
        _counts,
        _neighbours,
        _sides,
        _extremes,
    )
    for make in makers:
        for question in make(scene, size, dice.fork(make.__name__)):
            asked.setdefault(question.text, question)
    return tuple(asked.values())


def names(thing: Thing, things: Sequence[Thing], hidden: str = "") -> list[str]:
    """Every way to name a thing that fits no other, without the hidden attribute; shorter ones first."""
    look, found = thing.look, []
    for size, colour, texture in sorted(product((False, True), repeat=3), key=sum):
        if (colour and hidden == "colour") or (texture and hidden == "texture"):
            continue
        same = [
            other
            for other in things
            if (hidden == "shape" or other.look.shape == look.shape)
            and (not colour or other.look.colour == look.colour)
            and (not texture or other.look.texture == look.texture)
        ]
        rest = [other for other in same if other is not thing]
        words = [look.colour] * colour + [look.texture] * texture + ["object" if hidden == "shape" else look.shape]
        if size and rest:
            if thing.extent * LEAD <= min(other.extent for other in rest):
                found.append(" ".join(["small", *words]))
            elif thing.extent >= LEAD * max(other.extent for other in rest):
                found.append(" ".join(["large", *words]))
        elif not size and not rest:
            found.append(" ".join(words))
    return found


def _named(thing: Thing, things: Sequence[Thing], dice: Dice, hidden: str = "") -> str:
    """One of a thing's names, or nothing when it has none; the shortest half the time."""
    found = names(thing, things, hidden)
    return "" if not found else found[0] if dice.chance(0.5) else dice.choice(found)


def _of_each_region(things: Sequence[Thing], dice: Dice) -> list[Thing]:
    """The things in random order, but one of each region first."""
    mixed = dice.shuffled(things)
    first = [next(t for t in mixed if t.region == r) for r in ("periphery", "secondary", "target")]
    return first + [thing for thing in mixed if thing not in first]


def _colours(scene: Scene, size: Size, dice: Dice) -> Iterator[Question]:
    wanted: list[str] = ["periphery", "secondary", "target", "any"]
    for thing in _of_each_region(scene.things, dice):
        place = thing.region if thing.region in wanted else "any"
        name = _named(thing, scene.things, dice, "colour")
        if name and place in wanted:
            wanted.remove(place)
            yield _about(thing, f"What colour is the {name}?", thing.look.colour, "colour")


def _textures(scene: Scene, size: Size, dice: Dice) -> Iterator[Question]:
    large = [t for t in scene.things if min(t.box[2] - t.box[0], t.box[3] - t.box[1]) >= TEXTURE_SIDE]
    for texture in dice.sample(sorted({thing.look.texture for thing in large}), 2):
        thing = dice.choice([t for t in large if t.look.texture == texture])
        if texture == "plain" and dice.chance(0.35):  # nearly every scene has a plain thing, not so the others
            continue
        if name := _named(thing, scene.things, dice, "texture"):
            yield _about(thing, f"What pattern does the {name} have?", texture, "texture")


def _shapes(scene: Scene, size: Size, dice: Dice) -> Iterator[Question]:
    for thing in dice.shuffled(scene.things):
        if name := _named(thing, scene.things, dice, "shape"):
            yield _about(thing, f"What shape is the {name}?", thing.look.shape, "shape")
            return


def _existence(scene: Scene, size: Size, dice: Dice) -> Iterator[Question]:
    """Yes or no by a coin; a no is a colour and a shape that are both there, but not together."""
    pairs = {(thing.look.colour, thing.look.shape) for thing in scene.things}
    there = sorted(pairs)
    colours, shapes = (sorted(set(values)) for values in zip(*pairs, strict=True))
    absent = [pair for pair in product(colours, shapes) if pair not in pairs]
    for _ in range(2):
        truth = dice.chance(0.5)
        colour, shape = dice.choice(there if truth else absent)
        seen = [thing for thing in scene.things if (thing.look.colour, thing.look.shape) == (colour, shape)]
        article = "an" if colour[0] in "aeiou" else "a"
        text = f"Is there {article} {colour} {shape}?"
        yield _over(seen, size, text, "yes" if truth else "no", "existence")


def _counts(scene: Scene, size: Size, dice: Dice) -> Iterator[Question]:
    """Of the kind that was laid to be counted, so that none to nine are equally likely."""
    colour, shape = scene.counted
    seen = [thing for thing in scene.things if (thing.look.colour, thing.look.shape) == scene.counted]
    yield _over(seen, size, f"How many {colour} {plural(shape)} are there?", str(len(seen)), "count")


def _neighbours(scene: Scene, size: Size, dice: Dice) -> Iterator[Question]:
    """ "What is directly to the left of the blue cup?": for at most two answers."""
    found = 0
    for thing, direction in dice.shuffled(list(product(scene.things, DIRECTIONS))):
        near = neighbour(thing, direction, scene.things, size)
        if near is None or not (name := _named(thing, scene.things, dice)):
            continue
        found += 1
        answers = (near.look.shape, f"{near.look.colour} {near.look.shape}")
        yield Question(f"What is {_NEXT[direction]} the {name}?", answers, (near.box,), near.region, "relation")
        if found == 2:
            return


def neighbour(thing: Thing, direction: str, things: Sequence[Thing], size: Size) -> Thing | None:
    """The thing next to another on one side, if nobody could name a different one.

    Its box begins past the other's and its centre lies level with the other's box; whatever else lies that way, even
    in part, must begin at least half as far again.
    """
    near = []
    for other in things:
        gap, level, touches = _gap(thing, other, direction)
        if other is not thing and touches and gap > -other.extent:
            near.append((gap, level, other))
    near.sort(key=lambda entry: entry[0])
    if not near:
        return None
    gap, level, found = near[0]
    side = size[0] if direction in ("left", "right") else size[1]
    apart = len(near) == 1 or near[1][0] >= 1.5 * max(gap, 0) + found.extent / 2
    return found if level and apart and 0 <= gap <= NEAR * side else None


def _gap(thing: Thing, other: Thing, direction: str) -> tuple[int, bool, bool]:
    """The gap to another box on one side; whether its centre is level with the thing; whether any of it is."""
    axis = 0 if direction in ("left", "right") else 1
    a, b = thing.box, other.box
    gap = a[axis] - b[axis + 2] if direction in ("left", "above") else b[axis] - a[axis + 2]
    low, high = a[1 - axis], a[3 - axis]
    level = low <= other.centre[1 - axis] <= high
    return gap, level, b[1 - axis] < high and b[3 - axis] > low


def _sides(scene: Scene, size: Size, dice: Dice) -> Iterator[Question]:
    """ "Is the ring above the house?" for two things that can be named and lie clearly so."""
    for one, other in dice.shuffled(list(permutations(dice.sample(scene.things, 6), 2))):
        truth, direction = dice.chance(0.5), dice.choice(DIRECTIONS)
        real = direction if truth else DIRECTIONS[DIRECTIONS.index(direction) ^ 1]
        if _gap(other, one, real)[0] < 0:
            continue
        first, second = _named(one, scene.things, dice), _named(other, scene.things, dice)
        if first and second:
            text = f"Is the {first} {_BESIDE[direction]} the {second}?"
            yield _over([one, other], size, text, "yes" if truth else "no", "side")
            return


EXTREMES: dict[str, Callable[[Thing], float]] = {
    "smallest": lambda thing: thing.extent,
    "largest": lambda thing: -thing.extent,
    "leftmost": lambda thing: thing.box[0],
    "rightmost": lambda thing: -thing.box[2],
    "topmost": lambda thing: thing.box[1],
    "bottommost": lambda thing: -thing.box[3],
}


def extreme(word: str, things: Sequence[Thing], size: Size) -> Thing | None:
    """The smallest, leftmost ... thing if it leads clearly: by a quarter in size, by 1 % of the image in place."""
    rank = EXTREMES[word]
    first, second = sorted(things, key=rank)[:2]
    if word in ("smallest", "largest"):
        large, small = max(first.extent, second.extent), min(first.extent, second.extent)
        area = sorted(things, key=lambda thing: thing.pixels, reverse=word == "largest")
        return first if large >= 1.25 * small and area[0] is first else None
    axis = 0 if word in ("leftmost", "rightmost") else 1
    by_centre = sorted(things, key=lambda thing: thing.centre[axis], reverse=word in ("rightmost", "bottommost"))
    return first if rank(second) - rank(first) >= 0.01 * size[axis] and by_centre[0] is first else None


def _extremes(scene: Scene, size: Size, dice: Dice) -> Iterator[Question]:
    found = 0
    for word in dice.shuffled(tuple(EXTREMES)):
        thing = extreme(word, scene.things, size)
        if thing is None or found == 3:
            continue
        found += 1
        if dice.chance(0.5):
            yield _about(thing, f"What colour is the {word} object?", thing.look.colour, "extreme")
        else:
            yield _about(thing, f"What shape is the {word} object?", thing.look.shape, "extreme")


def _about(thing: Thing, text: str, answer: str, kind: str) -> Question:
    return Question(text, (answer,), (thing.box,), thing.region, kind)


def _over(seen: Sequence[Thing], size: Size, text: str, answer: str, kind: str) -> Question:
    """A question whose answer is seen on several things, or on the whole image where it is on none."""
    boxes = tuple(thing.box for thing in seen) or ((0, 0, *size),)
    return Question(text, (answer,), boxes, seen[0].region if len(seen) == 1 else "target", kind)
