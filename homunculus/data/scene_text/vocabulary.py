"""What is written: brands, words, streets, titles, plates, telephone numbers, prices, codes.

All sets are large, so that nobody guesses what a sign says. `test-ood` has syllables, words and formats of its own.
Letters that look like digits (I, O, Q) are left out of plates and codes.
"""

from homunculus.data.dice import Dice
from homunculus.data.record import Split

LETTERS, DIGITS = "ABCDEFGHJKLMNPRSTUVWXYZ", "0123456789"

# (onsets, nuclei, codas) of invented names: the nuclei differ, so no name of one split is a name of the other
_SYLLABLES = {
    False: (
        ("b", "d", "f", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "fl", "kr", "st", "tr"),
        ("a", "e", "i", "o"),
        ("", "", "l", "n", "r", "x", "sk", "nt"),
    ),
    True: (
        ("b", "c", "d", "g", "h", "j", "l", "m", "n", "s", "th", "ch", "gl", "qu", "sl", "wh"),
        ("u", "y", "ou", "ea"),
        ("", "", "b", "d", "m", "ng", "ff", "ss"),
    ),
}
_PLAIN = """
apple anchor autumn bakery balcony bamboo barley basket beacon bicycle biscuit blossom bonfire bottle breeze bridge
butter button cabbage camera candle canvas carpet castle cellar cheese cherry chimney cinema citrus clover coffee
compass copper corner cotton crystal curtain daisy dancer desert dolphin dragon eagle ember engine falcon feather
ferry fiddle forest fountain galaxy garden garlic ginger glacier granite guitar hammer harbour harvest hazel helmet
hollow honey horizon hotel island ivory jacket jasmine jigsaw jungle kettle kitchen ladder lagoon lantern laundry
lavender lemon library lizard lobster magnet mango maple marble market meadow melon mirror mitten morning mountain
museum mustard nectar needle nutmeg oasis olive onion orange orchard oyster paddle palace pantry parade pebble
pepper pigeon pillow pirate planet plaza pocket pony poppy potato prairie pretzel puddle quarry rabbit radish raven
ribbon river rocket saddle saffron salmon sandal savanna scarlet shadow shelter silver smoke sparrow spider spruce
squirrel station sugar summer sunset teapot temple thunder ticket tiger timber tobacco tomato tower tunnel turnip
valley velvet violet violin wagon walnut walrus willow window winter zebra
"""

_RARE = """
acorn almond aviary bagel banjo birch bishop buffalo cactus camel canoe caramel cedar cello chapel cobalt cosmos
cricket cypress denim dynamo easel echo elm fennel fjord flannel gazebo gecko goblet heron hickory husky igloo
indigo jaguar kayak kiosk koala larder lilac lynx magpie mammoth mosaic nickel nomad nougat ocelot opal otter pagoda
panther papaya pelican pewter plum quartz quiver raisin rhubarb sable sequoia sesame sonnet tango topaz trumpet
tulip turban umber velour viaduct vortex wafer wombat yacht yarrow zenith zephyr zinnia
"""

WORDS, HELD_OUT_WORDS = tuple(_PLAIN.split()), tuple(_RARE.split())
_STREETS = {False: ("Street", "Road", "Lane", "Avenue", "Hill"), True: ("Way", "Quay", "Court", "Close")}
_PLATES = {False: ("LLDD LLL", "DDD LLL", "LL DDDD", "LLL DDDD"), True: ("L DDD LL", "DD-LL-DD", "DDDD LLD")}
_PHONES = {False: ("0DDD DDD DDD", "DDD-DDDD", "0DD DDDD DDDD"), True: ("DDD.DDD.DDD", "(DD) DD DD DD")}
_CODES = {False: ("LL-DDDD", "DDDDDD", "LDDD-DD"), True: ("DD/LLLD", "LDLDLD", "DDDD.L")}


def held_out(split: Split) -> bool:
    return split == "test-ood"


def words(split: Split) -> tuple[str, ...]:
    return HELD_OUT_WORDS if held_out(split) else WORDS


def brand(dice: Dice, split: Split) -> str:
    """An invented name of two or three syllables.

    >>> brand(Dice("sign"), "train").isalpha()
    True
    """
    onsets, nuclei, codas = _SYLLABLES[held_out(split)]
    count = dice.weighted((2, 3), (3, 1))
    syllables = [dice.choice(onsets) + dice.choice(nuclei) for _ in range(count)]
    return ("".join(syllables) + dice.choice(codas)).capitalize()


def word(dice: Dice, split: Split) -> str:
    return dice.choice(words(split))


def title(dice: Dice, split: Split) -> str:
    """Two words, as on a poster or a book."""
    first = word(dice, split)
    second = dice.choice([other for other in words(split) if other != first])
    return f"{first} {second}".title()


def street(dice: Dice, split: Split) -> str:
    return f"{word(dice, split)} {dice.choice(_STREETS[held_out(split)])}".title()


def plate(dice: Dice, split: Split) -> str:
    return filled(dice, dice.choice(_PLATES[held_out(split)]))


def phone(dice: Dice, split: Split) -> str:
    return filled(dice, dice.choice(_PHONES[held_out(split)]))


def code(dice: Dice, split: Split) -> str:
    return filled(dice, dice.choice(_CODES[held_out(split)]))


def price(dice: Dice, split: Split) -> str:
    """Whole and hundredths; held out: with a comma."""
    point = "," if held_out(split) else "."
    return f"{dice.integer(1, 89)}{point}{dice.integer(0, 99):02d}"


def hours(dice: Dice, split: Split) -> str:
    """Opening hours; held out: without minutes on the full hour of closing."""
    opens = f"{dice.integer(6, 11)}:{dice.choice(['00', '15', '30', '45'])}"
    return (
        f"{opens} to {dice.integer(13, 23)}"
        if held_out(split)
        else f"{opens}-{dice.integer(13, 23)}:{dice.choice(['00', '30'])}"
    )


def filled(dice: Dice, form: str) -> str:
    """A form with its letters L and digits D drawn.

    >>> len(filled(Dice("plate"), "LLDD LLL"))
    8
    """
    return "".join(dice.choice(LETTERS if c == "L" else DIGITS) if c in "LD" else c for c in form)
