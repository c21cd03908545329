"""The whole comparison on gaze whose answer is known, and the command."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from homunculus.cli.gaze import gaze
from homunculus.data.dice import Dice
from homunculus.errors import DataError, OutputError, RelevanceError
from homunculus.gaze import compare, made_up
from homunculus.gaze.baselines import drawn_path, resample
from homunculus.gaze.figure import draw_examples
from homunculus.gaze.formats import Stimulus, gather, load
from homunculus.gaze.given import parse_maps, read_map
from homunculus.gaze.maps import with_even
from homunculus.gaze.record import Picture
from homunculus.gaze.table import Row, summarise
from tests.gaze import sets

IMAGES = 14


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("made-up")
    made_up.write(out, images=IMAGES, people=6, fixations=5)
    return out


@pytest.fixture(scope="module")
def bench(folder) -> compare.Bench:
    return compare.Bench(gather(load(folder, "coco-search18")))


@pytest.fixture(scope="module")
def given(folder):
    return parse_maps([f"{name}={folder / 'maps' / name}" for name in ("planted", "shuffled")])


@pytest.fixture(scope="module")
def lines(bench, given):
    rows = [row for _, found, _, _ in compare.evaluate(bench, ["saliency", "detail"], given) for row in found]
    return {line.method: line for line in summarise(rows)}


def test_the_planted_map_wins_and_a_shuffled_one_does_not(lines):
    planted, shuffled = lines["planted"].means, lines["shuffled"].means
    for name in ("gain", "shuffled AUC", "NSS", "AUC", "CC", "SIM", "CC 64x64"):
        others = [line.means[name].mean for method, line in lines.items() if method != "planted" and line.means[name]]
        assert planted[name].mean > max(others), name
    assert planted["KL"].mean < min(
        line.means["KL"].mean for name, line in lines.items() if name not in ("planted", "path on another image")
    )
    assert planted["gain"].low > 0 and shuffled["gain"].mean < -0.1
    assert shuffled["shuffled AUC"].low < 0.5 and planted["shuffled AUC"].low > 0.6
    assert next(iter(lines)) == "people" and list(lines)[-3:] == list(compare.BASELINES)


def test_ceiling_and_floor(lines, bench, given):
    """The gain of the truth is its divergence from the centre bias, in expectation; people come close from below."""
    expected = []
    for stimulus, grid in zip(bench.stimuli, bench.grids, strict=True):
        truth = with_even(resample(given["planted"](stimulus), grid), 0.0)
        expected.append((truth * np.log2(truth / bench.centre.density(stimulus, grid))).sum())
    assert lines["planted"].means["gain"].mean == pytest.approx(np.mean(expected), abs=0.15)
    assert 0 < lines["people"].means["gain"].mean < lines["planted"].means["gain"].mean
    assert lines["centre"].means["gain"] == pytest.approx((0, 0, 0), abs=1e-12)
    assert lines["uniform"].means["shuffled AUC"] == (0.5, 0.5, 0.5) and lines["uniform"].means["NSS"].mean == 0
    assert lines["uniform"].means["CC"] is None and lines["uniform"].means["CC 64x64"] is None  # undefined


def test_a_centre_bias_alone_correlates(lines):
    """Why CC misleads: maps that gain nothing correlate all the same."""
    assert lines["centre"].means["CC 64x64"].low > 0.2
    assert lines["shuffled"].means["CC 64x64"].low > 0.1 and lines["shuffled"].means["gain"].mean < -0.1


def test_a_mixture_with_the_centre_trusts_a_map_as_it_deserves(lines):
    for name in ("planted", "saliency", "detail", "saccades"):
        means = lines[name].means
        assert means["gain with centre"].mean > means["gain"].mean - 0.05, name
    assert abs(lines["shuffled"].means["gain with centre"].mean) < 0.1
    assert abs(lines["uniform"].means["gain with centre"].mean) < 0.05


def test_paths_stand_between_chance_and_people(lines):
    assert lines["people"].means["sequence"].mean > lines["uniform"].means["sequence"].mean
    for name in compare.OF_PATHS:
        assert lines["saccades"].means[name] is not None and lines["saliency"].means[name] is None
        assert 0 <= lines["saccades"].means[name].mean <= 1


def test_a_path_that_is_that_of_a_person_is_perfect(bench):
    stimulus = bench.stimuli[0]
    alone = type(stimulus)(stimulus.picture, "", ["a"], stimulus.paths[:1])
    scores = compare.score_paths(alone, {"copy": [stimulus.paths[0]]})
    assert scores == {"copy": dict.fromkeys(compare.OF_PATHS, pytest.approx(1))}


def test_chance_that_looks_as_people_do_scores_as_people_do():
    """Everything is drawn from one density; people stop when they like, models are not asked when."""
    chances = np.zeros((6, 8))
    chances[[1, 1, 4, 4], [1, 6, 2, 5]] = (4, 3, 2, 1)
    picture = Picture(Path("a.jpg"), (640, 480), 30.0)
    apart = {name: [] for name in compare.OF_PATHS}
    for image in range(120):
        dice = Dice("same", image)
        paths = [drawn_path(dice, chances, dice.choice((1, 2, 4, 9)), picture.size) for _ in range(6)]
        alike = [drawn_path(dice, chances, 9, picture.size) for _ in range(4)]
        stimulus = Stimulus(picture, "", [str(i) for i in range(6)], paths)
        scores = compare.score_paths(stimulus, {"chance": alike})
        for name, own in apart.items():
            own.append(scores["people"][name] - scores["chance"][name])
    for name, found in apart.items():
        known = np.array(found)[~np.isnan(found)]
        error = known.std() / np.sqrt(len(known))
        assert abs(known.mean()) < 3.5 * error and error < 0.02, (name, known.mean(), error)


def test_pairs_of_paths_are_cut_to_the_shorter():
    """By hand: two clusters, so letters are places."""
    left, right = [10.0, 10.0, 100.0], [90.0, 90.0, 100.0]
    paths = [np.array([left, right, left, left]), np.array([left, right])]
    stimulus = Stimulus(Picture(Path("a.jpg"), (100, 100), 30.0), "", ["a", "b"], paths)
    model = np.array([right, right, left, left])
    scores = compare.score_paths(stimulus, {"model": [model], "first": [paths[0]]})
    assert scores["people"]["sequence"] == 1 and scores["first"]["sequence"] == 1
    assert scores["model"]["sequence"] == 0.5  # only two fixations of it are compared, with each of the two people
    assert math.isnan(scores["people"]["direction"]) and math.isnan(scores["model"]["direction"])


def test_rows_are_the_same_each_time(bench):
    first, again = (bench.rows(3, ["detail"], {})[0] for _ in range(2))
    assert str(first) == str(again)


def test_durations_weigh_in_the_coarse_map():
    fixations = np.array([[100.0, 100.0, 900.0], [500.0, 400.0, 100.0]])
    seen = compare.coarse_people(fixations, (640, 480))
    assert seen[:32, :32].sum() == pytest.approx(900, rel=1e-3)
    fixations[:, 2] = np.nan
    assert compare.coarse_people(fixations, (640, 480)).sum() == pytest.approx(2)


def test_methods_with_nothing_to_say_are_left_blank():
    rows = [Row("people", f"{i}.jpg", {"gain": value}) for i, value in enumerate((0.5, 0.7, math.nan))]
    (line,) = summarise(rows)
    assert line.means["gain"].mean == pytest.approx(0.6) and line.means["gain with centre"] is None
    assert line.means["sequence"] is None


# --------------------------------------------------------------------------------------------------- the command

app = typer.Typer()
app.command()(gaze)


@app.command()
def other() -> None:
    """A second command, so that the first keeps its name."""


def run(*words: object):
    return CliRunner().invoke(app, ["gaze", *map(str, words)])


def test_the_command(folder, tmp_path, monkeypatch):
    out = tmp_path / "out"
    titles = []
    monkeypatch.setattr("matplotlib.figure.Figure.suptitle", lambda self, text, **how: titles.append(text))
    planted = f"planted={folder / 'maps' / 'planted'}"
    done = run("--data", folder, "--format", "coco-search18", "--limit", 4, "--maps", planted, "--out", out)
    assert done.exit_code == 0, done.output
    assert "CC alone misleads" in done.output and "learned" in done.output
    table = json.loads((out / "table.json").read_text())
    assert table["images"] == 4 and table["complete"] and table["left out"]["forced"] == 24
    methods = {line["method"]: line for line in table["methods"]}
    expected = {"people", "planted", "detail", "saliency", "pixels", "learned", "saccades", *compare.BASELINES}
    assert set(methods) == expected
    assert methods["planted"]["gain"]["low"] <= methods["planted"]["gain"]["mean"] <= methods["planted"]["gain"]["high"]
    text = (out / "table.md").read_text()
    assert all(f"| {name} |" in text for name in expected) and "CC alone misleads" in text
    assert len(titles) == 2
    assert all("made up" in words for words in (done.output, table["data"], text, *titles))
    for picture in ("plot.png", "examples.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_run_tells_what_it_has(folder, tmp_path, monkeypatch):
    whole = compare.evaluate

    def interrupted(*arguments):
        for number, found in enumerate(whole(*arguments)):
            if number == 3:
                raise KeyboardInterrupt
            yield found

    monkeypatch.setattr(compare, "evaluate", interrupted)
    options = ("--data", folder, "--format", "coco-search18", "--sources", "detail", "--no-plots", "--out", tmp_path)
    done = run(*options)
    assert done.exit_code == 0 and "the first 3 of" in done.output
    table = json.loads((tmp_path / "table.json").read_text())
    assert table["images"] == 3 and not table["complete"]


def test_mistakes_cost_one_line(folder, tmp_path):
    def refused(kind, word, **options):
        how = {"data": folder, "format": "coco-search18", "out": tmp_path} | options
        done = run(*[part for name, value in how.items() for part in (f"--{name}", value)])
        assert isinstance(done.exception, kind) and word in str(done.exception), done.exception

    refused(DataError, "choose one of coco-search18", format="mit")
    refused(DataError, "is no folder", data=tmp_path / "nowhere")
    refused(DataError, "no condition 'maybe'", condition="maybe")
    refused(DataError, "no fixation that counts", condition="absent")
    refused(RelevanceError, "unknown relevance source 'salience'", sources="salience")
    refused(DataError, "write NAME=FOLDER", maps="planted")
    refused(DataError, "is taken", maps=f"saliency={tmp_path}")
    refused(DataError, "has no map", maps=f"mine={tmp_path}", limit=2)
    (tmp_path / "file").write_text("")
    refused(OutputError, "cannot make the folder", out=tmp_path / "file" / "out")


def test_maps_inside_the_data_are_no_photographs(tmp_path):
    sets.coco_search18(tmp_path, [sets.trial(f"{name}.jpg", task="fork", subject=i) for name in "ab" for i in (1, 2)])
    for name in "ab":
        sets.photograph(tmp_path / "0maps" / f"{name}.jpg", (64, 48))
    options = ("--data", tmp_path, "--format", "coco-search18", "--sources", "detail", "--no-plots")
    done = run(*options, "--maps", f"mine={tmp_path / '0maps'}", "--condition", "Present", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output or done.exception
    refused = run(*options, "--out", tmp_path / "out")
    assert isinstance(refused.exception, DataError) and "two different images" in str(refused.exception)


def test_the_first_fixation_is_seen_and_all_are_numbered(bench, monkeypatch):
    from matplotlib.axes import Axes

    written = []
    original = Axes.text
    monkeypatch.setattr(
        Axes, "text", lambda self, x, y, s, *a, **k: written.append((x, y, s)) or original(self, x, y, s, *a, **k)
    )
    _, maps, path = bench.rows(0, [], {})
    assert draw_examples([(bench.stimuli[0], maps, path)], "title").startswith(b"\x89PNG")
    assert sorted(written, key=lambda one: int(one[2])) == [(x, y, str(i)) for i, (x, y, _) in enumerate(path, 1)]
    assert written[-1][2] == "1"  # drawn last, over the others


def test_free_viewing_without_durations_or_targets(tmp_path):
    gaze = {f"{name}.jpg": [[[200 + 9 * i, 300], [100, 150 + i]] for i in range(3)] for name in "abc"}
    sets.salicon_json(tmp_path, gaze)
    options = ("--data", tmp_path, "--format", "salicon", "--no-plots", "--out", tmp_path / "out")
    done = run(*options)
    assert done.exit_code == 0, done.output
    assert "9 paths of fewer than 3 fixations" in done.output and "made up" not in done.output
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    methods = {line["method"]: line for line in table["methods"]}
    assert "learned" not in methods and table["viewings"] == 9 and table["short paths"] == 9
    assert methods["saccades"]["direction"] is None and methods["saccades"]["sequence"] is not None
    refused = run(*options, "--sources", "learned")
    assert isinstance(refused.exception, RelevanceError)


def test_maps_of_others(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[0.0, 2.0]], dtype=np.float32))
    assert read_map(tmp_path / "a.npy").tolist() == [[0, 2]]
    for wrong in (np.array([1.0]), np.array([[-1.0]]), np.array([[np.nan]]), np.zeros((0, 2))):
        np.save(tmp_path / "a.npy", wrong)
        with pytest.raises(DataError, match="is no map"):
            read_map(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read"):
        read_map(tmp_path / "a.npy")
