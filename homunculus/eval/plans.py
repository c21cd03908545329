"""One way of asking: which questions, by which method, with how many tokens, by whose relevance.

A method is an allocator by its name, which spends a budget before the encoder; `whole`, which shows every leaf, and the
encoder is told how relevant each is, as with cells; or a published reducer, `peers/` and its name, which is given the
same and keeps fewer, or leaves of which nothing was told with `how={"told": False}` (`peers/whole` keeps them all).
Relevance is said in words, see `eval.relevances`. All that an answer depends on but the weights and the question is in
a plan, and a hash of it marks the rows it gave: a row counts for its own plan only. What has several names (`hit-100`
and `moved-0` are the true region) goes by one, so that it has one hash and is asked once.
"""

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from homunculus.allocation import DEFAULT, allocators, check_budget, get_allocator
from homunculus.cache import content_key
from homunculus.data.stream import check
from homunculus.errors import DataError
from homunculus.eval.relevances import KEPT_CELLS, LEAF, check_relevance
from homunculus.geometry import Size
from homunculus.model.vlm import CompactVLM
from homunculus.peers.reading import ALL_LEAVES, all_peers, stage_of
from homunculus.peers.registry import get_peer, peers

DTYPES = ("float32", "bfloat16")
PEERS, WHOLE = "peers/", "whole"
TRUTH, UNSPOILT = "true", re.compile(r"hit-100|moved-0+")


@dataclass(frozen=True)
class Plan:
    """What to ask and how. `how` are further options, of `answer`, such as looks or progressive, or of the method. With
    bfloat16 products are computed in it, as in training, and sums in float32.

    >>> Plan("documents", method="topk", budget=150).mark("") == Plan("documents", method="topk").mark("")
    False
    >>> Plan("documents", relevance="hit-100").mark("") == Plan("documents", relevance="true").mark("")
    True
    """

    family: str
    split: str = "test-iid"
    questions: int = 2000
    budget: int | None = 273  # None: as few as the method can
    method: str = DEFAULT
    relevance: str = "predicted"
    size: Size = (1024, 1024)
    how: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check(self.family, self.split)
        if self.peer is not None:
            stage_of(self.peer)
        elif self.method != WHOLE:
            get_allocator(self.method)
            check_budget(self.budget)
        elif self.budget is not None:
            raise DataError(f"whole shows every leaf, got a budget of {self.budget}: give None")
        if "told" in self.how:
            self._check_told(self.how["told"])
        check_relevance(self.relevance)
        if self.relevance == KEPT_CELLS and (self.looks_again or not keeps_cells(self.method)):
            raise DataError(
                f"{KEPT_CELLS} keeps upright cells of one look at one image: give an allocator of such cells"
            )
        object.__setattr__(self, "relevance", one_name(self.relevance))
        if self.questions < 2:
            raise DataError(f"{self.questions} questions give no interval: ask at least 2")
        if self.dtype not in DTYPES:
            raise DataError(f"answers are computed in {' or '.join(DTYPES)}, got {self.dtype!r}")

    def _check_told(self, told: Any) -> None:
        """Only of reducers that begin with all leaves is it said; that their encoder is told goes without saying."""
        if self.peer is None or stage_of(self.peer) not in ALL_LEAVES:
            raise DataError(f"{self.method} does not reduce leaves that an encoder could be told of: leave out told")
        if not isinstance(told, bool):
            raise DataError(f"told says whether the encoder is told what is relevant, True or False: got {told!r}")
        if told:
            object.__setattr__(self, "how", {name: value for name, value in self.how.items() if name != "told"})

    @property
    def told(self) -> bool:
        """Whether the encoder hears how relevant each cell or leaf is."""
        return self.how.get("told", True)

    @property
    def peer(self) -> str | None:
        """The reducer that is given every leaf; None where cells are chosen before the encoder."""
        return self.method.removeprefix(PEERS) if self.method.startswith(PEERS) else None

    @property
    def cells(self) -> tuple[str, int]:
        """The allocator and how many cells it gives an image."""
        if self.method == WHOLE:
            columns, rows = (max(1, round(side / LEAF)) for side in self.size)
            return "uniform", columns * rows
        return self.method, self.budget or 0

    @property
    def looks_again(self) -> bool:
        """Whether what is looked at next depends on a draft of the answer."""
        return self.how.get("looks", 1) > 1 or bool(self.how.get("progressive"))

    @property
    def pictures(self) -> tuple[str, str, Size]:
        """What images are asked about: plans that agree in it may share them."""
        return self.family, self.split, self.size

    def settings(self) -> dict[str, Any]:
        """All that an answer depends on but the question and the weights."""
        told = asdict(self)
        del told["questions"]
        return told

    def mark(self, weights: str) -> str:
        """What rows of this plan are known by, for weights with this name."""
        return content_key(json.dumps(self.settings(), sort_keys=True, default=str), weights)

    def keys(self, index: int, count: int) -> list[str]:
        """The keys of the first questions of an image."""
        return [f"{self.family}/{self.split}/{index}#{place}" for place in range(count)]


