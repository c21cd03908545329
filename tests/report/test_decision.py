"""The rules hold, fail and stay open exactly where planted differences say so."""

import random
from functools import cache

import pytest

from homunculus.errors import DataError
from homunculus.eval.signs import holm
from homunculus.eval.statistics import compare
from homunculus.report.decision import (
    Claim,
    all_of,
    any_of,
    beats,
    best_peer,
    corrected,
    decide,
    default_allocator,
    foremost,
    loses_less,
    no_further_ahead,
    simplest,
    simplest_wins,
)
from homunculus.report.numbers import Found, paired
from tests.report.made_up import ACCURACY, BASE, facts, lines, sheet

TUNED = {"tuned": "samples"}


def outcome(decision, name):
    return next(verdict for verdict in decision.verdicts if verdict.name == name).claim


def found(right: int, of: int = 400, name: str = "a") -> Found:
    """A method that has the first `right` questions right, an image each."""
    rows = {str(i): {"image": str(i), "exact": float(i < right)} for i in range(of)}
    return Found(name, name, "all", rows)


@pytest.mark.parametrize(
    ("first", "second", "least", "holds"),
    [(260, 240, 5, True), (260, 241, 5, False), (242, 240, 0, False), (240, 260, 0, False), (268, 240, 7, True)],
)
def test_beats_needs_the_points_and_the_interval(first, second, least, holds):
    assert beats(found(first), found(second), least).holds is holds  # two questions of 400 may be chance


def test_more_than_is_more_than():
    assert beats(found(260), found(240), 5).holds is True
    assert beats(found(260), found(240), 5, more=True).holds is False


@pytest.mark.parametrize(("first", "holds"), [(240, True), (238, True), (234, False), (200, False), (300, True)])
def test_a_loss_of_less_than_two_points_has_to_be_shown(first, holds):
    """Six questions of 400 are 1.5 points, and the interval reaches 3."""
    assert loses_less(found(first), found(240), 2).holds is holds


@pytest.mark.parametrize(("first", "holds"), [(244, True), (236, True), (245, False), (200, True)])
def test_no_further_ahead_than_a_point(first, holds):
    """Who is behind is not ahead."""
    assert no_further_ahead(found(first), found(240), 1).holds is holds


def test_closeness_that_the_interval_does_not_show_is_said():
    assert "reaches beyond" in no_further_ahead(found(242), found(240), 0.6).numbers[0]
    assert "reaches beyond" not in no_further_ahead(found(242), found(240), 20).numbers[0]


def test_three_values_agree_with_every_way_of_filling_the_gaps():
    rng = random.Random(0)
    for _ in range(300):
        values = [rng.choice([True, False, None]) for _ in range(rng.randint(1, 4))]
        filled = [[]]
        for value in values:
            filled = [[*own, one] for own in filled for one in ([True, False] if value is None else [value])]
        for rule, plain in ((all_of, all), (any_of, any)):
            said = {plain(own) for own in filled}
            assert rule([Claim(value) for value in values]).holds is (said.pop() if len(said) == 1 else None)


def test_missing_rows_are_named_and_nothing_is_guessed(tmp_path):
    few = {name: ACCURACY[name] for name in ("topk", "uniform")}
    decision = decide(sheet(tmp_path / "rows.jsonl", lines(few, questions=40)))
    assert decision.word == "Not decided" and decision.default is None
    assert {verdict.claim.holds for verdict in decision.verdicts} == {None}
    assert "`foveated-pyramid` on documents" in outcome(decision, "tier 2").missing
    assert "`pyramid` with fewer than 273 tokens" in outcome(decision, "multi-scale has not earned its keep").missing


