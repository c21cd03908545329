"""The metrics against independent implementations of them, and the cases they were made for."""

import re

import pytest
from anls_star import anls_score
from hypothesis import given
from hypothesis import strategies as st

from homunculus.data import FAMILIES
from homunculus.data.dice import Dice
from homunculus.errors import DataError
from homunculus.eval import METRIC_OF, METRICS, anls, exact, relaxed, score, vqa
from homunculus.eval.metrics import amount, edit_distance, vqa_normal

words = st.text(alphabet="abAB 12.,-/'é\t", max_size=12)


# ---------------------------------------------------------------------------------------------------------- anls


@given(words, st.lists(words, min_size=1, max_size=4))
def test_anls_is_that_of_anls_star(prediction, answers):
    assert anls(prediction, answers) == pytest.approx(anls_score(tuple(answers), prediction))


@given(words, words)
def test_the_edit_distance_is_the_shortest_path(a, b):
    assert edit_distance(a, b) == edit_distance(b, a) == by_recursion(a, b)


def by_recursion(a: str, b: str, known: dict | None = None) -> int:
    known = {} if known is None else known
    if not a or not b:
        return len(a) + len(b)
    if (a, b) not in known:
        rest = by_recursion(a[1:], b[1:], known) + (a[0] != b[0])
        known[a, b] = min(rest, 1 + by_recursion(a[1:], b, known), 1 + by_recursion(a, b[1:], known))
    return known[a, b]


def test_anls_at_the_threshold():
    assert anls("abcd", ["abxy"]) == 0.5
    assert anls("abcde", ["abxyz"]) == 0.0
    assert anls("", [""]) == 1.0 and anls("", ["x"]) == 0.0
    assert anls("  NEW\n york", ["New York", "NYC"]) == 1.0


# ----------------------------------------------------------------------------------------------------------- vqa


def naive_vqa(prediction: str, answers: list[str]) -> float:
    """Every set of annotators but one, counted out."""
    said, total = naive_normal(prediction), 0.0
    for left_out in range(len(answers)):
        others = [naive_normal(answer) for place, answer in enumerate(answers) if place != left_out]
        total += min(1.0, sum(other == said for other in others) / 3)
    return total / len(answers)


def naive_normal(text: str) -> str:
    """The published rules one after another, letter by letter."""
    text = text.replace("\n", " ").replace("\t", " ").strip()
    has_grouped_digits = any(re.fullmatch(r"\d,\d", text[i : i + 3]) for i in range(len(text)))
    kept = []
    for letter in text:
        if letter in ';/[]"{}()=+\\_-><@`,?!':
            beside = f" {letter}" in text or f"{letter} " in text
            kept.append("" if has_grouped_digits or beside else " ")
        else:
            kept.append(letter)
    text, kept = "".join(kept), []
    for place, letter in enumerate(text):
        following = text[place + 1 : place + 2]
        kept.append("" if letter == "." and not re.fullmatch(r"\d", following) else letter)
    found = []
    for word in "".join(kept).lower().split():
        numbers = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
        word = str(numbers.index(word)) if word in numbers else "0" if word == "none" else word
        if word not in ("a", "an", "the"):
            found.append({"dont": "don't", "isnt": "isn't", "whos": "who's"}.get(word, word))
    return " ".join(found)


PARTS = ["the", "A", "an", "two", "none", "dont", "Isnt", "who's", "stop", "sign", "1,000", "3.5", "ft.", "U.S.A.", "7"]
PARTS += ["red/blue", "t-shirt", "(left)", "yes!", "no ?", ", and", "it's", "½"]


def spoken(dice: Dice) -> str:
    return dice.choice((" ", "  ", "\n", "")).join(dice.choice(PARTS) for _ in range(dice.integer(1, 3)))


def test_vqa_against_brute_force():
    scores = set()
    for number in range(3000):
        dice = Dice("vqa", number)
        pool = [spoken(dice) for _ in range(dice.integer(1, 4))]
        answers = [dice.choice(pool) for _ in range(dice.choice((10, 10, 10, 2, 5)))]
        prediction = dice.choice(pool)
        assert vqa_normal(prediction) == naive_normal(prediction)
        assert vqa(prediction, answers) == pytest.approx(naive_vqa(prediction, answers)), (prediction, answers)
        scores.add(round(vqa(prediction, answers), 3))
    assert {0.0, 0.3, 0.6, 0.9, 1.0} <= scores


