"""The tables of a page: no arm in another, pairs on the questions both were asked, and shares of full resolution."""

import re

import pytest

from homunculus.report.ablations import ablation_sections, differs_in, forgiving, groups, spoilt_rates, spoilt_table
from homunculus.report.blocks import Folded, Heading, Table, to_markdown
from homunculus.report.numbers import percent, points
from homunculus.report.page import document
from homunculus.report.tables import (
    SHARES,
    budgets_table,
    cost_table,
    main_table,
    method_sections,
    ranked,
    readers_table,
    retained,
    timed_again_table,
    turns_table,
)
from tests.report.made_up import ACCURACY, lines, sheet


def test_the_main_table_never_mixes_arms(full):
    tuned, zero = (next(arm for arm in full.arms if arm.name == name) for name in ("tuned", "zero-shot"))
    for arm, more in ((tuned, 4), (zero, 0)):
        for line in main_table(arm).lines:
            name = re.sub("[` ★]", "", line[0])
            planted = sum(ACCURACY[name]) / 3 + more
            assert abs(float(line[1].split()[0]) - planted) < 9  # 360 questions: three standard errors
    shown = {line[0]: line[2] for line in main_table(tuned).lines}
    assert shown["`topk`"] != "–" and shown["`atlas`"] == "–"  # which was not tuned for equal seconds


def test_retained_is_the_ratio_on_common_questions(full):
    arm = full.arms[0]
    ours, whole = arm.find("topk"), arm.find("whole")
    mean = [sum(row["exact"] for row in own.rows.values()) for own in (ours, whole)]
    assert retained(ours, whole).mean == pytest.approx(100 * mean[0] / mean[1])
    assert retained(whole, whole) == (100, 100, 100)
    some = ours.where("few", lambda row: row["key"].endswith("#0"))
    few = [sum(own.rows[key]["exact"] for key in some.rows) for own in (ours, whole)]
    assert retained(some, whole).mean == pytest.approx(100 * few[0] / few[1])
    shown = {line[0].strip("` ★"): line for line in main_table(arm).lines}
    assert shown["topk"][main_table(arm).head.index("retained, %")] == percent(retained(ours, whole))


def test_ablations_are_grouped_by_what_differs(full):
    zero = next(arm for arm in full.arms if arm.name == "zero-shot")
    assert set(groups(zero)) == {"hit", "moved", "relevance", "foveal_share", "e0", "looks", "size"}
    assert list(groups(zero))[:2] == ["hit", "moved"]  # below the picture of them
    assert all(differs_in(way, zero) == what for what, ways in groups(zero).items() for way in ways)
    best = forgiving(zero)
    assert best is not None and best[0].method == "foveated-pyramid"  # it was planted to lose least


def test_what_reducers_begin_with_is_a_table(tmp_path):
    """Told and untold leaves, side by side; those that were told are the ones of the main table."""
    parts = [lines({"peers/tome": (60, 60, 60)}, questions=40), lines({"topk": (70, 70, 70)}, questions=40)]
    silent = lines({"peers/tome": (20, 20, 20)}, questions=40, how={"told": False, "shown": 273})
    arm = sheet(tmp_path / "rows.jsonl", *parts, silent).arms[0]
    assert list(groups(arm)) == ["told"] and arm.methods() == ["peers/tome", "topk"]
    heading, table = ablation_sections(arm)[-2:]
    assert heading.text.startswith("What reducers begin with") and isinstance(table, Table)
    assert [line[0] for line in table.lines] == ["`peers/tome`"] * 2
    assert [line[1] for line in table.lines] == ["as in the main table", "told False"]
    shares = [percent(arm.find("peers/tome", how=own).exact) for own in ({}, {"told": False})]
    assert [line[-5] for line in table.lines] == shares and shares[0] != shares[1]