def test_planted_wins_decide(tmp_path):
    decision = decide(sheet(tmp_path / "rows.jsonl", lines(questions=1000, **TUNED)))
    assert not decision.provisional and decision.arm.name == "tuned"
    assert "n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}1000" in outcome(decision, "tier 2").numbers[0]
    assert outcome(decision, "tier 1").holds and outcome(decision, "tier 2").holds
    assert outcome(decision, "tier 3").holds is False  # at equal tokens it is no faster
    assert decision.word == "GO" and decision.default == "foveated-pyramid"
    assert outcome(decision, "segmentation is not worth its cost").holds  # planted 2 points over topk
    assert outcome(decision, "the simplest becomes the default").holds is False


def test_without_a_win_it_is_no_go_and_the_simplest_is_default(tmp_path):
    same = dict.fromkeys(("topk", "stratified", "pyramid", "log-polar-rings", "foveated-pyramid"), (70, 72, 74))
    small = dict.fromkeys(("pyramid", "log-polar-rings", "foveated-pyramid"), (30, 30, 30))
    parts = lines(same, **TUNED), lines(small, budget=64, per_second=1600.0, **TUNED)
    decision = decide(sheet(tmp_path / "rows.jsonl", *parts))
    assert decision.word == "NO-GO" and outcome(decision, "tier 1").holds is False
    assert outcome(decision, "the simplest becomes the default").holds and decision.default in ("topk", "stratified")
    assert "times" not in decision.why


def test_speed_counts_at_another_budget_and_only_without_loss(tmp_path):
    same = dict.fromkeys(("topk", "stratified", "pyramid", "log-polar-rings", "foveated-pyramid"), (70, 72, 74))
    ours = {"foveated-pyramid": (80, 82, 84)}  # so far ahead that no loss is likely
    for rate, holds in ((1300.0, True), (1100.0, False)):  # 3.25 and 2.75 times 400
        parts = lines(same, **TUNED), lines(ours, budget=100, per_second=rate, **TUNED)
        decision = decide(sheet(tmp_path / "rows.jsonl", *parts))
        assert outcome(decision, "tier 2").holds is holds
        assert outcome(decision, "tier 1").holds  # twice as fast in both
    parts = lines(same, **TUNED), lines(ours, budget=100, costs=False, **TUNED)
    missing = outcome(decide(sheet(tmp_path / "rows.jsonl", *parts)), "tier 2")
    assert missing.holds is None and missing.missing == ("the cost of `foveated-pyramid` 100",)


def test_a_budget_that_is_not_fast_enough_needs_no_answers(tmp_path):
    """Timed with the shared weights, and not tuned for: whatever it answered, it would not be fast."""
    same = dict.fromkeys(("topk", "stratified", "pyramid", "log-polar-rings", "foveated-pyramid"), (70, 72, 74))
    for rate, holds in ((500.0, False), (1600.0, None)):
        timed = lines(same, questions=40, budget=64, per_second=rate)
        decision = decide(sheet(tmp_path / "rows.jsonl", lines(same, **TUNED), timed))
        assert decision.arm.name == "tuned" and outcome(decision, "tier 1").holds is holds
        assert outcome(decision, "multi-scale has not earned its keep").holds is (True if holds is False else None)
    assert "`foveated-pyramid` 64 on documents" in outcome(decision, "tier 2").missing


def test_a_budget_that_only_others_were_asked_at_is_missed(tmp_path):
    """64 tokens lose, tuned; 150 were asked zero-shot alone, and might be fast without a loss."""
    same = dict.fromkeys(("topk", "stratified", "pyramid", "log-polar-rings", "foveated-pyramid"), (70, 72, 74))
    parts = [list(lines(own, budget=n, **TUNED)) for n, own in ((273, same), (64, dict.fromkeys(same, (30, 30, 30))))]
    assert outcome(decide(sheet(tmp_path / "rows.jsonl", *parts)), "tier 1").holds is False
    parts += [list(lines({"foveated-pyramid": (70, 72, 74)}, questions=40, budget=150, costs=False))]
    tier = outcome(decide(sheet(tmp_path / "rows.jsonl", *parts)), "tier 1")
    assert tier.holds is None and "`foveated-pyramid` 150 on documents" in tier.missing


