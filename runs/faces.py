"""Free typefaces for the drills of training, from the packages of a Debian machine, cut down to ASCII.

    python runs/faces.py out/faces        about two minutes; then: homunculus train --faces out/faces ...

A reader that met five faces reads a sixth badly: an 8 becomes a 5. None of these is shipped, and none is a cut of
Computer Modern, in which `test-ood` is set. A family comes as NAME-regular.ttf and, where it has them, -bold and
-italic.
"""

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont, TTLibError

from homunculus.train.drills.typefaces import held_out

_PACKAGES = """
adf-accanthis adf-baskervald adf-berenis adf-gillius adf-ikarius adf-irianis adf-libris adf-mekanus adf-romande
adf-switzera adf-tribun adf-universalis adf-verana anonymous-pro arapey averia-sans-gwf averia-serif-gwf b612 cabin
cantarell cardo century-catalogue clear-sans comfortaa comic-neue courier-prime croscore crosextra-caladea
crosextra-carlito dosis dustin ebgaramond essays1743 fantasque-sans fanwood firacode freefont-ttf gfs-artemisia
gfs-bodoni-classic gfs-didot gfs-neohellenic go goudybookletter hack-ttf inconsolata inter jetbrains-mono junicode
jura karla lato league-mono league-spartan liberation lindenhill linuxlibertine manrope monofur mononoki noto-mono
ocr-a ocr-b oldstandard open-sans opendin osifont paratype play prociono quattrocento quicksand roboto-slab
roboto-unhinted sil-andika sil-charis sil-gentium-basic sora texgyre tiresias tuffy ubuntu-title urw-base35 vollkorn
yanone-kaffeesatz yrsa-rasa
"""
PACKAGES = _PACKAGES.split()
SET_OTHERWISE = {  # symbols, keys, small capitals for small letters, scrawls
    "D050000L", "StandardSymbolsPS", "LinuxBiolinumKeyboardO", "GoSmallcaps", "IrianisADFStyleStd",
    "RomandeADFStyleStd", "MekanusADFTitlingStd", "DomesticManners", "Junkyard", "PenguinAttack", "ElAbogadoLoco",
}  # fmt: skip
ASCII = range(0x20, 0x7F)
CUTS = {
    "regular": ("regular", "book", "roman", "normal", "medium"),
    "bold": ("bold",),
    "italic": ("italic", "oblique", "regularitalic", "bookitalic"),
}


def gather(folder: Path) -> int:
    """Fetch, choose, cut down and write; how many families there are."""
    folder.mkdir(parents=True, exist_ok=True)
    families: dict[str, dict[str, tuple[int, Path]]] = defaultdict(dict)
    with tempfile.TemporaryDirectory() as here:
        for number, package in enumerate(PACKAGES, 1):
            print(f"\r{number} of {len(PACKAGES)}: fonts-{package}".ljust(60), end="", file=sys.stderr, flush=True)
            for path in _unpacked(f"fonts-{package}", Path(here)):
                for family, cut, rank in _described(path):
                    if rank < families[family].get(cut, (99, path))[0]:
                        families[family][cut] = rank, path
        print(file=sys.stderr)
        kept = {_plain(family): cuts for family, cuts in families.items() if "regular" in cuts and not held_out(family)}
        kept = {family: cuts for family, cuts in kept.items() if family not in SET_OTHERWISE}
        for family, cuts in sorted(kept.items()):
            for cut, (_, path) in cuts.items():
                _cut_down(path, folder / f"{family}-{cut}.ttf")
    return len(kept)


def _plain(family: str) -> str:
    return re.sub("[^A-Za-z0-9]+", "", family)


def _unpacked(package: str, here: Path) -> list[Path]:
    """The font files of a package, unpacked and not installed."""
    own = here / package
    own.mkdir()
    if subprocess.run(["apt-get", "download", "-q", package], cwd=own, stdout=subprocess.DEVNULL).returncode:
        print(f"\n{package} cannot be had here and is left out", file=sys.stderr)
    for archive in own.glob("*.deb"):
        subprocess.run(["dpkg", "-x", archive.name, "."], cwd=own, check=True)
    return sorted(path for path in own.rglob("*") if path.suffix in (".ttf", ".otf") and not path.is_symlink())


def _described(path: Path) -> Iterator[tuple[str, str, int]]:
    """The family and the cut of a font that has all of ASCII, and how well it suits as that cut; or nothing."""
    try:
        font = TTFont(path, lazy=True)
        known = set(font.getBestCmap() or ())
        names = {number: str(font["name"].getDebugName(number) or "") for number in (1, 2, 16, 17)}
    except (TTLibError, KeyError, AssertionError):
        return
    if known.issuperset(ASCII):
        style = re.sub("[^a-z]", "", (names[17] or names[2]).lower())
        for cut, styles in CUTS.items():
            if style in styles:
                yield names[16] or names[1], cut, styles.index(style)


def _cut_down(path: Path, to: Path) -> None:
    options = subset.Options(layout_features=["kern"], hinting=True, notdef_outline=True, name_IDs=["*"])
    font = subset.load_font(str(path), options)
    cutter = subset.Subsetter(options)
    cutter.populate(unicodes=ASCII)
    cutter.subset(font)
    subset.save_font(font, str(to), options)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give a folder: python runs/faces.py out/faces")
    print(f"{gather(Path(sys.argv[1]))} families in {sys.argv[1]}")
