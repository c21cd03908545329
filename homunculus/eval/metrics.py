"""How right an answer is, from 0 to 1: pure functions of a prediction and the answers that count.

`exact`    the same words, whatever the case, the spacing and the full stop
`anls`     DocVQA: how many letters agree, nothing below a half; a half itself counts, as on the evaluation server
`vqa`      VQAv2 and TextVQA: the share of three annotators who said so, averaged with each left out in turn
`relaxed`  charts and amounts: a number within 5 %, its separators and unit aside; other answers as `exact`

The normalisation of `vqa` is that of the published evaluation, its oddities kept because published figures contain
them: every comma goes once two digits have one between them, and a full stop stays only before a digit. It is applied
to every answer. (The script for VQAv2 leaves the answers alone where all annotators agree, so that "2" is wrong when
ten people wrote "two"; the one for TextVQA does not.)

References: https://arxiv.org/abs/1907.00490 (ANLS), https://visualqa.org/evaluation.html, ChartQA for the 5 %.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from homunculus.errors import DataError

Metric = Callable[[str, Sequence[str]], float]

ANLS_THRESHOLD = 0.5
TOLERANCE = 0.05


def exact(prediction: str, answers: Sequence[str]) -> float:
    """1 if the prediction is one of the answers, case, spacing and marks at either end aside.

    >>> exact(" Total  Due.", ["total due"]), exact("total", ["total due"])
    (1.0, 0.0)
    """
    return float(_plain(prediction) in {_plain(answer) for answer in answers})


def anls(prediction: str, answers: Sequence[str]) -> float:
    """1 - edit distance / length of the longer text, of the nearest answer; 0 where that is under a half.

    >>> anls("41.2O", ["41.20", "EUR 41.20"]), anls("yes", ["41.20"])
    (0.8, 0.0)
    """
    said, right = _spaced(prediction), [_spaced(answer) for answer in answers]
    nearest = 1.0 if said in right else max((_similarity(said, answer) for answer in right), default=0.0)
    return nearest if nearest >= ANLS_THRESHOLD else 0.0


def vqa(prediction: str, answers: Sequence[str]) -> float:
    """min(1, others who said so / 3), averaged over every annotator left out in turn.

    >>> vqa("The Stop sign.", ["stop sign"] * 2 + ["sign"] * 8)
    0.6
    """
    if len(answers) < 2:
        raise DataError(f"VQA accuracy compares annotators and there is {len(answers)}: use exact for a single answer")
    said, normal = vqa_normal(prediction), {answer: vqa_normal(answer) for answer in set(answers)}
    same = sum(normal[answer] == said for answer in answers)
    # `same` of the annotators are left out of their own count, the others of somebody else's.
    mine, theirs = min(3, same - 1) * same, min(3, same) * (len(answers) - same)
    return (mine + theirs) / (3 * len(answers))


def relaxed(prediction: str, answers: Sequence[str]) -> float:
    """1 if the prediction is an answer's number within 5 %; the unit may be left out but not be another.

    >>> relaxed("$1,020", ["1000 $"]), relaxed("12 kg", ["12 lb"]), relaxed("blue", ["Blue"])
    (1.0, 0.0, 1.0)
    """
    return max((float(_near(prediction, answer)) for answer in answers), default=0.0)


METRICS: Mapping[str, Metric] = {"exact": exact, "anls": anls, "vqa": vqa, "relaxed": relaxed}

# Which metric a family or a data set is judged by. VQA accuracy needs ten annotators, and what we draw has one.
METRIC_OF: Mapping[str, str] = {
    "documents": "anls",
    "scenes": "exact",
    "scene-text": "exact",
    "docvqa": "anls",
    "vqav2": "vqa",
    "textvqa": "vqa",
}


def score(name: str, prediction: str, answers: Sequence[str]) -> float:
    """A prediction by the metric with a name, or by that of the family or data set with it.

    >>> score("docvqa", "41.2O", ["41.20"]) == score("anls", "41.2O", ["41.20"])
    True
    """
    metric = METRICS.get(METRIC_OF.get(name, name))
    if metric is None:
        raise DataError(f"no metric '{name}': choose one of {', '.join(METRICS)}, or a family or data set")
    return metric(prediction, answers)


# ------------------------------------------------------------------------------------------------ exact and anls


def _spaced(text: str) -> str:
    return " ".join(text.lower().split())


def _plain(text: str) -> str:
    return _spaced(text).strip(" .,;:!?\"'") or _spaced(text)


def _similarity(a: str, b: str) -> float:
    longest = max(len(a), len(b))
    return 1.0 if longest == 0 else (longest - edit_distance(a, b)) / longest


def edit_distance(a: str, b: str) -> int:
    """How many letters to insert, delete or replace to turn one text into the other.

    >>> edit_distance("kitten", "sitting")
    3
    """
    above = list(range(len(b) + 1))
    for row, letter in enumerate(a, 1):
        line = [row]
        for column, other in enumerate(b):
            line.append(min(above[column] + (letter != other), above[column + 1] + 1, line[column] + 1))
        above = line
    return above[-1]


# ----------------------------------------------------------------------------------------------------------- vqa

_MARKS = ';/[]"{}()=+\\_-><@`,?!'
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBERS = {"none": "0"} | {word: str(value) for value, word in enumerate(_DIGITS)}
_ARTICLES = frozenset(("a", "an", "the"))


def vqa_normal(text: str) -> str:
    """A text as the VQA evaluation compares it.

    >>> vqa_normal("The two dogs, aren't they?"), vqa_normal("1,000 ft."), vqa_normal("dont")
    ("2 dogs aren't they", '1000 ft', "don't")
    """
    text = text.replace("\n", " ").replace("\t", " ").strip().lower()
    grouped = re.search(r"\d,\d", text) is not None
    bare = text
    for mark in _MARKS:
        beside_space = f"{mark} " in text or f" {mark}" in text
        bare = bare.replace(mark, "" if grouped or beside_space else " ")
    bare = re.sub(r"\.(?!\d)", "", bare)
    words = [_NUMBERS.get(word, word) for word in bare.split()]
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


# Each is also written with one of its apostrophes forgotten. Those that are other words then (we'll) are not here.
_CONTRACTED = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've he's
how'd how'll how's isn't it'd it'd've it'll ma'am might've mightn't mightn't've must've mustn't needn't not've o'clock
oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd
someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've there're there's
they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've when's
where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've wouldn't wouldn't've
y'all y'all'd've y'all'll you'd you'd've you'll you're you've
"""
_CONTRACTIONS = {
    word[:place] + word[place + 1 :]: word
    for word in _CONTRACTED.split()
    for place, letter in enumerate(word)
    if letter == "'"
} | {"somebody'd": "somebodyd"}  # the published table has this one the wrong way round