def test_an_arm_that_is_not_whole_does_not_speak_for_what_it_lacks(tmp_path):
    """What is asked zero-shot is expected of the tuned arm as well: allocators and peers."""
    some = {name: own for name, own in ACCURACY.items() if name not in ("atlas", "uniform", "peers/tome")}
    same = dict.fromkeys(some, (70, 72, 74))
    decision = decide(sheet(tmp_path / "rows.jsonl", lines(questions=40), lines(same, **TUNED)))
    simplest = outcome(decision, "the simplest becomes the default")
    assert simplest.holds is None and "`atlas` on all families" in simplest.missing and decision.default is None
    won = lines({**some, "foveated-pyramid": (99, 99, 99)}, **TUNED)
    assert (
        outcome(decide(sheet(tmp_path / "rows.jsonl", lines(questions=40), won)), "tier 3").holds is False
    )  # no faster
    fast = lines({"foveated-pyramid": (99, 99, 99)}, budget=64, per_second=9000.0, **TUNED)
    both = lines({**some, "foveated-pyramid": (99, 99, 99)}, **TUNED), fast
    third = outcome(decide(sheet(tmp_path / "rows.jsonl", lines(questions=40), *both)), "tier 3")
    assert third.holds is None and "`peers/tome`" in third.missing


OWN = {"mine": (99, 99, 99), "peers/loudest": (99, 99, 99)}
FAR_AHEAD = ACCURACY | {"foveated-pyramid": (95, 95, 95)}
LEVEL = dict.fromkeys(ACCURACY, (72, 72, 72))


@pytest.mark.parametrize(
    ("accuracy", "rule"),
    [(FAR_AHEAD, "tier 3"), (LEVEL, "the simplest becomes the default"), (FAR_AHEAD, "GO")],
)
@pytest.mark.parametrize("tuned", [False, True])
def test_a_method_of_somebodys_own_decides_nothing(tmp_path, accuracy, rule, tuned):
    """It stands in the table; but neither what it wins, nor that an arm lacks it, changes a rule that holds."""
    quick = [lines(accuracy, questions=400, budget=64, per_second=2000.0, **TUNED)]
    parts = [lines(accuracy, questions=400), lines(accuracy, questions=400, **TUNED), *quick]
    assert outcome(decide(sheet(tmp_path / "rows.jsonl", *parts)), rule).holds is True
    parts = [lines(accuracy, questions=400), lines(accuracy, questions=400, **TUNED), lines(OWN, questions=400)]
    quick = [lines(accuracy, questions=400, budget=64, per_second=2000.0, **TUNED)]
    page = sheet(tmp_path / "rows.jsonl", *parts, *quick, *([lines(OWN, questions=400, **TUNED)] if tuned else []))
    found = decide(page)
    assert found.arm.name == "tuned" and outcome(found, rule).holds is True
    assert {*OWN} <= set(page.arms[-1].methods()) and ({*OWN} <= set(found.arm.methods())) == tuned


def test_methods_of_somebodys_own_weaken_no_p_value_of_others(tmp_path):
    """However many there are: those of the package are corrected among themselves."""
    accuracy, rule = ACCURACY | {"atlas": (77, 75, 75)}, "segmentation is not worth its cost"
    many = {f"mine{i}": (70, 72, 74) for i in range(20)}
    found = []
    for more in ([], [lines(many, questions=200, **TUNED)]):
        parts = [lines(accuracy, questions=200), lines(accuracy, questions=200, **TUNED), *more]
        found.append(decide(sheet(tmp_path / "rows.jsonl", *parts)))
    before, after = (corrected(one.arm, ["documents"]) for one in found)
    assert before["atlas"] < 0.05 < 8 * before["atlas"] and after["atlas"] == before["atlas"]
    assert [outcome(one, rule).holds for one in found] == [False, False]
    bare = found[1].arm.find("mine0", ["documents"]).against(found[1].arm.find("topk", ["documents"])).p
    assert after.keys() == {*before, *many} and after["mine0"] >= min(1.0, 2 * bare)


