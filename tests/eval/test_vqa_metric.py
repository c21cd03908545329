"""VQA accuracy against the implementation that lmms-eval carries."""

import statistics
import warnings

import pytest

from homunculus.data.dice import Dice
from homunculus.eval.metrics import _CONTRACTIONS, vqa, vqa_normal

with warnings.catch_warnings():  # of lmms-eval and what it imports
    warnings.simplefilter("ignore")
    from lmms_eval.tasks._task_utils.vqa_eval_metric import EvalAIAnswerProcessor

WORDS = [
    "the",
    "A",
    "an",
    "Two",
    "none",
    "ten",
    "stop",
    "SIGN",
    "dont",
    "isn't",
    "it's",
    "1,000",
    "12,5",
    "3.5",
    "0.",
    "ft.",
]
WORDS += [
    "U.S.A.",
    "red/blue",
    "t-shirt",
    "(left)",
    "yes!",
    "no ?",
    ", and",
    "-",
    '"quoted"',
    "a_b",
    "x=1",
    "é",
    "½",
    ";",
]


def theirs(text: str) -> str:
    processor = EvalAIAnswerProcessor()
    return processor.process_digit_article(processor.process_punctuation(text.strip()))


def spoken(dice: Dice) -> str:
    return dice.choice((" ", " ", "  ", "")).join(dice.choice(WORDS) for _ in range(dice.integer(1, 4)))


def test_the_same_contractions():
    published = {short: long for short, long in EvalAIAnswerProcessor.CONTRACTIONS.items() if short == short.lower()}
    assert {short: long for short, long in published.items() if short != long} == _CONTRACTIONS


def test_the_same_normalisation():
    for number in range(20_000):
        text = spoken(Dice("normalisation", number))
        if ",," not in text:  # lmms-eval takes several commas between digits for one
            assert vqa_normal(text) == theirs(text), text


def test_the_same_accuracy():
    """As lmms-eval scores TextVQA, the normalisation aside: everyone but one, in turn."""
    seen = set()
    for number in range(2000):
        dice = Dice("accuracy", number)
        pool = [spoken(dice) for _ in range(dice.integer(1, 5))]
        answers, prediction = [dice.choice(pool) for _ in range(10)], dice.choice(pool)
        normal = [theirs(answer) for answer in answers]
        each = []
        for place in range(10):
            others = normal[:place] + normal[place + 1 :]
            each.append(min(1, sum(other == theirs(prediction) for other in others) / 3))
        assert vqa(prediction, answers) == pytest.approx(statistics.mean(each))
        seen.add(round(statistics.mean(each), 1))
    assert {0.0, 0.3, 0.6, 0.9, 1.0} <= seen
