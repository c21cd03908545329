"""The page of an evaluation: what was decided by rules fixed before, every table and curve, from the rows alone."""

from homunculus.report.decision import decide
from homunculus.report.page import document, to_page
from homunculus.report.sheet import Sheet

__all__ = ["Sheet", "decide", "document", "to_page"]
