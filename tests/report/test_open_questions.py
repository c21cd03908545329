"""The questions this project was started with, answered from rows of the suites' own ways of asking."""

import re

import pytest

from homunculus.eval.suites import ARMS, LEARNED_SPLIT, THRICE
from homunculus.report.open_questions import NOT_MEASURED, Answered, open_questions
from tests.report.made_up import ACCURACY, lines, sheet

OURS = "foveated-pyramid"


def answered(file, *parts) -> dict[str, Answered]:
    """By question; the main table is always there."""
    arm = sheet(file, lines(ACCURACY | {"frequency": (60, 60, 60)}, questions=120), *parts).arms[0]
    return {one.question: one for one in open_questions(arm)}


def said(file, *parts) -> dict[str, str]:
    return {question: one.sentence for question, one in answered(file, *parts).items()}


def test_every_option_that_is_asked_for_is_one_of_a_suite():
    """A value that no suite asks would never be found."""
    hows = [how for method, how in ARMS if method in ("frequency", "pyramid")]
    for how in ({"stretch": "across"}, {"stretch": "none"}, {"mode": "split", "split": LEARNED_SPLIT}):
        assert how in hows
    assert {"mode": "split", "split": None} in hows and sum(LEARNED_SPLIT) == 273


@pytest.mark.parametrize(("across", "word"), [(40, "Yes"), (60, "Not that it could be told")])
def test_anisotropy_is_which_way_cells_are_stretched(tmp_path, across, word):
    """Square ones, which are another kind of tree, do not say so, however good they are."""
    parts = [
        lines({"frequency": (share,) * 3}, questions=120, how={"stretch": way})
        for way, share in (("across", across), ("none", 95))
    ]
    sentence = said(tmp_path / "rows.jsonl", *parts)["Is anisotropy real?"]
    assert sentence.startswith(word) and "one tree that tiles" in sentence
    assert said(tmp_path / "rows.jsonl", parts[1])["Is anisotropy real?"] == NOT_MEASURED


def test_coverage_is_two_questions(tmp_path):
    """An arm without follow-ups still tells of the periphery, and leaves the other to one that has them."""
    alone = said(tmp_path / "rows.jsonl")
    assert alone["Is coverage worth its tokens on the periphery?"].startswith("It cannot be told")  # of 40 questions
    assert alone["Is coverage worth its tokens on follow-up questions?"] == NOT_MEASURED
    better = {OURS: (60, 60, 60), "topk": (20, 20, 20)}
    for kept, word in (("first-turn", NOT_MEASURED), ("first-cells", "Yes")):  # the first misleads whatever cells are
        told = said(tmp_path / "rows.jsonl", lines(better, questions=120, relevance=kept))
        assert told["Is coverage worth its tokens on follow-up questions?"].startswith(word)


@pytest.mark.parametrize(("tree", "concat", "word"), [(95, 95, "Three"), (80, 80, "One"), (95, 20, "It depends")])
def test_looks_are_compared_at_equal_tokens(tmp_path, tree, concat, word):
    parts = [
        lines({OURS: (share,) * 3}, questions=120, how=THRICE | {"combine": combine})
        for combine, share in (("tree", tree), ("concat", concat))
    ]
    wide = lines({OURS: (82, 80, 84)}, questions=120, budget=819)
    sentence = said(tmp_path / "rows.jsonl", *parts, wide)["One look or three?"]
    assert sentence.startswith(word) and "819 tokens" in sentence
    assert said(tmp_path / "rows.jsonl", *parts)["One look or three?"] == NOT_MEASURED  # nothing of as many tokens


@pytest.mark.parametrize(("learned", "word"), [(95, "Learned"), (40, "Fixed"), (70, "It cannot be told")])
def test_a_learned_split_is_compared_with_the_fixed_one(tmp_path, learned, word):
    parts = [
        lines({"pyramid": (share,) * 3}, questions=120, how={"mode": "split", "split": split})
        for split, share in ((None, 70), (list(LEARNED_SPLIT), learned))
    ]
    sentence = said(tmp_path / "rows.jsonl", *parts)["Fixed or learned split?"]
    assert sentence.startswith(word) and "learned on `val`" in sentence and "64/128/64/17" in sentence


def test_downsampling_may_win_where_relevance_is_wrong(tmp_path):
    elsewhere = "And where relevance is wrong, tokens are many or images are of another kind?"
    alone = said(tmp_path / "rows.jsonl")
    assert alone["Does plain downsampling win anywhere?"].startswith("No") and alone[elsewhere] == NOT_MEASURED
    wrong = lines({"uniform": (55, 55, 55), OURS: (20, 20, 20)}, questions=120, relevance="hit-30")
    sentence = said(tmp_path / "rows.jsonl", wrong)[elsewhere]
    assert sentence.startswith("Yes") and "relevance wrong for 70 %" in sentence


@pytest.mark.parametrize(("share", "word"), [(90, "Yes, and better"), (74, "It cannot be told"), (40, "No")])
def test_a_match_has_to_be_shown(tmp_path, share, word):
    small = lines({OURS: (share,) * 3}, questions=120, budget=150)
    assert said(tmp_path / "rows.jsonl", small)["Do 150 foveated tokens match 273 of top-K?"].startswith(word)


def test_segments_come_with_their_caveat(tmp_path):
    assert said(tmp_path / "rows.jsonl")["Do semantic boundaries matter?"].endswith("No recipe trains with segments.")


@pytest.mark.parametrize(
    ("shares", "word"),
    [
        ({64: 40, 1024: 60}, "Yes: "),
        ({64: 40, 150: 99, 1024: 60}, "150 lose less than a point: "),
        ({64: 40, 400: 97, 1024: 99}, "1024 are better: "),
        ({150: 99, 1024: 99}, "150 lose less than a point and 1024 are better: "),
    ],
)
def test_a_budget_is_right_if_fewer_lose_and_more_gain_nothing(tmp_path, shares, word):
    parts = [lines({OURS: (share,) * 3}, questions=120, budget=tokens) for tokens, share in shares.items()]
    sentence = said(tmp_path / "rows.jsonl", *parts)["Is 273 right?"]
    assert sentence.startswith(word) and all(f"{tokens} " in sentence for tokens in shares)
    assert said(tmp_path / "rows.jsonl")["Is 273 right?"] == NOT_MEASURED
    tuned = [lines({OURS: (share,) * 3}, questions=120, budget=tokens, tuned="samples" if tokens <= 273 else None)
             for tokens, share in {273: 80, **shares}.items()]  # fmt: skip
    both = answered(tmp_path / "rows.jsonl", *tuned)["Is 273 right?"]  # fewer of one arm, more of another
    assert both.sentence.startswith(word) and both.row.endswith(", some of them zero-shot")
    assert re.search(r": against 273, tuned (64|150) .+; zero-shot (400|1024) ", both.sentence)
    for side in (min, max):  # fewer alone say nothing of more, nor more of fewer
        part = lines({OURS: (50,) * 3}, questions=120, budget=side(shares))
        one_sided = said(tmp_path / "rows.jsonl", part)["Is 273 right?"]
        assert one_sided == NOT_MEASURED