@pytest.mark.parametrize("name", ["hit-100", "moved-0", "true"])
def test_the_true_region_is_asked_once_and_found_by_any_name(tmp_path, name):
    """Whatever an older file calls it, it is the first column of both tables of spoilt relevance."""
    ours, other = {"foveated-pyramid": (80, 80, 80)}, {"topk": (60, 60, 60)}
    few = {"questions": 40, "costs": False}
    spoilt = [lines(_less(ours, 10), relevance=own, **few) for own in ("hit-50", "moved-4")]
    parts = [lines(ours | other, **few), lines(ours, relevance=name, **few), *spoilt]
    arm = sheet(tmp_path / "rows.jsonl", *parts).arms[0]
    found = [arm.find("foveated-pyramid", relevance=own) for own in ("hit-100", "moved-0", "true")]
    assert len(found[0].rows) == 120 and all(one is found[0] for one in found)
    assert set(groups(arm)) == {"hit", "moved"}  # the truth alone is no mixture of relevance
    for kind, rates, head in (("hit", [100, 50], "100 % hits"), ("moved", [0, 4], "0 leaves off")):
        table = spoilt_table(arm, kind, groups(arm)[kind])
        assert spoilt_rates(arm, kind) == rates and table.head[1] == head
        assert [line[0] for line in table.lines] == ["`foveated-pyramid`"]
        assert table.lines[0][1] == percent(found[0].exact) and table.lines[0][-1].startswith("−")


def test_the_true_region_stands_beside_mixtures_too(full, tmp_path):
    zero = next(arm for arm in full.arms if arm.name == "zero-shot")
    shown = {(way.method, way.relevance) for way in groups(zero)["relevance"]}
    assert shown == {("foveated-pyramid", "true"), ("foveated-pyramid", "saliency")}
    assert spoilt_rates(zero, "hit") == [100, 90, 70, 50, 30] and spoilt_rates(zero, "moved") == [0, 4]
    alone = sheet(
        tmp_path / "rows.jsonl", lines(questions=8), lines({"topk": (70, 70, 70)}, relevance="true", questions=8)
    )
    assert [way.relevance for way in groups(alone.arms[0])["relevance"]] == ["true"]
    assert spoilt_rates(alone.arms[0], "hit") == []


def _less(accuracy, by):
    return {name: [share - by for share in shares] for name, shares in accuracy.items()}


