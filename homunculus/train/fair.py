"""Methods compared fairly: each with a reader of its own, tuned from one model as much as all others are.

Equal samples is one comparison; equal seconds another, since a reducer that encodes all leaves learns from fewer
samples in a second. Readers are made, asked and dropped, one after another: rows are kept, and which weights gave them.
A method whose rows are all there is not tuned again, nor is the one that was being asked when a run was stopped: its
reader lies beside the rows until all is asked. Several processes deal readers out among them, and each tunes its own by
itself; not where seconds are equal, which would be shared.
"""

import copy
import json
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from homunculus.errors import ModelError
from homunculus.eval.answers import SEGMENTED, Shared
from homunculus.eval.drawing import Draw, drawers, remembering
from homunculus.eval.plans import Plan, reader_of, weights_key
from homunculus.eval.rows import Kept
from homunculus.eval.running import Tick, run, without_repeats
from homunculus.model.vlm import CompactVLM
from homunculus.train import checkpoint
from homunculus.train.pool import Pool
from homunculus.train.processes import apart
from homunculus.train.tune import EACH, Tuning, tuned

FAMILIES = {"documents": 1.0, "scenes": 1.0, "scene-text": 1.0}
IMAGES = 1536  # at most; fewer where there are fewer samples
SUBSET = 96  # for a method whose images are cut into segments, which takes longer than a step
SEED = 3  # images that no recipe trains on


def make_pool(model: CompactVLM, plan: Plan, workers: int, images: int = IMAGES) -> Pool:
    """Images that readers are tuned on: of the training split, all families alike."""
    families = FAMILIES if min(plan.size) >= 512 else {name: 1.0 for name in FAMILIES if name != "documents"}
    how: dict[str, Any] = {"capacity": images, "renewed": 0, "longest_answer": 96, "spelled": 0.0, "seed": SEED}
    return Pool(families, size=plan.size, device=model.device, workers=workers, **how)


def by_reader(plans: Iterable[Plan]) -> dict[str, list[Plan]]:
    """Plans that one reader answers: those that show an image in the same way, whatever relevance is.

    >>> some = [Plan("scenes"), Plan("documents"), Plan("scenes", budget=64), Plan("scenes", how={"e0": 2.0})]
    >>> [len(own) for own in by_reader(some).values()]
    [2, 1, 1]
    """
    found: dict[str, list[Plan]] = {}
    for plan in plans:
        if plan.looks_again:
            raise ModelError("readers are tuned on one look: leave --tune out of suites that look again")
        found.setdefault(json.dumps(shown_how(plan), sort_keys=True), []).append(plan)
    return found


def dealt(plans: Iterable[Plan], part: tuple[int, int]) -> list[Plan]:
    """Plans whose readers a process tunes: every so-manyth.

    >>> some = [Plan("scenes", budget=budget) for budget in (64, 100, 150)]
    >>> [plan.budget for plan in dealt([*some, Plan("documents", budget=64)], (0, 2))]
    [64, 64, 150]
    """
    process, parts = part
    return [plan for own in list(by_reader(plans).values())[process::parts] for plan in own]


def shown_how(plan: Plan) -> dict[str, Any]:
    """What a reader is tuned on: the method, its budget and its options.

    >>> dyrate, whole = (Plan("scenes", method=name, budget=None) for name in ("peers/dyrate", "whole"))
    >>> shown_how(dyrate) == shown_how(whole)
    True
    """
    method, options = reader_of(plan.method), {name: own for name, own in plan.how.items() if name != "longest"}
    if method != plan.method:  # all of its other options are about writing, of which there is none here
        return {"method": method, "budget": None, "how": {} if plan.told else {"told": False}}
    return {"method": method, "budget": plan.budget, "how": options}


def known_reader(kept: Kept, base: str, plan: Plan, tuning: Tuning) -> str | None:
    """The weights that were tuned like this, if the rows tell of any: the latest."""
    wanted = json.loads(json.dumps(shown_how(plan) | tuning.asked))
    for weights, about in reversed(kept.models.items()):
        if about.get("base") == base and wanted.items() <= (about.get("tuned") or {}).items():
            return weights
    return None


def beside(kept: Kept) -> Path | None:
    """Where the reader lies that is being asked; nowhere without a file of rows.

    >>> beside(Kept(Path("rows.jsonl"))).name
    'rows.reader'
    """
    return None if kept.file is None else kept.file.with_suffix(".reader")


def stopped_reader(base: CompactVLM, weights: str | None, folder: Path | None) -> CompactVLM | None:
    """The reader with these weights, if it was being asked when a run was stopped."""
    found = None if weights is None or folder is None else checkpoint.load(folder)
    if found is None or found.meta["weights"] != weights:
        return None
    model = copy.deepcopy(base).eval()
    model.load_state_dict(found.model)
    return model


def run_tuned(
    base: CompactVLM,
    plans: Sequence[Plan],
    kept: Kept,
    tuning: Tuning,
    *,
    workers: int = 0,
    until: float = float("inf"),
    images: int = IMAGES,
    tick: Tick = lambda plan, questions: None,
    say: Callable[[str], None] = lambda line: None,
) -> bool:
    """Tune a reader for every method of the plans and ask it; False if the time was over before."""
    name, folder = weights_key(base), beside(kept)
    longest = 0.0  # seconds of a tuning so far
    shared = Shared()  # all readers have one scorer
    segmented = any(plan.method == SEGMENTED for plan in plans)
    with ExitStack() as stack:
        drawer = remembering(stack.enter_context(drawers(workers)))
        pools: dict[int, Pool] = {}
        for own in by_reader(without_repeats(plans)).values():
            weights = known_reader(kept, name, own[0], tuning)
            if weights is not None and all(len(kept.rows[plan.mark(weights)]) >= plan.questions for plan in own):
                for plan in own:
                    tick(plan, plan.questions)
                continue
            if time.monotonic() + longest >= until:  # the next may take as long, and what is not finished is lost
                return False
            draw: Draw = lambda pictures, index, _: drawer(pictures, index, segmented)  # noqa: E731
            model = stopped_reader(base, weights, folder)
            if model is not None:
                if not _asked(model, own, kept, until, tick, draw, shared):
                    return False
                continue
            enough = images if tuning.seconds is not None else min(images, max(8, tuning.samples // EACH))
            if own[0].method == SEGMENTED:
                enough = min(enough, SUBSET)
            if enough not in pools:
                pools[enough] = stack.enter_context(make_pool(base, own[0], workers, enough))
                pools[enough].fill()
            began = time.monotonic()
            with apart():
                model, about = tuned(base, own[0], [pools[enough]], tuning)
            longest = max(longest, time.monotonic() - began)
            told = {"tuned": shown_how(own[0]) | about}
            weights = weights_key(model)
            if folder is not None:
                checkpoint.save(folder, model.state_dict(), {}, {"step": len(kept.models), "weights": weights})
            kept.add_model(weights, told | {"base": name})
            say(f"{told['tuned']['method']}: {json.dumps(told['tuned'])}")
            if not _asked(model, own, kept, until, tick, draw, shared):
                return False
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    return True


def _asked(
    model: CompactVLM, plans: Sequence[Plan], kept: Kept, until: float, tick: Tick, draw: Draw, shared: Shared
) -> bool:
    model.requires_grad_(plans[0].dtype == "bfloat16")  # as autocast keeps copies of weights that ask for it
    return run(model, plans, kept, until=until, tick=tick, draw=draw, shared=shared)
