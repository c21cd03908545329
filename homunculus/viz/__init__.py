"""Pictures of what was looked at. Pillow only."""

from homunculus.viz.example import example_page
from homunculus.viz.figures import gallery_figure, look_figure
from homunculus.viz.overlay import overlay

__all__ = ["example_page", "gallery_figure", "look_figure", "overlay"]
