"""What the token cache saves on the example page: three fixations, follow-up questions, coarse-to-fine loading.

    python -m bench.cache

Relevance is that of pixels, so that nothing depends on weights. "sampled" are the cells that had to be read from the
image, against all cells of the looks, which is what would be read without a cache. The second table times the cache
itself. The reference sampler passes over the whole image for a single missing cell, so on it time is saved only where
nothing is missing; a kernel that reads cell by cell saves by the cell.
"""

from collections.abc import Callable, Iterable

import torch
from rich.console import Console
from rich.table import Table

from bench.timing import announce, median_ms
from homunculus.cache import TokenCache, content_key
from homunculus.fixation import Observer, progressive
from homunculus.sampling import sample
from homunculus.structures import VisualTokens
from homunculus.viz.example import QUESTION, example_page

LIMIT = 0.6
FOLLOW_UPS = [
    "What is the total?",
    "Who is it billed to, at the top left?",
    "What is the payment reference in the footer?",
]


def looks() -> dict[str, Callable[[TokenCache], Iterable[VisualTokens]]]:
    """Name to a function that looks several times through a cache."""
    page = example_page()

    def fixate(combine: str, **options: object) -> Callable[[TokenCache], Iterable[VisualTokens]]:
        def run(cache: TokenCache) -> Iterable[VisualTokens]:
            observer = Observer(page, relevance="pixels", cache=cache, **options)
            return (glance.tokens for glance in observer.fixate(QUESTION, 3, combine=combine, enough=None))

        return run

    def ask(*questions: str) -> Callable[[TokenCache], Iterable[VisualTokens]]:
        def run(cache: TokenCache) -> Iterable[VisualTokens]:
            observer = Observer(page, relevance="pixels", cache=cache)
            return (observer.look(question) for question in questions)

        return run

    return {
        "three fixations, one tree over all so far": fixate("tree"),
        "three fixations, each on its own": fixate("concat"),
        "three fixations, each on its own, fixation_share=0.3": fixate("concat", fixation_share=0.3),
        "three questions": ask(QUESTION, *FOLLOW_UPS[:2]),
        "a question and three follow-ups": ask(QUESTION, *FOLLOW_UPS),
        "64, 128, 273 tokens, coarse to fine": lambda cache: progressive(
            page, QUESTION, relevance="pixels", cache=cache
        ),
    }


def savings(console: Console) -> None:
    table = Table("", "sampled, look by look", "sampled", "later looks", f"under {LIMIT:.0%}", "KiB held")
    table.title = f"cells sampled with a cache, {QUESTION}"
    for name, run in looks().items():
        cache = TokenCache()
        sampled, asked = [], []
        for tokens in run(cache):
            sampled.append(cache.stats.misses - sum(sampled))
            asked.append(tokens.allocation.budget)
        share, later = sum(sampled) / sum(asked), sum(sampled[1:]) / sum(asked[1:])
        steps = ", ".join(f"{new}/{n}" for new, n in zip(sampled, asked, strict=True))
        held = f"{cache.stats.bytes / 1024:.0f}"
        table.add_row(name, steps, f"{share:.1%}", f"{later:.1%}", "yes" if share < LIMIT else "no", held)
    console.print(table)


def binary_search(known: torch.Tensor, wanted: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """What a dictionary competes with: hashes of the cells, found in a sorted table."""

    def mixed(cells: torch.Tensor) -> torch.Tensor:
        bits = torch.zeros(len(cells), dtype=torch.int64)
        for column in cells.view(torch.int32).unbind(1):
            bits = (bits ^ column.long()) * -7046029254386353131
            bits = bits ^ (bits >> 29)
        return bits

    table, order = known.sort()
    place = torch.searchsorted(table, mixed(wanted)).clamp(max=len(table) - 1)
    return rows[order[place]]


def speed(console: Console) -> None:
    page = example_page()[None]
    observer = Observer(page, relevance="pixels")
    allocation = observer.look(QUESTION).allocation
    keys, full = [content_key(page[0])], TokenCache()
    patches = full.sample(page, allocation, keys)
    cells = torch.cat((allocation.boxes[0], allocation.angle[0][:, None]), dim=1)
    known = torch.randint(-(2**62), 2**62, (allocation.budget,))
    rows = {
        "name the image by its contents": lambda: content_key(page[0]),
        "sample, no cache": lambda: sample(page, allocation),
        "sample, empty cache": lambda: TokenCache().sample(page, allocation, keys),
        "sample, every cell in the cache": lambda: full.sample(page, allocation, keys),
        "the same by sort and binary search": lambda: binary_search(known, cells, patches[0]),
    }
    table = Table(
        "", "ms", title=f"the cache itself, {allocation.budget} cells of {page.shape[3]} x {page.shape[2]} px"
    )
    for name, run in rows.items():
        table.add_row(name, f"{median_ms(run):.2f}")
    console.print(table)


def main() -> None:
    console = announce(width=140)
    savings(console)
    speed(console)


if __name__ == "__main__":
    main()