def one_name(relevance: str) -> str:
    """The name that a relevance goes by: the true region is `true`, whatever it is the mildest form of.

    >>> one_name("hit-100"), one_name("moved-0"), one_name("hit-70"), one_name("0.5 hit-100+0.5 detail")
    ('true', 'true', 'hit-70', '0.5 true + 0.5 detail')
    """
    parts = ([TRUTH if UNSPOILT.fullmatch(word) else word for word in part.split()] for part in relevance.split("+"))
    return " + ".join(map(" ".join, parts))


def weights_key(model: CompactVLM) -> str:
    """A name made of a model's weights and calibration."""
    return content_key(model.calibration.slope, model.calibration.offset, *model.state_dict().values())


def own_budget(method: str, budget: int) -> int | None:
    """The budget of a method in a table; None where it has a count of its own.

    >>> own_budget("topk", 273), own_budget("peers/tome", 273), own_budget("whole", 273), own_budget("peers/fastv", 273)
    (273, 273, None, None)
    """
    if method.startswith(PEERS):
        return budget if stage_of(method.removeprefix(PEERS)) == "features" else None
    return None if method == WHOLE else budget


def keeps_cells(method: str) -> bool:
    """Whether a method has cells that can be kept for another question, and told anew how relevant they are to it.

    >>> [keeps_cells(name) for name in ("topk", "whole", "token-bank", "frequency", "peers/tome")]
    [True, True, False, False, False]
    """
    if method.startswith(PEERS) or method == WHOLE:
        return method == WHOLE
    allocator = get_allocator(method)
    return not (allocator.batchwide or allocator.turned)


def reader_of(method: str) -> str:
    """The method whose reader answers by this one, where readers are tuned. What is forgotten while an answer is
    written is not there to learn from, so `dyrate` has the reader of all leaves.

    >>> reader_of("topk"), reader_of("peers/tome"), reader_of("peers/dyrate"), reader_of("peers/whole")
    ('topk', 'peers/tome', 'whole', 'whole')
    """
    peer = method.removeprefix(PEERS)  # one that is not loaded here is somebody's own, and acts on features
    whole = method != peer and peer in all_peers() and stage_of(peer) in ("none", "decoding")
    return WHOLE if whole else method


def is_built_in(method: str) -> bool:
    """Whether a method comes with the package: what others have registered, or have rows of, is their own.

    >>> [is_built_in(name) for name in ("topk", "whole", "peers/tome", "peers/fastv", "mine", "peers/loudest")]
    [True, True, True, True, False, False]
    """
    name = method.removeprefix(PEERS)
    if method == WHOLE or (method != name and name in all_peers() and name not in peers()):
        return True
    known, get = (allocators(), get_allocator) if method == name else (peers(), get_peer)
    return name in known and get(name).function.__module__.partition(".")[0] == __name__.partition(".")[0]


def method_names() -> list[str]:
    """Every method there is.

    >>> names = method_names()
    >>> "topk" in names, "peers/tome" in names, "whole" in names, "peers/whole" in names
    (True, True, True, True)
    """
    return [*allocators(), *(PEERS + name for name in all_peers()), WHOLE]