@pytest.mark.parametrize(("same", "expected"), [(0, 0.0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (10, 1.0)])
def test_vqa_of_ten_annotators(same, expected):
    assert vqa("yes", ["yes"] * same + ["no"] * (10 - same)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Stop-Sign", "stop sign"),
        ("stop - sign", "stop sign"),
        ("1,000", "1000"),
        ("10,000, maybe", "10000 maybe"),
        ("a,b", "b"),
        ("3.5 ft.", "3.5 ft"),
        ("Ten", "10"),
        ("didnt", "didn't"),
        ("couldnt've", "couldn't've"),
        ("somebody'd", "somebodyd"),
        ("none", "0"),
        ("an", ""),
    ],
)
def test_vqa_normalisation(text, normal):
    assert vqa_normal(text) == normal


def test_vqa_needs_annotators():
    with pytest.raises(DataError, match="use exact"):
        vqa("yes", ["yes"])


# --------------------------------------------------------------------------------------------- exact and relaxed


def test_exact():
    assert exact("“Yes”", ["yes"]) == 0.0  # marks of type are content
    assert exact('"Yes."', ["yes"]) == 1.0
    assert exact("?", ["!"]) == 0.0 and exact("?", ["?"]) == 1.0
    assert exact("AB-12", ["ab-12", "x"]) == 1.0 and exact("AB 12", ["AB-12"]) == 0.0


@pytest.mark.parametrize(
    ("prediction", "answer", "expected"),
    [
        ("105", "100", 1),
        ("105.1", "100", 0),
        ("95", "100", 1),
        ("94.9", "100", 0),
        ("0", "0", 1),
        ("0.01", "0", 0),
        ("-100", "100", 0),
        ("−103", "-100", 1),
        ("$ 1,234", "1234", 1),
        ("1234 EUR", "EUR 1,250.00", 1),
        ("12%", "12 %", 1),
        ("12", "12%", 1),
        ("12 kg", "12 lb", 0),
        ("1,23", "123", 0),  # no thousands, so no number
        ("2024-05-01", "2024-05-02", 0),
        ("AB12", "AB12.", 1),
        ("AB12", "AB13", 0),
        ("1000", "AB1000", 0),
        ("blue", "Blue", 1),
        ("12 apples and 3 pears", "12", 0),
    ],
)
def test_relaxed(prediction, answer, expected):
    assert relaxed(prediction, ["never", answer]) == expected


@given(st.floats(0.01, 1e6), st.floats(-0.2, 0.2))
def test_relaxed_is_five_per_cent(true, off):
    said, truth = f"{true * (1 + off):.4f}", f"{true:.4f}"
    near = abs(float(said) - float(truth)) <= 0.05 * float(truth)
    assert relaxed(f"€{float(said):,.4f}", [truth]) == near


def test_amounts():
    assert amount(".5 m²") == (0.5, "m²") and amount("USD 20") == (20, "usd") and amount("20 km/h") == (20, "km/h")
    assert amount("") is None and amount("$") is None and amount("1.2.3") is None and amount("€5 EUR") is None


# ------------------------------------------------------------------------------------------------------- by name


def test_every_family_and_data_set_has_a_metric():
    assert set(FAMILIES) | {"docvqa", "vqav2", "textvqa"} == set(METRIC_OF)
    assert set(METRIC_OF.values()) <= set(METRICS)


def test_scores_by_name():
    assert score("scenes", "Red.", ["red"]) == 1.0
    assert score("vqav2", "2", ["two"] * 3 + ["3"] * 7) == pytest.approx(0.9)
    with pytest.raises(DataError, match="no metric 'rouge': choose one of exact, anls"):
        score("rouge", "a", ["a"])


@given(st.sampled_from(sorted(METRICS)), words, st.lists(words, min_size=10, max_size=10))
def test_scores_lie_between_0_and_1_and_the_answer_itself_is_right(name, prediction, answers):
    assert 0 <= METRICS[name](prediction, answers) <= 1
    assert METRICS[name](prediction, [prediction] * 10) == 1
