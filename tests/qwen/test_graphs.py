"""A pass with nothing decided on the host in between: the same first token, and nothing that would break a graph."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from homunculus.integrations import qwen_vl
from homunculus.integrations.qwen_vl.graphs import check_static, compiled_norms, first_token, given_of
from homunculus.integrations.qwen_vl.patching import PatchError
from tests.qwen.tiny import inputs_for, make_model, make_processor, picture

RELEVANCE = ["uniform", "coarse-pass", None, [("coarse-pass", 0.6), ("detail", 0.4)]]
QUESTIONS = ["what is written at the top left of the page ?", "who signed ?"]


@pytest.fixture(scope="module")
def pair():
    processor = make_processor()
    return make_model(processor), processor


@pytest.fixture
def patched(pair):
    model, processor = pair
    yield lambda **how: (model, processor, qwen_vl.patch(model, processor, **({"budget": 20} | how)))
    qwen_vl.unpatch(model)


def both(processor, questions=QUESTIONS):
    return inputs_for(processor, [picture(300, 200, seed) for seed in range(len(questions))], questions)


@pytest.mark.parametrize("relevance", RELEVANCE)
@pytest.mark.parametrize("questions", [QUESTIONS[:1], QUESTIONS], ids=["one", "padded"])
def test_the_pass_is_the_models_own(patched, relevance, questions):
    model, processor, session = patched(relevance=relevance)
    inputs = both(processor, questions)
    with torch.no_grad():
        expected = model(**inputs).logits[:, -1]
        cells = [allocation.boxes for allocation in model.last_allocation]
        found = first_token(session, *given_of(session, inputs))
    assert all(torch.equal(a, b.boxes) for a, b in zip(cells, found.plan.allocations, strict=True))
    assert torch.allclose(found.logits, expected, atol=1e-5)


@pytest.mark.parametrize("how", [{"positions": "rounded"}, {"region": (0.1, 0.5, 0.6, 0.9)}, {"budget": 54}])
def test_options_act_as_they_do_elsewhere(patched, how):
    """Among them a budget of every leaf: the stock model."""
    model, processor, session = patched(**how)
    inputs = both(processor)
    with torch.no_grad():
        expected = model(**inputs).logits[:, -1]
        assert torch.allclose(first_token(session, *given_of(session, inputs)).logits, expected, atol=1e-5)


def test_two_images_in_a_prompt(patched):
    model, processor, session = patched()
    inputs = inputs_for(processor, [picture(300, 200), picture(300, 200, 1)], ["compare"], images_each=2)
    with torch.no_grad():
        expected = model(**inputs).logits[:, -1]
        assert torch.allclose(first_token(session, *given_of(session, inputs)).logits, expected, atol=1e-5)


def test_generation_goes_on_from_it(patched):
    model, processor, session = patched()
    inputs = both(processor)
    with torch.no_grad():
        whole = model.generate(**inputs, max_new_tokens=6, do_sample=False)
        found = first_token(session, *given_of(session, inputs))
        model.model.rope_deltas = found.rope_deltas
    first = found.logits.argmax(-1, keepdim=True)
    ids = torch.cat((inputs["input_ids"], first), dim=1)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 1), value=1)
    again = model.generate(
        input_ids=ids, attention_mask=mask, past_key_values=found.kept(), max_new_tokens=5, do_sample=False
    )
    assert torch.equal(again, whole)


class NothingWaits(TorchDispatchMode):
    """Fails where a device would have to be asked: scalars, counts of nonzeros, boolean indices."""

    ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        assert not any(name.startswith(asking) for asking in self.ASKING), f"{name} waits for the device"
        if name in ("index", "index_put"):
            assert not any(index is not None and index.dtype == torch.bool for index in args[1]), f"boolean {name}"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("relevance", ["uniform", "coarse-pass"])
def test_nothing_in_it_waits(patched, relevance, monkeypatch):
    _, processor, session = patched(relevance=relevance)
    call, given = given_of(session, both(processor))

    def refuse(*_, **__):
        raise AssertionError("asks the device for values")

    with torch.no_grad():
        expected = first_token(session, call, given)  # what is compiled or cached at first
        # A graph reads padding from its own memory: transformers looks at a mask only where it is not capturing.
        monkeypatch.setattr("transformers.masking_utils.is_tracing", lambda *_: True)
        for name in ("tolist", "item", "numpy", "cpu", "__bool__", "__int__", "__float__"):
            monkeypatch.setattr(torch.Tensor, name, refuse)
        make = torch.tensor  # what has values would have to travel there; a cache begins with none
        monkeypatch.setattr(torch, "tensor", lambda data, **how: make(data, **how) if data == [] else refuse())
        with NothingWaits():
            found = first_token(session, call, given)
    monkeypatch.undo()
    assert torch.allclose(found.logits, expected.logits, atol=1e-5)


def test_a_recorded_pass_reads_what_it_is_given(patched):
    """What a graph would replay: the pass over copies into which another call of the same shape was written."""
    model, processor, session = patched(relevance="coarse-pass")
    call, given = given_of(session, both(processor))
    static = given.copied()
    other = inputs_for(processor, [picture(300, 200, 5), picture(300, 200, 6)], QUESTIONS[::-1])
    new_call, new = given_of(session, other)
    assert new.shape(new_call) == given.shape(call)
    for own, values in zip(static.tensors(), new.tensors(), strict=True):
        own.copy_(values)
    with torch.no_grad():
        assert torch.allclose(first_token(session, call, static).logits, model(**other).logits[:, -1], atol=1e-5)


def test_shapes_tell_calls_apart(patched):
    _, processor, session = patched()
    shapes = []
    for images, questions in (([(300, 200)], ["what ?"]), ([(200, 300)], ["what ?"]), ([(300, 200)], ["what is it ?"])):
        inputs = inputs_for(processor, [picture(*size) for size in images], questions)
        call, given = given_of(session, inputs)
        shapes.append(given.shape(call))
    assert len(set(shapes)) == 3


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"stage": "post"}, "patch with stage='pre'"),
        ({"stage": "views"}, "patch with stage='pre'"),
        ({"relevance": "text-similarity"}, "use relevance='coarse-pass'"),
        ({"keep": True}, "patch without it"),
    ],
)
def test_what_cannot_be_one_pass_is_refused(patched, how, why):
    _, _, session = patched(**how)
    with pytest.raises(PatchError, match=why):
        check_static(session)


def test_calls_of_no_one_shape_are_refused(patched):
    model, processor, session = patched()
    mixed = inputs_for(processor, [picture(300, 200), picture(200, 300)], QUESTIONS)
    with pytest.raises(PatchError, match="size by size"):
        given_of(session, mixed)
    right = both(processor)
    right["attention_mask"] = right["attention_mask"].flip(1)
    with pytest.raises(PatchError, match="padded on the left"):
        given_of(session, right)
    text = dict(processor(text=["what ?"], return_tensors="pt"))
    with pytest.raises(PatchError, match="shows no images"):
        given_of(session, text)
    with pytest.raises(PatchError, match="need a CUDA device"):
        qwen_vl.FirstTokens(model)


def test_windows_have_no_fixed_shape():
    processor = make_processor("qwen2.5")
    session = qwen_vl.patch(make_model(processor), processor, 20)
    with pytest.raises(PatchError, match="use Qwen3-VL"):
        check_static(session)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_compiled_norms_are_the_models_own(patched):
    model, processor, session = patched(relevance="coarse-pass")
    inputs = both(processor)
    language_model = model.model.language_model
    call, given = given_of(session, inputs)
    with torch.no_grad():
        expected = model(**inputs).logits[:, -1]
        with compiled_norms(language_model):
            changed = [m for m in language_model.modules() if "forward" in vars(m)]
            found = first_token(session, call, given)
    assert len(changed) == 5 * len(language_model.layers) + 1  # four norms and an MLP in a layer, and the last norm
    assert torch.allclose(found.logits, expected, atol=1e-5)
    assert not any("forward" in vars(m) for m in changed)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("relevance", ["uniform", "coarse-pass"])
def test_replayed(relevance, compiled):
    processor = make_processor()
    model = make_model(processor).cuda()
    qwen_vl.patch(model, processor, 20, relevance=relevance)
    first = qwen_vl.FirstTokens(model, compiled=compiled)
    for seed in range(3):
        for count in (1, 2):
            pictures = [picture(300, 200, seed + i) for i in range(count)]
            inputs = {k: v.cuda() for k, v in inputs_for(processor, pictures, QUESTIONS[:count]).items()}
            with torch.no_grad():
                expected = model(**inputs).logits[:, -1]
            assert torch.allclose(first(**inputs).logits, expected, atol=1e-3, rtol=1e-3)
