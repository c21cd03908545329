"""Methods compared fairly: each with a reader of its own, tuned from one model as much as all others are.

Equal samples is one comparison; equal seconds another, since a reducer that encodes all leaves learns from fewer
samples in a second. Readers are made, asked and dropped, one after another: rows are kept, and which weights gave them.
A method whose rows are all there is not tuned again.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from homunculus.eval.drawing import drawers, remembering
from homunculus.eval.plans import Plan, weights_key
from homunculus.eval.rows import Kept
from homunculus.eval.running import Tick, run, without_repeats
from homunculus.model.vlm import CompactVLM
from homunculus.train.pool import Pool
from homunculus.train.tune import EACH, Tuning, tuned

FAMILIES = {"documents": 1.0, "scenes": 1.0, "scene-text": 1.0}
IMAGES = 1536  # at most; fewer where there are fewer samples
SEED = 3  # images that no recipe trains on


def make_pool(model: CompactVLM, plan: Plan, workers: int, images: int = IMAGES) -> Pool:
    """Images that readers are tuned on: of the training split, all families alike."""
    families = FAMILIES if min(plan.size) >= 512 else {name: 1.0 for name in FAMILIES if name != "documents"}
    how: dict[str, Any] = {"capacity": images, "renewed": 0, "longest_answer": 96, "spelled": 0.0, "seed": SEED}
    return Pool(families, size=plan.size, device=model.device, workers=workers, **how)


def by_method(plans: Iterable[Plan]) -> dict[tuple[str, int | None], list[Plan]]:
    """Plans that one reader answers: of a method with a budget.

    >>> [len(own) for own in by_method([Plan("scenes"), Plan("documents"), Plan("scenes", budget=64)]).values()]
    [2, 1]
    """
    found: dict[tuple[str, int | None], list[Plan]] = {}
    for plan in plans:
        found.setdefault((plan.method, plan.budget), []).append(plan)
    return found


def known_reader(kept: Kept, base: str, method: str, budget: int | None, tuning: Tuning) -> str | None:
    """The weights that were tuned like this, if the rows tell of any: the latest."""
    wanted = dict[str, Any](method=method, budget=budget, **tuning.asked)
    for weights, about in reversed(kept.models.items()):
        if about.get("base") == base and wanted.items() <= (about.get("tuned") or {}).items():
            return weights
    return None


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
    name = weights_key(base)
    with ExitStack() as stack:
        draw = remembering(stack.enter_context(drawers(workers)))
        pool: Pool | None = None
        for (method, budget), own in by_method(without_repeats(plans)).items():
            weights = known_reader(kept, name, method, budget, tuning)
            if weights is not None and all(len(kept.rows[plan.mark(weights)]) >= plan.questions for plan in own):
                for plan in own:
                    tick(plan, plan.questions)
                continue
            if time.monotonic() >= until:
                return False
            if pool is None:
                enough = images if tuning.seconds is not None else min(images, max(8, tuning.samples // EACH))
                pool = stack.enter_context(make_pool(base, own[0], workers, enough))
                pool.fill()
            model, about = tuned(base, own[0], [pool], tuning)
            kept.add_model(weights_key(model), about | {"base": name})
            say(f"{method}: {about['tuned']}")
            model.requires_grad_(own[0].dtype == "bfloat16")  # as autocast keeps copies of weights that ask for it
            if not run(model, own, kept, until=until, tick=tick, draw=draw):
                return False
    return True