# ------------------------------------------------------------------------------------------------------- relaxed

_AMOUNT = re.compile(
    r"(?P<before>[^\w\s.,+()-]|[a-z]{3}\s)?\s*(?P<sign>[+-]?)\s*"  # a currency, as a sign or by its three letters
    r"(?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)\s*"
    r"(?P<after>%|[^\W\d_]*[^\w\s.,+()-]?[^\W\d_]*[²³]?)"
)


class Amount(NamedTuple):
    """A number and the unit beside it, empty where there is none."""

    value: float
    unit: str


def amount(text: str) -> Amount | None:
    """A text that is one number with at most a unit; None for anything else, dates and codes among them.

    >>> amount("EUR 1,234.50"), amount("-3 km/h"), amount("2024-05-01"), amount("A12")
    (Amount(value=1234.5, unit='eur'), Amount(value=-3.0, unit='km/h'), None, None)
    """
    found = _AMOUNT.fullmatch(_spaced(text).replace("−", "-").rstrip("."))
    if found is None or (found["before"] and found["after"]):
        return None
    value = float(found["digits"].replace(",", ""))
    return Amount(-value if found["sign"] == "-" else value, ((found["before"] or "") + found["after"]).strip())


def _near(prediction: str, answer: str) -> bool:
    said, true = amount(prediction), amount(answer)
    if said is None or true is None:
        return bool(exact(prediction, [answer]))
    same_unit = not said.unit or not true.unit or said.unit == true.unit
    return same_unit and abs(said.value - true.value) <= TOLERANCE * abs(true.value)
