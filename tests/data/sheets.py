"""A blank page, what has been drawn on it, and whether one box lies in another."""

from PIL import Image, ImageChops

from homunculus.data.dice import Dice
from homunculus.data.documents.page import Page


def blank(size=(512, 512), split="train"):
    page = Page(size, split, Dice("blank"))
    page.paper = (255, 255, 255)
    page.image.paste(page.paper, (0, 0, *size))
    return page


def inked(page, least=1):
    """The box of all pixels that are not paper."""
    paper = Image.new("RGB", page.size, page.paper)
    difference = ImageChops.difference(page.image, paper).convert("L")
    return difference.point([0] * least + [255] * (256 - least)).getbbox()


def inside(small, large_):
    return small[0] >= large_[0] and small[1] >= large_[1] and small[2] <= large_[2] and small[3] <= large_[3]