def test_follow_ups_are_paired_without_first_questions(full):
    zero = next(arm for arm in full.arms if arm.name == "zero-shot")
    table = turns_table(zero)
    assert {line[1] for line in table.lines} == {str(3 * 60 * 3 // 4)}  # 60 questions a family, of four one is first
    assert all(line[4].startswith("−") for line in table.lines)


def test_methods_are_ranked_on_the_questions_they_share(tmp_path):
    """One that was asked nothing but what `topk` has right is not ahead of it, whatever its mean."""
    base = list(lines({"topk": (70,) * 3, "uniform": (60,) * 3}, questions=120))
    easy = {row["key"] for row in base if row.get("exact") and "|topk|" in row["mark"]}
    some = (row for row in lines({"atlas": (66,) * 3}, questions=120) if row.get("key") is None or row["key"] in easy)
    arm = sheet(tmp_path / "rows.jsonl", iter(base), some).arms[0]
    means = {name: arm.find(name).average("exact") for name in arm.methods()}
    leads = {name: arm.find(name).against(arm.find("topk")).difference for name in ("uniform", "atlas")}
    assert means["atlas"] > means["topk"] and ranked(arm) == ["topk", *sorted(leads, key=lambda name: -leads[name])]


def test_what_equal_seconds_change_is_told_on_the_same_questions(full, tmp_path):
    tuned, seconds = (next(arm for arm in full.arms if arm.name == name) for name in ("tuned", "seconds"))
    table = readers_table(seconds, tuned)
    line = next(own for own in table.lines if own[0] == "`topk`")
    pair = seconds.find("topk").against(tuned.find("topk"))
    assert line[1:] == ["30.0", "20000", f"{pair.first:.1f}", f"{pair.second:.1f}", points(pair), str(pair.questions)]
    heads = ["Tuned against zero-shot", "Tuned, equal seconds against tuned"]
    told = [block.text for block in method_sections(full) if isinstance(block, Heading)]
    assert table in method_sections(full) and told[-2:] == heads
    alone = sheet(tmp_path / "rows.jsonl", lines(questions=20, tuned="seconds"), lines(questions=20))
    assert not {*heads} & {block.text for block in method_sections(alone) if isinstance(block, Heading)}


def test_tables_of_what_is_changed_carry_the_share_of_full_resolution(full, blocks, tmp_path):
    """Of the questions both were asked; and no table of shares is there where full resolution was not asked."""
    arm = next(own for own in full.arms if budgets_table(own))
    whole, ours = arm.find("whole"), arm.find("foveated-pyramid", budget=64)
    budgets, hits = budgets_table(arm, shares=True), [one for one in told_tables(blocks) if "90 % hits" in one.head]
    line = next(own for own in budgets.lines if own[0] == "`foveated-pyramid`")
    assert line[1] == percent(retained(ours, whole)) != percent(ours.exact)
    exact, shares = hits
    assert exact.head[-1] == "last − first, points" and shares.head == exact.head[:-1]
    spoilt = arm.find("topk", relevance="hit-90")
    at = exact.head.index("90 % hits")
    for table, cell in ((exact, percent(spoilt.exact)), (shares, percent(retained(spoilt, whole)))):
        assert next(own for own in table.lines if own[0] == "`topk`")[at] == cell
    assert budgets in told_tables(blocks) and to_markdown(blocks).count(SHARES) >= 2
    without = {name: shares for name, shares in ACCURACY.items() if name != "whole"}
    parts = [lines(without, questions=20, budget=tokens) for tokens in (64, 273)]
    assert SHARES not in to_markdown(document(sheet(tmp_path / "rows.jsonl", *parts)))


def told_tables(blocks):
    for block in blocks:
        if isinstance(block, Folded):
            yield from told_tables(block.blocks)
        elif isinstance(block, Table):
            yield block


def test_a_change_says_on_how_many_questions_it_is_known(tmp_path):
    """A line has answers of its own to more questions than the method has in the main table."""
    ours = {"foveated-pyramid": (80,) * 3}
    arm = sheet(tmp_path / "rows.jsonl", lines(ours, questions=20), lines(ours, questions=40, how={"e0": 1.0})).arms[0]
    table = ablation_sections(arm)[-1]
    assert [line[-1] for line in table.lines] == ["60", "120"]
    assert re.search(r"\] \(n.=.60\)$", table.lines[1][-4]) and "n" not in table.lines[0][-4]


def test_what_was_timed_again_on_another_day_stands_beside_and_changes_no_comparison(tmp_path):
    """However many batches it is of: on that day the machine may have been a faster one."""
    later = {"per_second": 900.0, "batches": 400, "date": "2026-11-19"}
    again = [line | later for line in lines({"topk": ACCURACY["topk"]}, questions=8) if "cost" in line]
    page = sheet(tmp_path / "rows.jsonl", lines(questions=8), iter(again))
    assert page.arms[0].cost("topk")["per_second"] == 400.0
    table = timed_again_table(page)
    assert [line[:3] for line in table.lines] == [["`topk`", "2026-11-17", "400.0"], ["`topk`", "2026-11-19", "900.0"]]
    assert table.lines[1][-1] == "400" and all(len(line) == len(table.head) for line in table.lines)
    assert timed_again_table(sheet(tmp_path / "once.jsonl", lines(questions=8))) is None

    other = [line | later | {"device": "laptop"} for line in lines(questions=8) if "cost" in line]
    both = sheet(tmp_path / "both.jsonl", lines(questions=8), iter(again), iter(other))
    assert both.device == "Test GPU" and both.timed_on == {"2026-11-17": len(ACCURACY), "2026-11-19": 1}


def test_costs_of_every_budget_are_a_table_the_fastest_first(tmp_path):
    some = [lines(questions=8), lines({"topk": ACCURACY["topk"]}, questions=8, budget=64, per_second=900.0)]
    cut = [line | {"per_second": 1.0, "batches": 3} for line in lines(questions=8) if "cost" in line]  # in a later run
    table = cost_table(sheet(tmp_path / "rows.jsonl", *some, cut))
    rates = [float(line[2]) for line in table.lines]
    assert rates == sorted(rates, reverse=True) and {line[0] for line in table.lines} == {f"`{n}`" for n in ACCURACY}
    topk = {line[1]: line[2:] for line in table.lines if line[0] == "`topk`"}
    assert topk.keys() == {"64", "273"} and topk["273"] == [*topk["273"][:3], "120", "900", "800", "0.0"]
    assert cost_table(sheet(tmp_path / "untimed.jsonl", lines(questions=8, costs=False))) is None