def test_the_best_peer_is_best_on_the_same_questions(tmp_path):
    """One that was asked easy questions only is not better for it."""
    easy = [row for row in lines({"peers/aim": (50, 50, 50)}, questions=400) if _is_easy(row)]
    arm = sheet(tmp_path / "rows.jsonl", lines(ACCURACY, questions=400), iter(easy)).arms[0]
    aim, tome = (arm.find(name, ["documents"]) for name in ("peers/aim", "peers/tome"))
    assert aim.average("exact") > tome.average("exact")
    ours = arm.find("foveated-pyramid", ["documents"])
    assert ours.against(aim).difference > ours.against(tome).difference
    assert best_peer(arm, "documents") is tome


def _is_easy(row):
    """Rows of the questions that luck is kindest to; all other lines are kept."""
    if "key" not in row:
        return True
    family, place = row["key"].partition("/")[0], int(row["key"].split("/")[2].partition("#")[0])
    return place in _easy_images(family)


@cache
def _easy_images(family):
    luck: dict[int, float] = {}
    for number, (_, own) in enumerate(facts(family, "test-iid", 400, (1024, 1024))):
        luck[number // 4] = luck.get(number // 4, 0.0) + own
    return sorted(luck, key=luck.__getitem__)[:30]


def test_costs_of_another_model_do_not_stand_for_ours(tmp_path):
    """However many batches they are of: neither an older model's own nor those of readers tuned from it."""
    older = [
        row | {"per_second": 7.0, "batches": 900}
        for row in (*lines(questions=8, base="old"), *lines(questions=8, base="old", **TUNED))
        if "cost" in row or "tuned" in row
    ]
    page = sheet(tmp_path / "rows.jsonl", lines(questions=40, costs=False), iter(older))
    assert page.arms[0].cost("topk") is None
    assert page.left_out() == f"{2 * len(ACCURACY)} timings of another model than most"
    page = sheet(tmp_path / "rows.jsonl", lines(questions=40), lines(questions=40, **TUNED), iter(older))
    assert {arm.cost("topk")["per_second"] for arm in page.arms} == {400.0}


@pytest.mark.parametrize(("answered", "timed"), [({}, TUNED), (TUNED, {}), (TUNED, TUNED)])
def test_a_reader_costs_what_its_model_costs(tmp_path, answered, timed):
    """Whichever of the two was timed, and whichever of the two answered."""
    costs = [row for row in lines(questions=8, **timed) if "cost" in row or "tuned" in row]
    page = sheet(tmp_path / "rows.jsonl", lines(questions=40, costs=False, **answered), iter(costs))
    assert page.arms[0].cost("topk")["per_second"] == 400.0


def test_few_questions_are_provisional(tmp_path):
    few = decide(sheet(tmp_path / "rows.jsonl", lines(questions=1000), lines(questions=40, **TUNED)))
    assert few.arm.name == "tuned" and "a number about 40 questions of a family" in few.provisional


def test_a_go_by_few_questions_is_provisional(tmp_path):
    """Whatever else was asked of many: eight equal answers, three times as fast, are not shown to lose nothing."""
    level = ACCURACY | {"foveated-pyramid": (70, 72, 74)}
    quick = lines({"foveated-pyramid": (99, 99, 99)}, questions=8, budget=64, per_second=1600.0, **TUNED)
    right = (row | {"exact": 1.0} if "key" in row and "mark" in row else row for row in quick)
    found = decide(sheet(tmp_path / "rows.jsonl", lines(level, questions=1000, **TUNED), right))
    assert "8 questions of a family" in found.provisional
    same = found.arm.find("foveated-pyramid", ["scenes"], budget=64)
    pair = same.against(same)
    assert pair.low < -50 and pair.high > 50 and pair.p == 1 and not loses_less(same, same, 50).holds


def test_the_simplest_is_ahead_on_the_same_questions(tmp_path):
    """Of two, one was asked easy questions only."""
    easy = [row for row in lines({"stratified": (60, 60, 60)}, questions=400, **TUNED) if _is_easy(row)]
    rest = {name: own for name, own in ACCURACY.items() if name != "stratified"}
    arm = sheet(tmp_path / "rows.jsonl", lines(rest, questions=400, **TUNED), iter(easy)).arms[0]
    topk, stratified = (arm.find(name) for name in ("topk", "stratified"))
    assert stratified.average("exact") > topk.average("exact") and stratified.against(topk).difference < 0
    assert simplest(arm) is topk and foremost([stratified, topk], topk) is topk


def test_a_lead_that_may_be_chance_leaves_the_default_open(tmp_path):
    level = dict.fromkeys(("topk", "stratified", "pyramid", "log-polar-rings", "foveated-pyramid"), (70, 70, 70))
    arm = sheet(tmp_path / "rows.jsonl", lines(level | {"frequency": (75, 75, 75)}, questions=40, **TUNED)).arms[0]
    assert arm.find("frequency").against(simplest(arm)).difference > 2
    claim = simplest_wins(arm)
    name, why = default_allocator(arm, claim)
    assert claim.holds is None and not claim.missing and name is None and "may be chance" in why


def test_who_is_fast_with_all_tokens_is_fast(tmp_path):
    """No smaller budget is needed, and none excuses that it was not tried."""
    level = dict.fromkeys(("topk", "stratified", "log-polar-rings", "foveated-pyramid"), (70, 72, 74))
    quick = lines({"pyramid": (80, 82, 84)}, per_second=1000.0, **TUNED)  # where others have 400
    found = decide(sheet(tmp_path / "rows.jsonl", lines(level, **TUNED), quick))
    assert outcome(found, "tier 1").holds and outcome(found, "multi-scale has not earned its keep").holds is False
    slow = lines(level | {"pyramid": (70, 72, 74)}, **TUNED)
    claim = outcome(decide(sheet(tmp_path / "rows.jsonl", slow)), "multi-scale has not earned its keep")
    assert claim.holds is None and claim.missing == ("`pyramid` with fewer than 273 tokens",)


def test_readers_of_another_amount_or_model_are_left_out(tmp_path):
    other = {"topk": (10, 10, 10)}
    less = lines(other, questions=40, asked=640, costs=False, **TUNED)
    elsewhere = lines(other, questions=80, base="old", **TUNED)
    page = sheet(tmp_path / "rows.jsonl", lines(questions=40), lines(questions=40, **TUNED), less, elsewhere)
    assert page.left_out() == (
        f"{3 * 80} answers of another model than most, {3 * 40} answers of readers tuned otherwise than most and "
        "1 timing of another model than most"
    )
    assert {way.weights for way in page.ways if way.method == "topk"} == {BASE, f"samples-topk-20000-{BASE}"}


def test_another_precision_is_left_out(tmp_path):
    exact = [line | {"dtype": "float32", "mark": line["mark"] + "!"} if "mark" in line else line
             for line in lines({"topk": (1, 1, 1)}, questions=8)]  # fmt: skip
    page = sheet(tmp_path / "rows.jsonl", lines(questions=40), iter(exact))
    assert page.dtype == "bfloat16" and page.answers() == 3 * 40 * len(ACCURACY)
    assert page.left_out() == "24 answers not in bfloat16, as most are: ask with --dtype"


def test_speeds_of_two_machines_are_never_compared(tmp_path):
    other = [line | {"device": "laptop"} if "cost" in line else line for line in lines(ACCURACY, budget=64, **TUNED)]
    both = sheet(tmp_path / "rows.jsonl", lines(ACCURACY, **TUNED), lines(ACCURACY, budget=100, **TUNED), iter(other))
    arm = both.arms[0]
    assert both.device == "Test GPU" and arm.cost("topk", 64) is None and arm.cost("topk", 100) is not None
    assert both.left_out().startswith(f"{len(ACCURACY)} timings of other devices, precisions or steps than most")


def test_speeds_with_recorded_steps_and_without_are_never_compared(tmp_path):
    plain = list(lines({"topk": (70, 70, 70)}, questions=8))
    some = [line | {"graphs": True} if "cost" in line else line for line in lines(questions=8)]
    both = sheet(tmp_path / "rows.jsonl", iter(plain), iter(some))
    assert both.graphs and both.arms[0].cost("topk")["graphs"]
    alone = [line for line in some if "cost" not in line or line["cost"]["method"] != "topk"]
    assert sheet(tmp_path / "rows.jsonl", iter(plain), iter(alone)).arms[0].cost("topk") is None


def test_tuned_rows_decide_and_zero_shot_ones_are_provisional(tmp_path):
    worse = dict.fromkeys(ACCURACY, (50, 50, 50))
    both = sheet(tmp_path / "rows.jsonl", lines(worse, questions=80), lines(questions=80, **TUNED))
    assert decide(both).arm.name == "tuned" and decide(both).arm.find("topk").rows != both.arms[1].find("topk").rows
    alone = decide(sheet(tmp_path / "other.jsonl", lines(questions=80)))
    assert alone.provisional and alone.arm.name == "zero-shot"


def test_weights_tuned_for_another_method_are_left_out(tmp_path):
    mixed = [line | {"method": "topk"} if "mark" in line and "family" in line else line
             for line in lines({"pyramid": (50, 50, 50)}, questions=8, **TUNED)]  # fmt: skip
    page = sheet(tmp_path / "rows.jsonl", lines(questions=8), iter(mixed))
    assert page.elsewhere.total() == 24 and [arm.name for arm in page.arms] == ["zero-shot"]


def test_an_exploratory_winner_does_not_become_the_default(tmp_path):
    same = dict.fromkeys(("topk", "stratified", "pyramid", "log-polar-rings", "foveated-pyramid"), (70, 70, 70))
    arm = sheet(tmp_path / "rows.jsonl", lines(same | {"frequency": (90, 90, 90)}, **TUNED)).arms[0]
    claim = simplest_wins(arm)
    name, why = default_allocator(arm, claim)
    assert claim.holds is False and name in ("topk", "stratified") and "fresh questions" in why


def test_holm_is_over_the_methods_that_do_not_decide(tmp_path):
    arm = sheet(tmp_path / "rows.jsonl", lines(questions=120)).arms[0]
    names = ["uniform", "random", "stratified", "atlas", "peers/tome"]
    raw = [paired(arm.find(name).rows, arm.find("topk").rows).p for name in names]
    assert corrected(arm) == pytest.approx(dict(zip(names, holm(raw), strict=True)))


def test_pairs_are_of_common_questions_and_agree_with_the_statistics(tmp_path):
    page = sheet(tmp_path / "rows.jsonl", lines({"topk": (70, 70, 70)}, questions=80),
                 lines({"pyramid": (80, 80, 80)}, questions=40))  # fmt: skip
    first, second = page.arms[0].find("pyramid"), page.arms[0].find("topk")
    keys = sorted(set(first.rows) & set(second.rows))
    values = [[own.rows[key]["exact"] for key in keys] for own in (first, second)]
    expected = compare(*values, [first.rows[key]["image"] for key in keys])
    pair = first.against(second)
    assert pair.questions == 120 and pair.difference == pytest.approx(100 * expected.difference)
    assert pair.difference == pytest.approx(pair.first - pair.second)


def test_no_rows_cost_one_line(tmp_path):
    with pytest.raises(DataError, match="homunculus eval"):
        sheet(tmp_path / "rows.jsonl", iter([{"weights": BASE, "tuned": None}]))


def test_a_rehearsal_with_other_budgets_decides_nothing(tmp_path):
    decision = decide(sheet(tmp_path / "rows.jsonl", lines(questions=40, budget=64)))
    assert decision.word == "Not decided" and decision.default is None
    assert {verdict.claim.missing for verdict in decision.verdicts} == {("methods with 273 tokens",)}
