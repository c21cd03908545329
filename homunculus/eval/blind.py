"""How far one gets without looking: the answers that were most frequent in training, given nothing, or the question.

A benchmark is about seeing only if this fails. Four answerers, each knowing more of the question than the last:
nothing, its kind, its wording with the values taken out, its exact words. One that has never met the like asks the one
before. The class prior beside them is the best constant answer to each kind, found in hindsight on the test itself.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from homunculus.data.record import Question
from homunculus.eval.metrics import score
from homunculus.eval.statistics import Interval, interval

# What each answerer knows of a question, from nothing to everything.
KNOWS: Mapping[str, Callable[[Question], str]] = {
    "nothing": lambda question: "",
    "kind": lambda question: question.kind,
    "template": lambda question: template(question.text),
    "words": lambda question: question.text,
}

_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|‘[^’]*’|(?<!\w)'[^']*'(?!\w)")
_NAMED = re.compile(r"(?<!^)(?<![.?!] )\b[A-Z][\w&.-]*(?: (?:[A-Z&][\w&.-]*))*")
_NUMBER = re.compile(r"\S*\d\S*(?<![?.,!:;])")


def template(text: str) -> str:
    """A question with quoted words, names and anything with a digit taken out.

    >>> template('What is the price of "Copper wire" on 3 May, by order of Ada Byron?')
    'What is the price of * on # *, by order of *?'
    """
    return _NUMBER.sub("#", _NAMED.sub("*", _QUOTED.sub("*", text)))


class Prior:
    """The most frequent answers to the questions of a training set.

    >>> seen = [Question("What colour is it?", (colour,), kind="colour") for colour in ("red", "red", "blue")]
    >>> prior = Prior([*seen, Question("How many?", ("3",), kind="count")])
    >>> prior.answer(Question("How many are there?", ("2",), kind="count"), "words")
    '3'
    """

    def __init__(self, questions: Iterable[Question]) -> None:
        counts: dict[str, dict[str, Counter[str]]] = {name: defaultdict(Counter) for name in KNOWS}
        for question in questions:
            for name, know in KNOWS.items():
                counts[name][know(question)][question.answer] += 1
        self._answers = {
            name: {given: found.most_common(1)[0][0] for given, found in of.items()} for name, of in counts.items()
        }

    def answer(self, question: Question, knowing: str) -> str:
        """The most frequent answer to questions that are like this one in what is known of it."""
        answers = ""
        for name, know in KNOWS.items():
            answers = self._answers[name].get(know(question), answers)
            if name == knowing:
                break
        return answers


class Row(NamedTuple):
    """One kind of question, or all: how many, the score of each answerer, and the class prior."""

    kind: str
    questions: int
    scores: dict[str, float]
    prior: float


class Report(NamedTuple):
    """A row for each kind and one for all, and the best answerer with the interval of its score over images."""

    rows: list[Row]
    best: str
    interval: Interval


def blind(train: Iterable[Question], test: Sequence[tuple[str, Question]], metric: str) -> Report:
    """Learn from some questions, answer others: (key of the image, question)."""
    prior = Prior(train)
    scores = {
        name: [score(metric, prior.answer(question, name), question.answers) for _, question in test] for name in KNOWS
    }
    kinds = sorted({question.kind for _, question in test})
    rows = [_row(kind, test, scores, metric) for kind in kinds]
    best = max(KNOWS, key=lambda name: sum(scores[name]))
    return Report([*rows, _together(rows)], best, interval(scores[best], [key for key, _ in test]))


def _row(kind: str, test: Sequence[tuple[str, Question]], scores: Mapping[str, Sequence[float]], metric: str) -> Row:
    mine = [place for place, (_, question) in enumerate(test) if question.kind == kind]
    questions = [test[place][1] for place in mine]
    constant = Counter(question.answer for question in questions).most_common(1)[0][0]
    prior = sum(score(metric, constant, question.answers) for question in questions) / len(mine)
    means = {name: sum(values[place] for place in mine) / len(mine) for name, values in scores.items()}
    return Row(kind, len(mine), means, prior)


def _together(rows: Sequence[Row]) -> Row:
    total = sum(row.questions for row in rows)
    means = {name: sum(row.questions * row.scores[name] for row in rows) / total for name in KNOWS}
    return Row("all", total, means, sum(row.questions * row.prior for row in rows) / total)
