"""`homunculus ask` on the compact model, one question and many; `homunculus bench answers`; what they refuse."""

import csv
import json
import sys

import pytest
import torch
from PIL import Image

from homunculus.cli import main
from homunculus.errors import ModelError
from homunculus.model import weights
from homunculus.model.answer import answer
from homunculus.model.config import tiny
from homunculus.model.tokenizer import EOS, FIRST_BYTE
from homunculus.model.vlm import CompactVLM
from homunculus.model.weights import load_model, save_weights

QUESTION = "What is the total?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Weights of a tiny model, as `homunculus train` leaves them."""
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("weights") / "tiny"
    model = CompactVLM(tiny()).requires_grad_(False)
    # One channel decides between an end and a letter, so that answers are short.
    model.decoder.norm.weight.zero_()[0] = 0.5
    model.decoder.embedding.weight[EOS, 0], model.decoder.embedding.weight[FIRST_BYTE + ord("A"), 0] = 3.0, -3.0
    save_weights(model, path)
    return path


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.png"
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (192, 256, 3), dtype=torch.uint8, generator=generator)
    Image.fromarray(pixels.numpy()).save(path)
    return path


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """The command line in this process: exit code, what it printed, what it complained of."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["homunculus", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return end.value.code or 0, captured.out, captured.err

    return call


def refusal(done) -> str:
    code, out, error = done
    assert code == 2 and out == "" and error.startswith("error: ") and error.count("\n") == 1, error
    return error


def test_an_answer_in_words(run, page, folder, tmp_path):
    code, out, error = run("ask", page, QUESTION, "--weights", folder, "--budget", "64")
    said = answer(load_model(folder), page, QUESTION, budget=64)
    assert code == 0 and error == ""
    assert out.startswith(f"{said.text}\n\n{said.confidence:.0%} sure, 64 visual tokens, ")
    assert [path.name for path in tmp_path.glob("*.png")] == ["page.png"]  # nothing is drawn unless asked for


def test_an_answer_as_json_with_a_picture(run, page, folder, tmp_path):
    arguments = ("ask", page, QUESTION, "--weights", folder, "--budget", "64", "--looks", "2", "--json", "--show")
    code, out, error = run(*arguments)
    assert code == 0, error
    report = json.loads(out)
    assert report["image_size"] == [256, 192] and report["question"] == QUESTION
    assert len(report["cells"]) == 64 and report["tokens"] == 64 * len(report["looks"])
    assert len(report["looks"]) == 2 and len(report["looks"][-1]["at"]) == 2 and report["out"] == "ask.png"
    with Image.open(tmp_path / "ask.png") as picture:
        assert picture.format == "PNG" and picture.width > 900


def test_a_named_picture_is_drawn_and_progress_made(run, page, folder, tmp_path):
    arguments = ("ask", page, QUESTION, "--weights", folder, "--progressive", "--out", "seen.png")
    code, out, error = run(*arguments)
    assert code == 0, error
    assert "885 visual tokens in 3 looks" in out and out.rstrip().endswith("seen.png")
    assert (tmp_path / "seen.png").exists()


def test_without_weights_it_says_so(run, page, monkeypatch, tmp_path):
    monkeypatch.setattr(weights, "SHIPPED", tmp_path / "nowhere")
    assert "no weights of the compact model" in refusal(run("ask", page, QUESTION))
    assert "model.json" in refusal(run("ask", page, QUESTION, "--weights", tmp_path))


def test_shipped_weights_are_the_default(run, page, folder, monkeypatch):
    monkeypatch.setattr(weights, "SHIPPED", folder)
    code, out, _ = run("ask", page, QUESTION, "--budget", "64")
    assert code == 0 and out.startswith(answer(load_model(folder), page, QUESTION, budget=64).text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no image and no question"),
        (("page.png",), "no question: write homunculus ask"),
        (("page.png", QUESTION, "--stage", "pre"), "--stage goes only with --model"),
        (("page.png", QUESTION, "--region", "footer"), "--region goes only with --model"),
        (("page.png", QUESTION, "--max-new-tokens", "3"), "--max-new-tokens goes only with --model"),
        (("page.png", QUESTION, "--model", "x", "--looks", "2"), "--looks goes not with --model"),
        (("page.png", QUESTION, "--model", "x", "--progressive"), "--progressive goes not with --model"),
        (("page.png", QUESTION, "--model", "x", "--weights", "y"), "--weights goes not with --model"),
        (("--csv", "q.csv", "--model", "x"), "--csv goes not with --model"),
        (("page.png", QUESTION, "--csv", "q.csv"), "leave out the image"),
        (("nowhere.png", QUESTION), "does not exist"),
        (("What is it?",), "the image comes first"),
        (("page.png", QUESTION, "--out", "seen.jpg"), "is a PNG"),
        (("page.png", QUESTION, "--allocator", "nothing"), "unknown allocator"),
        (("page.png", QUESTION, "--budget", "0"), "budget"),
        (("page.png", QUESTION, "--bugdet", "9"), "homunculus ask --help"),
    ],
)
def test_mistakes_cost_no_loading(run, page, arguments, words, monkeypatch):
    monkeypatch.setattr(weights, "load_model", lambda *_: pytest.fail("loaded before it looked"))
    assert words in refusal(run("ask", *arguments))


def test_questions_the_model_does_not_take(run, page, folder):
    given = ("--weights", folder, "--budget", "64")
    assert "empty" in refusal(run("ask", page, "  ", *given))
    assert "too long" in refusal(run("ask", page, "7" * 200, *given))
    assert "positive whole number" in refusal(run("ask", page, QUESTION, "--looks", "0", *given))
    assert "unknown relevance" in refusal(run("ask", page, QUESTION, "--relevance", "nothing", *given))


# ------------------------------------------------------------------------------------------------------ many at once


@pytest.fixture
def questions(tmp_path, page):
    """A file in a folder of its own, with images beside it."""
    (tmp_path / "pages").mkdir()
    page.rename(tmp_path / "pages" / "a.png")
    Image.new("RGB", (100, 160), "white").save(tmp_path / "pages" / "b.png")
    lines = [(f"{'ab'[i % 2]}.png", f"What is number {i}, please?") for i in range(11)]
    path = tmp_path / "pages" / "q.csv"
    path.write_text("question,image\n" + "".join(f'"{question}",{image}\n' for image, question in lines), "utf-8-sig")
    return path, lines


def test_a_file_of_questions(run, questions, folder, tmp_path):
    path, lines = questions
    code, out, error = run("ask", "--csv", path, "--weights", folder, "--budget", "32", "--out", "a.csv")
    assert code == 0 and out == "" and "11 answers; a.csv" in error
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["image"], row["question"]) for row in rows] == lines
    model = load_model(folder)
    for row in rows[:3]:
        said = answer(model, path.parent / row["image"], row["question"], budget=32)
        assert row["answer"] == said.text and float(row["confidence"]) == pytest.approx(said.confidence, abs=1e-3)
    code, printed, _ = run("ask", "--csv", path, "--weights", folder, "--budget", "32")
    assert code == 0 and printed.encode() == (tmp_path / "a.csv").read_bytes()
    assert {row["how"] for row in rows} == {f"foveated-pyramid, 32 tokens, weights {folder}"}
    other = ("ask", "--csv", path, "--weights", folder, "--budget", "64", "--out", "a.csv")
    assert "a.csv are by foveated-pyramid, 32 tokens" in refusal(run(*other))
    _, _, error = run("ask", "--csv", path, "--weights", folder, "--budget", "32", "--out", "a.csv")
    assert "11 answers, 11 of them there before and not asked again; a.csv" in error
    assert (tmp_path / "a.csv").read_bytes() == printed.encode()


def test_a_stopped_file_goes_on(run, questions, folder, tmp_path, monkeypatch):
    from homunculus.model import answer as module

    path, _ = questions
    command = ("ask", "--csv", path, "--weights", folder, "--budget", "32", "--out")
    run(*command, "whole.csv")
    real, calls = module.answer, []

    def dies(model, pixels, asked, **how):
        if calls:
            raise ModelError("stopped")
        calls.append(len(asked))
        return real(model, pixels, asked, **how)

    monkeypatch.setattr(module, "answer", dies)
    assert "stopped" in refusal(run(*command, "a.csv"))
    left = (tmp_path / "a.csv").read_bytes()
    whole = (tmp_path / "whole.csv").read_bytes()
    assert calls == [8] and whole.startswith(left) and left.count(b"please") == 8
    monkeypatch.setattr(module, "answer", lambda *given, **how: calls.append(len(given[2])) or real(*given, **how))
    assert run(*command, "a.csv")[0] == 0
    assert calls == [8, 3] and (tmp_path / "a.csv").read_bytes() == whole
    assert [path.name for path in tmp_path.glob(".homunculus*")] == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("image\na.png\n", "no column question"),
        ("", "no column image"),
        ("image,question\n", "holds no questions"),
        ("image,question\na.png,\n", "line 2 of"),
        ("image,question\na.png,Who?\nc.png,Who?\n", "line 3 of"),
        ("image,question\nq.csv,Who?\n", "line 2 of"),
        (f"image,question\na.png,Who?\na.png,{'7' * 200}\n", "too long"),
    ],
)
def test_files_that_will_not_do(run, questions, folder, content, words):
    path, _ = questions
    path.write_text(content)
    code, _, error = run("ask", "--csv", path, "--weights", folder, "--budget", "32", "--out", "a.csv")
    assert code == 2 and error.startswith("error: ") and error.count("\n") == 1 and words in error
    assert not (path.parent.parent / "a.csv").exists()


def test_looks_of_two_kinds_are_refused_before_anything_is_written(run, questions, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "load_model", lambda *_: pytest.fail("loaded before it looked"))
    given = ("ask", "--csv", questions[0], "--looks", "3", "--progressive", "--out", "a.csv")
    assert "ask for one of them" in refusal(run(*given)) and not (tmp_path / "a.csv").exists()


def test_answers_do_not_go_over_other_files(run, questions, folder, tmp_path):
    path, _ = questions
    command = ("ask", "--csv", path, "--weights", folder, "--out")
    assert "would be overwritten" in refusal(run(*command, path))
    (tmp_path / "other.csv").write_text("image,question,answer,confidence,how\nz.png,Who?,Ada,1,so\n")
    assert "choose another --out" in refusal(run(*command, "other.csv"))
    assert "folder that exists" in refusal(run(*command, "nowhere/a.csv"))
    assert "cannot read" in refusal(run("ask", "--csv", tmp_path / "none.csv", "--weights", folder))


def test_the_benchmark_of_answers(run, folder, tmp_path):
    command = ("bench", "answers", "--family", "scenes", "--questions", "6", "--budget", "32", "--size", "256")
    command += ("--weights", folder, "--workers", "0", "--out", "rows.jsonl")
    code, out, error = run(*command)
    assert code == 0, error
    assert "scenes, test-iid, 32 tokens by foveated-pyramid, relevance predicted" in out and "exact, % [95 %]" in out
    rows = (tmp_path / "rows.jsonl").read_text()
    assert rows.count("\n") == 2 + 2 * 6  # what was asked, how long; of every question what it is, and what was said
    assert run(*command)[1] == out and (tmp_path / "rows.jsonl").read_text() == rows
    assert "no family" in refusal(run("bench", "answers", "--family", "pages"))
    assert "does not exist" in refusal(run("bench", "answers", "--out", "nowhere/rows.jsonl"))
