"""The answerer that never looks: it finds what a prior can find, and nothing where there is nothing to find."""

import pytest

from homunculus.data import Question
from homunculus.data.dice import Dice
from homunculus.eval.blind import KNOWS, Prior, blind, template


def questions(number: int, answer) -> list[tuple[str, Question]]:
    """`answer` makes the answer from the dice and the question's kind and colour word."""
    made = []
    for index in range(number):
        dice = Dice("blind", index)
        kind, word = dice.choice(("shape", "count")), dice.choice(("red", "blue"))
        text = f"What {kind} is the {word} thing?"
        made.append((f"image {index // 3}", Question(text, (answer(dice, kind, word),), kind=kind)))
    return made


def report(answer, metric="exact"):
    asked = questions(3000, answer)
    return blind([question for _, question in asked[:2000]], asked[2000:], metric)


def test_nothing_is_found_where_nothing_is():
    found = report(lambda dice, kind, word: dice.letters("ABCDEFGHJK23456789", 6))
    assert all(score < 0.01 for score in found.rows[-1].scores.values()) and found.interval.high < 0.01


def test_a_class_prior_is_found_and_no_more():
    found = report(lambda dice, kind, word: dice.weighted(("yes", "no"), (0.7, 0.3)))
    assert found.rows[-1].scores["nothing"] == pytest.approx(0.7, abs=0.04)
    for row in found.rows:
        assert all(score == pytest.approx(row.prior, abs=0.02) for score in row.scores.values())
    assert found.interval.low < found.rows[-1].scores[found.best] < found.interval.high


def test_what_the_kind_tells_is_found():
    found = report(lambda dice, kind, word: dice.choice(("disc", "star") if kind == "shape" else ("1", "2")))
    total = found.rows[-1]
    assert total.scores["nothing"] == pytest.approx(0.25, abs=0.04)
    assert total.scores["kind"] == pytest.approx(0.5, abs=0.05) == pytest.approx(total.prior, abs=0.05)


def test_what_the_words_tell_is_found():
    found = report(lambda dice, kind, word: "hot" if word == "red" else "cold")
    assert found.rows[-1].scores["words"] == 1.0 and found.rows[-1].scores["kind"] < 0.6
    assert found.best in ("template", "words") and found.interval.mean == 1.0


def test_rows_add_up():
    found = report(lambda dice, kind, word: dice.choice("abc"), metric="anls")
    assert [row.kind for row in found.rows] == ["count", "shape", "all"]
    assert found.rows[-1].questions == 1000 == sum(row.questions for row in found.rows[:-1])
    for name in KNOWS:
        total = sum(row.scores[name] * row.questions for row in found.rows[:-1]) / 1000
        assert found.rows[-1].scores[name] == pytest.approx(total)


def test_an_unknown_question_falls_back():
    prior = Prior([Question("Where is A1?", ("left",), kind="place"), Question("Where is B2?", ("up",), kind="place")])
    assert prior.answer(Question("Where is B2?", ("?",), kind="place"), "words") == "up"
    assert prior.answer(Question("Where is C3?", ("?",), kind="place"), "words") == "left"  # as likely as up, and first
    assert prior.answer(Question("Who?", ("?",), kind="person"), "words") == "left"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What is the invoice number?", "What is the invoice number?"),
        ("What is in row 3, column 2?", "What is in row #, column #?"),
        ("Which code stands under “Net total”?", "Which code stands under *?"),
        ("What did Marta Okoye order on 2024-05-01?", "What did * order on #?"),
        ("What's the driver's name?", "What's the driver's name?"),
        ("Look at the table. What is the total of 'AX-12'?", "Look at the table. What is the total of *?"),
    ],
)
def test_templates(text, expected):
    assert template(text) == expected
