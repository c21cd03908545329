"""The benchmark of Qwen-VL on a tiny model: it runs, counts what it says it counts, and leaves nothing behind."""

import csv

import pytest
import torch
from PIL import Image

from bench import qwen_chat as chat
from bench import qwen_vl as bench
from bench.qwen_shapes import QUESTION, make_inputs, make_model, make_processor, within
from homunculus.integrations.qwen_vl import features, plan

WAYS = [("stock", "-"), ("max_pixels", "-"), ("pre", "uniform"), ("pre", "coarse-pass"), ("post", "uniform")]
WAYS += [("post", "coarse-pass")]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "results.csv"
    bench.main(["--tiny", "--sides", "2048", "--results", str(path)])
    return path


@pytest.fixture(scope="module")
def rows(results):
    with results.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("shape", "count"), [("8B", 8767123696), ("4B", 4437815808), ("2B", 2127532032)])
def test_the_shapes_have_as_many_parameters_as_published(shape, count):
    model = make_model(shape, make_processor().tokenizer, "meta", torch.bfloat16)
    assert sum(weight.numel() for weight in model.parameters()) == count
    assert model.config._attn_implementation == "sdpa"


def test_every_way_is_measured_for_every_batch(rows):
    shows = [("256", "1"), ("256", "3"), ("mixed", "3"), ("one by one", "1")]
    found = [(row["image"], row["batch"], row["variant"], row["relevance"]) for row in rows]
    assert found == [(*show, *way) for show in shows for way in WAYS]
    assert all(row["transformers"] and row["torch"] and row["date"] and row["gpu"] for row in rows)


def test_tokens_are_counted(rows):
    square = {row["variant"]: float(row["tokens"]) for row in rows if row["image"] == "256"}
    assert square == {"stock": 64, "max_pixels": 16, "pre": 16, "post": 16}
    for row in rows:
        if row["image"] == "mixed":  # prompts of one length need no padding
            assert (float(row["padding"]) > 0) == (row["variant"] == "stock")
        if row["variant"] in bench.OURS:
            assert float(row["tokens"]) == 16


def test_times_add_up(rows):
    for row in rows:
        if row["image"] == "one by one":
            assert 0 < float(row["ttft_ms"]) <= float(row["ttft_p99_ms"]) and row["requests"] == "4"
            continue
        parts = {name: float(row[f"{name}_ms"]) for name in bench.PARTS}
        assert sum(parts.values()) <= 1.5 * float(row["ttft_ms"])  # medians of each, so not to the last digit
        assert parts["tower"] > 0 and parts["prefill"] > 0 and float(row["decode_tokens_s"]) > 0
        ours = row["variant"] in bench.OURS
        assert all((parts[name] > 0) == ours for name in ("scoring", "allocation", "sampling"))
    scoring = {row["relevance"]: float(row["scoring_ms"]) for row in rows[:6] if row["variant"] == "pre"}
    assert scoring["coarse-pass"] > scoring["uniform"]


def test_what_is_timed_is_given_back(rows):
    assert not hasattr(plan.allocate_view, "__wrapped__") and not hasattr(features.cell_rows, "__wrapped__")
    processor = make_processor()
    model = make_model("tiny", processor.tokenizer, "cpu", torch.float32)
    before = set(vars(model)) | set(vars(model.model)) | set(vars(model.model.language_model))
    case = bench.Case("pre", "uniform", "256", ((256, 256),), 16)
    with bench.prepared(model, processor, case, "eager", bench.Spans("cpu")):
        assert "get_image_features" in vars(model.model) and hasattr(features.cell_rows, "__wrapped__")
    assert set(vars(model)) | set(vars(model.model)) | set(vars(model.model.language_model)) == before
    assert not hasattr(features.cell_rows, "__wrapped__")


def test_inputs_are_those_of_the_processor():
    processor = make_processor()
    sizes = [(128, 160), (96, 64)]
    inputs = make_inputs(sizes, [w * h // 32**2 for w, h in sizes], processor.tokenizer, "cpu")
    shown = f"<|vision_start|><|image_pad|><|vision_end|>{QUESTION}"
    prompt = f"<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n"
    processor.image_processor.size = {"shortest_edge": 32**2, "longest_edge": 10**6}
    images = [Image.new("RGB", size) for size in sizes]
    expected = processor(text=[prompt] * 2, images=images, padding=True, return_tensors="pt")
    for name in ("input_ids", "attention_mask", "mm_token_type_ids", "image_grid_thw"):
        assert torch.equal(inputs[name], expected[name].to(inputs[name].dtype)), name
    assert inputs["pixel_values"].shape == expected["pixel_values"].shape


@pytest.mark.parametrize("size", [(2048, 2048), (2048, 1024), (672, 1888)])
def test_max_pixels_scales_as_the_processor_does(size):
    processor = make_processor().image_processor
    processor.size = {"shortest_edge": 32**2, "longest_edge": 273 * 32**2}
    _, lines, columns = processor(Image.new("RGB", size), return_tensors="pt")["image_grid_thw"][0].tolist()
    assert within(size, 273 * 32**2) == (columns * 16, lines * 16)


def test_the_picture(results, tmp_path):
    pytest.importorskip("matplotlib")
    bench.main(["--tiny", "--plot", "--results", str(results), "--figure", str(tmp_path / "figure.png")])
    assert (tmp_path / "figure.png").stat().st_size > 20_000


def test_refusals(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a device to measure on")
    for arguments, why in ((["--tiny"], "say where with --results"), ([], "measured on a CUDA device")):
        with pytest.raises(SystemExit):
            bench.main(arguments)
        assert why in capsys.readouterr().err


def test_a_second_turn_goes_on_or_looks_anew():
    """Both ways give the token that the whole prompt gives, as long as cells are the same."""
    processor = make_processor()
    model = make_model("tiny", processor.tokenizer, "cpu", torch.float32)
    inputs = make_inputs([(256, 256)], [16], processor.tokenizer, "cpu")
    more = torch.tensor(processor.tokenizer(chat.SECOND, add_special_tokens=False)["input_ids"])[None]
    with chat.patched(model, processor, 16, {"keep": True}), torch.no_grad():
        kept, anew = (chat.second_turn(model, inputs, more, way) for way in (True, False))
        assert torch.equal(kept(), anew()) and torch.equal(kept(), kept())


def test_the_chat_is_measured_in_every_way(capsys):
    chat.main(["--tiny"])
    shown = capsys.readouterr().out
    assert all(way in shown for way in ("kept", "anew", "features kept"))
