"""Steps that can be recorded write what `Decoder.write` writes, answer after answer, in tensors that stay."""

import pytest
import torch

from homunculus.model.decoder import Memory
from homunculus.model.recorded import WIDE, recorded
from homunculus.peers.dyrate import Schedule, write_forgetting
from tests.model.tiny import NeverWaits, close, loud_decoder, pictures, questions

ASKED = ("What is the total?", "Who?", "When was it due, and by whom was it signed at the bottom?")


@pytest.fixture
def decoder():
    return loud_decoder()


def same(one, two, tolerance=1e-4):
    count = min(one.letters.shape[1], two.letters.shape[1])
    assert torch.equal(one.letters[:, :count], two.letters[:, :count])
    assert close(one.probabilities[:, :count], two.probabilities[:, :count], tolerance)
    assert close(one.confidence, two.confidence, tolerance)


@pytest.mark.parametrize("longest", [1, 7, 8, 30])
def test_it_writes_the_same(decoder, longest):
    memory, asked = decoder.remember(*pictures()), questions(*ASKED)
    plain = decoder.write(memory, asked, longest)
    with recorded(decoder):
        same(plain, decoder.write(memory, asked, longest))
    assert decoder.writer is None


def test_nothing_is_left_of_the_answers_before(decoder):
    """Other images, then other questions of as many words, then the first ones again: one state for all of them."""
    first, second = (decoder.remember(*pictures(seed=seed)) for seed in (5, 6))
    asked, other = questions(*ASKED), questions(*reversed(ASKED))
    asks = (first, asked), (second, asked), (second, other), (first, asked)
    wanted = [decoder.write(*how, 20) for how in asks]
    assert not torch.equal(wanted[0].letters, wanted[1].letters)
    with recorded(decoder) as recorder:
        for expected, how in zip(wanted, asks, strict=True):
            same(expected, decoder.write(*how, 20))
        assert len(recorder.steps) == 1
        decoder.write(first, questions("Who?", "Who?", "Who?"), 20)  # fewer words: another shape
        assert {shape.asked % WIDE for shape in recorder.steps} == {0} and len(recorder.steps) == 2


def test_what_is_forgotten_is_recorded_anew(decoder):
    memory, asked = decoder.remember(*pictures()), questions(*ASKED)
    with recorded(decoder) as recorder:
        wanted = decoder.write(memory, asked, 20)
        (shape,) = recorder.steps
        decoder.write(memory, asked, 12)
        recorder.forget(recorder.steps.keys() - {shape})
        assert list(recorder.steps) == [shape] and recorder.graphs.keys() <= {shape}
        recorder.forget([shape])
        assert not recorder.steps and not recorder.graphs
        same(wanted, decoder.write(memory, asked, 20), tolerance=0.0)


def test_what_was_written_is_not_written_over(decoder):
    memories = [decoder.remember(*pictures(seed=seed)) for seed in (5, 6)]
    with recorded(decoder):
        first = decoder.write(memories[0], questions(), 12)
        kept = first.letters.clone()
        decoder.write(memories[1], questions(), 12)
    assert torch.equal(first.letters, kept)


def test_padding_among_tokens_and_layers_that_are_shown_fewer(decoder):
    memory, asked = decoder.remember(*pictures()), questions(*ASKED)
    padded = memory._replace(real=torch.arange(20) < torch.tensor([[20], [3], [11]]))
    fewer = Memory((memory.layers[0], tuple(part[:, :, :7] for part in memory.layers[1])))
    for own in (padded, fewer):
        plain = decoder.write(own, asked, 16)
        with recorded(decoder):
            same(plain, decoder.write(own, asked, 16))


def test_in_bfloat16(decoder):
    with torch.autocast("cpu", torch.bfloat16):
        memory = decoder.remember(*pictures())
        plain = decoder.write(memory, questions(), 12)
        with recorded(decoder):
            same(plain, decoder.write(memory, questions(), 12), 2e-2)


def test_what_forgets_is_written_as_ever(decoder):
    memory, asked = decoder.remember(*pictures()), questions(*ASKED)
    plain = write_forgetting(decoder, memory, asked, Schedule(0.1), 12)
    with recorded(decoder) as recorder:
        same(plain, write_forgetting(decoder, memory, asked, Schedule(0.1), 12))
        assert not recorder.steps


def test_a_step_waits_for_nothing(decoder):
    """And launches the same operations every time, on tensors at the same places: what recording needs."""
    memory, asked = decoder.remember(*pictures()), questions(*ASKED)
    with recorded(decoder) as recorder:
        decoder.write(memory, asked, 16)
        (steps,) = recorder.steps.values()

    def places():
        held = [*(part for pair in steps.kept for part in pair), *steps.sees, steps.letters, steps.logits, steps.number]
        return [(own.data_ptr(), own.shape) for own in held]

    before = places()
    steps.begin(memory, asked)
    with NoValues():
        for _ in range(3):
            steps.step()
    assert places() == before and steps.number.item() == 3


class NoValues(NeverWaits):
    """On the CPU, where any tensor is the host's, only reading values is refused."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not str(func).startswith(self.WAITS), f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.gpu
@pytest.mark.parametrize("cast", [False, True])
def test_a_recorded_graph_writes_the_same(cast):
    decoder = loud_decoder().cuda()
    asked = questions(*ASKED).cuda()
    with torch.autocast("cuda", torch.bfloat16, enabled=cast), torch.no_grad():
        memories = []
        for seed in (5, 6, 7):
            features, cells = pictures(seed=seed)
            memories.append(decoder.remember(features.cuda(), type(cells)(*(part.cuda() for part in cells))))
        plain = [decoder.write(memory, asked, 24) for memory in memories]
        with recorded(decoder) as recorder:
            for memory, expected in zip(memories, plain, strict=True):
                same(expected, decoder.write(memory, asked, 24), 2e-2 if cast else 1e-4)
            assert len(recorder.graphs) == 1
