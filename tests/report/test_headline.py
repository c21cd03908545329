"""The README's table says what the rows say."""

from pathlib import Path

import pytest

from bench.headline import BEGIN, END, LINES, headline, main
from homunculus.eval.rows import Kept
from homunculus.report.sheet import Sheet
from tests.report.made_up import ACCURACY, lines, sheet, write

ROOT = Path(__file__).parents[2]


def cells(table: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0].strip("`"): row[1:] for row in rows}


def test_it_has_the_lines_that_were_chosen_and_the_best_of_the_others(tmp_path):
    found = headline(sheet(tmp_path / "rows.jsonl", lines(questions=60)))
    table = cells(found)
    chosen = {name for name in ACCURACY if name in LINES}
    others = [name for name in table if name not in ("zero-shot", *LINES) and "---" not in name]
    assert chosen <= table.keys() and len(others) == 1
    kept = Kept(tmp_path / "rows.jsonl", None)
    exact = {}
    for mark, about in kept.settings.items():
        rows = kept.rows[mark].values()
        exact.setdefault(about["method"], {})[about["family"]] = 100 * sum(row["exact"] for row in rows) / len(rows)
    for name in chosen:
        documents = float(table[name][1].split()[0])
        assert documents == pytest.approx(exact[name]["documents"], abs=0.051)
        assert float(table[name][4].split()[0]) == pytest.approx(sum(exact[name].values()) / 3, abs=0.051)
    unchosen = {name: sum(own.values()) for name, own in exact.items() if name not in LINES}
    assert unchosen[others[0]] == max(unchosen.values())
    assert table["whole"][-2] == "100.0 [100.0, 100.0] %" and table["whole"][-1] == "20"


def test_arms_are_columns_and_never_mixed(tmp_path):
    better = {name: [share + 5 for share in shares] for name, shares in ACCURACY.items()}
    some = [lines(questions=40), lines(better, questions=40, tuned="samples")]
    table = cells(headline(sheet(tmp_path / "rows.jsonl", *some)))
    assert "together, zero-shot" in table["tuned"]  # whose the other columns are
    place = table["tuned"].index("together")
    assert all(float(own[place].split()[0]) > float(own[place + 1].split()[0]) for own in (table["topk"],))


def test_the_readme_has_the_table_of_the_rows_that_are_kept_or_says_that_there_are_none():
    text, rows = (ROOT / "README.md").read_text(), ROOT / "bench" / "results" / "experiment.jsonl.xz"
    if rows.exists():
        assert headline(Sheet([Kept(rows, None)])) in text
    else:
        assert "There are no results yet" in text and BEGIN not in text


def test_it_is_written_between_its_marks_or_not_at_all(tmp_path, capsys):
    rows, page = write(tmp_path / "rows.jsonl", lines(questions=40)), tmp_path / "README.md"
    page.write_text(f"# Name\n\n{BEGIN}\nold\n{END}\n\nMore.\n")
    main([str(rows), "--write", str(page)])
    table = headline(Sheet([Kept(rows, None)]))
    assert page.read_text() == f"# Name\n\n{BEGIN}\n{table}\n{END}\n\nMore.\n"
    main([str(rows), "--write", str(page)])  # again: the same
    assert page.read_text().count(BEGIN) == 1 and table in page.read_text()
    page.write_text("# Name\n")
    with pytest.raises(SystemExit):
        main([str(rows), "--write", str(page)])
    assert page.read_text() == "# Name\n" and "no place for the table" in capsys.readouterr().err
    main([str(rows)])
    assert capsys.readouterr().out.strip() == table
