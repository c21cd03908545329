"""Made-up evaluations with planted accuracies and costs: what a page says of them is known beforehand."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from homunculus.data import FAMILIES, REGIONS
from homunculus.data.dice import Dice
from homunculus.eval.rows import Kept
from homunculus.eval.suites import THRICE
from homunculus.report.sheet import Sheet, told

EACH = 4  # questions of an image
BASE, SIZE = "base0000", [1024, 1024]

# Exact answers in percent on documents, scenes and scene text.
ACCURACY: dict[str, tuple[float, float, float]] = {
    "topk": (70, 72, 74),
    "uniform": (40, 55, 38),
    "random": (20, 30, 18),
    "stratified": (72, 73, 75),
    "pyramid": (73, 74, 76),
    "log-polar-rings": (75, 73, 77),
    "foveated-pyramid": (82, 80, 84),
    "atlas": (72, 74, 74),
    "peers/tome": (60, 62, 55),
    "whole": (88, 86, 90),
}
PER_SECOND = {"peers/tome": 60.0, "whole": 20.0, "atlas": 30.0}


def lines(
    accuracy: Mapping[str, Sequence[float]] = ACCURACY,
    *,
    questions: int = 400,
    tuned: str | None = None,
    budget: int = 273,
    relevance: str = "predicted",
    how: Mapping[str, Any] | None = None,
    split: str = "test-iid",
    size: Sequence[int] = SIZE,
    costs: bool = True,
    per_second: float = 400.0,
    families: Sequence[str] = tuple(FAMILIES),
    asked: int = 20000,
    base: str = BASE,
) -> Iterator[dict[str, Any]]:
    """The lines of a file. Answers of two methods share four fifths of their luck, so that differences are paired."""
    how = {"longest": 112} | dict(how or {})  # as the suites of `homunculus eval` ask
    for method, shares in accuracy.items():
        weights = base if tuned is None else f"{tuned}-{method}-{asked}-{base}"
        about = {"method": method, "budget": budget, "asked": asked, "samples": asked, "seconds": 30.0, "equal": tuned}
        yield {"weights": weights, "tuned": None if tuned is None else about, "base": None if tuned is None else base}
        said: dict[str, Any] = {"weights": weights, "budget": 4096 if method == "whole" else budget, "method": method}
        said |= {"relevance": relevance, "size": list(size), "how": how, "dtype": "bfloat16"}
        if costs:
            rate = PER_SECOND.get(method, per_second)
            measured = {"per_second": rate, "p50": 8 / rate, "p99": 9 / rate, "peak_mib": 900.0, "model_mib": 61.0}
            measured |= {"least_peak_mib": 800.0, "batches": 120}
            machine = {"batch": 8, "waste": 0.0, "device": "Test GPU", "torch": "2.11.0", "date": "2026-11-17"}
            yield {"cost": said} | measured | machine
        for family, share in zip(families, shares, strict=False):
            mark = f"{weights}|{method}|{said['budget']}|{relevance}|{told(how)}|{split}|{family}|{size[0]}"
            yield said | {"mark": mark, "family": family, "split": split}
            own = Dice("own luck", method, family, said["budget"]).array(2 * questions).reshape(-1, 2).tolist()
            for place, (fact, common) in enumerate(facts(family, split, questions, (size[0], size[1]))):
                luck = common if own[place][0] < 0.8 else own[place][1]
                yield fact
                yield answered(mark, fact["key"], float(luck < share / 100), said["budget"])


@lru_cache
def facts(family: str, split: str, questions: int, size: tuple[int, int]) -> list[tuple[dict[str, Any], float]]:
    """What is known of each question, and its luck."""
    drawn = Dice("luck", family, split).array(3 * questions).reshape(-1, 3).tolist()
    found = []
    for place, (across, down, luck) in enumerate(drawn):
        image, x, y = f"{family}/{split}/{place // EACH}", 900 * across, 900 * down
        known = {
            "key": f"{image}#{place % EACH}",
            "image": image,
            "of": EACH,
            "question": f"What is at {x:.0f}, {y:.0f}?",
        }
        known |= {"kind": "key", "region": REGIONS[place % 3], "answers": ["A-1"]}
        found.append((known | {"boxes": [[x, y, x + 90, y + 30]], "size": list(size)}, luck))
    return found


def answered(mark: str, key: str, exact: float, tokens: int) -> dict[str, Any]:
    right = dict.fromkeys(("exact", "anls", "vqa", "hit", "cell"), exact)
    sure = {"confidence": 0.5 + 0.4 * exact, "logp": -0.1, "mass": 0.9, "r2": 0.8}
    return (
        {"mark": mark, "key": key, "said": "A-1" if exact else "A-7", "tokens": tokens, "covered": 1.0, "fine": 0.25}
        | right
        | sure
    )


def write(file: Path, *parts: Iterator[dict[str, Any]]) -> Path:
    with file.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(line) + "\n" for part in parts for line in part)
    return file


def sheet(file: Path, *parts: Iterator[dict[str, Any]]) -> Sheet:
    return Sheet([Kept(write(file, *parts))])


def rich(file: Path, questions: int = 400) -> Path:
    """A file with something for every part of a page. The true region is asked once, under the name of `hit-100`."""
    some = {
        name: ACCURACY[name]
        for name in ("topk", "uniform", "stratified", "pyramid", "foveated-pyramid", "log-polar-rings")
    }
    half: dict[str, Any] = {"questions": questions // 2}
    curve = {64: -30, 100: -18, 150: -8, 400: 2, 1024: 4}
    budgets = [
        lines(_moved(some, by), budget=budget, per_second=400.0 * (273 / budget) ** 0.7, **half)
        for budget, by in curve.items()
    ]
    hits = [lines(_spoilt(some, rate), relevance=f"hit-{rate}", costs=False, **half) for rate in (100, 90, 70, 50, 30)]
    ours = {"foveated-pyramid": ACCURACY["foveated-pyramid"]}
    options: list[dict[str, Any]] = [
        {"foveal_share": 0.2},
        {"foveal_share": 0.4},
        {"e0": 1.0},
        THRICE | {"combine": "tree"},
        {"progressive": True},
    ]
    ablations = [lines(_moved(ours, by), how=how, **half) for how, by in zip(options, (-2, 1, 0, 1, -1), strict=True)]
    return write(
        file,
        lines(questions=questions),
        lines(_moved(ACCURACY, 4), questions=questions, tuned="samples"),
        lines(_moved(some, 3), questions=questions, tuned="seconds", costs=False),
        *budgets,
        *hits,
        *ablations,
        lines(_moved(some, -15), relevance="first-turn", costs=False, **half),
        lines(_moved(ours, -10), relevance="saliency", costs=False, **half),
        lines(_moved(ours, -4), relevance="moved-4", costs=False, **half),
        lines(_moved(some, -25), split="test-ood", **half),
        lines(_moved(ours, -10), size=[2048, 2048], **half),
        lines(ours, size=[2048, 2048], how=THRICE | {"combine": "tree"}, **half),
    )


def _moved(accuracy: Mapping[str, Sequence[float]], by: float) -> dict[str, list[float]]:
    return {name: [share + by for share in shares] for name, shares in accuracy.items()}


def _spoilt(accuracy: Mapping[str, Sequence[float]], rate: int) -> dict[str, list[float]]:
    """Methods with a pyramid lose three points for every ten of the hit rate, others eight."""
    loss = {name: (100 - rate) * (0.3 if "pyramid" in name else 0.8) for name in accuracy}
    return {name: [share - loss[name] for share in shares] for name, shares in accuracy.items()}
