"""The decoder: what may look at what, and that writing with kept keys is the same as reading everything anew."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from homunculus.model.blocks import any_shape
from homunculus.model.config import tiny
from homunculus.model.decoder import Decoder, Memory
from homunculus.model.encoder import Cells
from homunculus.model.tokenizer import BOS, EOS, PAD
from tests.model.tiny import ANSWERS, QUESTIONS, NeverWaits, answers, close, loud_decoder, pictures, questions


@pytest.fixture
def decoder():
    return loud_decoder()


def one(memory, i):
    return Memory(tuple((key[i : i + 1], value[i : i + 1]) for key, value in memory.layers))


# -------------------------------------------------------------------------------------------------------- who sees what


def test_a_letter_sees_only_what_was_written_before_it(decoder):
    memory = decoder.remember(*pictures(1))
    question, answer = questions(QUESTIONS[0]), answers("Anno 1984")
    before = decoder(memory, question, answer)
    for k in range(answer.shape[1]):
        changed = answer.clone()
        changed[0, k] = 77
        after = decoder(memory, question, changed)
        assert close(after[:, : k + 1], before[:, : k + 1])
        if k + 1 < answer.shape[1]:
            assert ((after[0, k + 1 :] - before[0, k + 1 :]).abs().amax(-1) > 1e-3).all()  # and all after it do


def test_an_answer_goes_in_shifted_by_one(decoder):
    """The first letter is foretold from BOS alone, and the last one is never read."""
    memory, question = decoder.remember(*pictures(1)), questions(QUESTIONS[0])
    alone = decoder(memory, question, answers("x")[:, :1])
    assert close(alone, decoder(memory, question, answers("Anno"))[:, :1])
    changed = decoder.embedding.weight.data.clone()
    changed[BOS] += 1.0
    decoder.embedding.weight.data = changed
    assert not close(decoder(memory, question, answers("x")[:, :1])[..., 3:], alone[..., 3:], 1e-3)


def test_a_question_is_read_both_ways(decoder):
    """Its first words know its last: what comes out at the first place changes with the last one."""
    memory = decoder.remember(*pictures(1))
    texts = [questions("Who is it?"), questions("Who is he?")]
    hidden = [decoder._read(F.pad(text, (0, 1), value=BOS), text.shape[1], memory)[0] for text in texts]
    assert not close(hidden[0][:, 0], hidden[1][:, 0], 1e-3)


def test_a_question_never_sees_its_answer(decoder):
    memory, question = decoder.remember(*pictures(1)), questions("Who?")
    asked = question.shape[1]
    hidden = [
        decoder._read(torch.cat((question, answers(text)), dim=1), asked, memory)[0][:, :asked] for text in ("ab", "xy")
    ]
    assert close(hidden[0], hidden[1])


@pytest.mark.parametrize("more", [1, 7, 40])
def test_padding_of_questions_and_answers_means_nothing(decoder, more):
    memory, question, answer = decoder.remember(*pictures()), questions(), answers()
    before = decoder(memory, question, answer)
    assert close(decoder(memory, F.pad(question, (0, more), value=PAD), answer), before)
    assert close(decoder(memory, question, F.pad(answer, (0, more), value=PAD))[:, : answer.shape[1]], before)


def test_nobody_looks_at_padding(decoder):
    """However loud it is."""
    memory, question, answer = decoder.remember(*pictures()), questions(), answers()
    before = decoder(memory, question, answer)
    decoder.embedding.weight.data[PAD] = 1000.0
    after = decoder(memory, question, answer)
    for i, text in enumerate(ANSWERS):
        written = len(text.encode()) + 1
        assert close(after[i, :written, 1:], before[i, :written, 1:])


def test_batch_mates_mean_nothing(decoder):
    memory, question, answer = decoder.remember(*pictures()), questions(), answers()
    together = decoder(memory, question, answer)
    written = decoder.write(memory, question, longest=12)
    for i, (asked, told) in enumerate(zip(QUESTIONS, ANSWERS, strict=True)):
        alone = decoder(one(memory, i), questions(asked), answers(told))
        assert close(alone[0], together[i, : alone.shape[1]])
        by_itself = decoder.write(one(memory, i), questions(asked), longest=12)
        count = by_itself.letters.shape[1]
        assert torch.equal(by_itself.letters[0], written.letters[i, :count])
        assert close(by_itself.probabilities[0], written.probabilities[i, :count], 1e-4)
        assert close(by_itself.confidence[0], written.confidence[i], 1e-4)


def test_order_of_cells_means_nothing_and_their_places_do(decoder):
    features, cells = pictures()
    question, answer, order = questions(), answers(), torch.randperm(20)
    before = decoder(decoder.remember(features, cells), question, answer)
    shuffled = cells._replace(places=cells.places[:, order])
    assert close(decoder(decoder.remember(features[:, order], shuffled), question, answer), before)
    for axis in range(3):
        moved = cells._replace(places=cells.places + torch.eye(4)[axis])
        assert not close(decoder(decoder.remember(features, moved), question, answer), before, 1e-3)
    swapped = cells._replace(places=cells.places[..., [0, 2, 1, 3]])
    assert not close(decoder(decoder.remember(features, swapped), question, answer), before, 1e-3)


@pytest.mark.parametrize(
    ("positions", "matter"),
    [("level-x-y", {0, 1, 2}), ("embedded-level", {1, 2}), ("log-polar", set())],
)
def test_text_sees_cells_by_the_positions_of_the_model(positions, matter):
    """Which shifts of all cells it notices; about the gaze a shift is none, and another distance from it is."""
    torch.manual_seed(3)
    decoder = Decoder(replace(tiny(), positions=positions))
    features, cells = pictures()
    question, answer = questions(), answers()
    before = decoder(decoder.remember(features, cells), question, answer)
    for axis in range(3):
        moved = cells._replace(places=cells.places + torch.eye(4)[axis])
        assert close(decoder(decoder.remember(features, moved), question, answer), before, 1e-3) == (axis not in matter)
    wider = cells._replace(places=cells.places * torch.tensor([1.0, 1.5, 1.5, 1.0]))
    assert not close(decoder(decoder.remember(features, wider), question, answer), before, 1e-3)


def test_word_order_matters(decoder):
    memory = decoder.remember(*pictures(1))
    dog, man = (decoder(memory, questions(text), answers("no")) for text in ("dog bites man", "man bites dog"))
    assert not close(dog, man, 1e-3)


# -------------------------------------------------------------------------------------------------------------- writing


def test_writing_is_reading_each_prefix_anew(decoder):
    memory, question = decoder.remember(*pictures()), questions()
    written = decoder.write(memory, question, longest=20)
    assert len({tuple(row) for row in written.letters.tolist()}) == 3  # not all the same
    assert len(written.letters.unique()) > 4
    for i in range(3):
        prefix = []
        for letter, chance in zip(written.letters[i].tolist(), written.probabilities[i].tolist(), strict=True):
            # The letter in question is not known yet: anything stands in its place.
            logits = decoder(one(memory, i), question[i : i + 1], torch.tensor([[*prefix, PAD]]))[0, -1]
            expected, likeliest = logits.softmax(-1).max(-1)
            if EOS in prefix:
                assert letter == PAD and chance == 1.0
            else:
                assert letter == likeliest.item() and chance == pytest.approx(expected.item(), rel=1e-3)
            prefix.append(letter)


class Scripted(Decoder):
    """Writes what it is told to, whatever it sees: letters[step][row], each with probability 0.8 or so."""

    def __init__(self, script):
        super().__init__(tiny())
        self.script, self.step = script, 0

    def _logits(self, hidden):
        letters = torch.tensor([row[min(self.step, len(row) - 1)] for row in self.script])
        self.step += 1
        return F.one_hot(letters, 1024).float() * 8.0


CHANCE = float(torch.tensor([8.0] + [0.0] * 1023).softmax(0)[0])


def test_after_the_end_comes_padding():
    rows = ([50, 51, EOS, 60], [EOS, 61], [70] * 5 + [EOS, 71, EOS])
    written = Scripted(rows).write(Decoder(tiny()).remember(*pictures()), questions(), longest=30)
    assert written.letters.shape[1] < 30  # all have ended
    assert [[letter for letter in row if letter != PAD] for row in written.letters.tolist()] == [
        [50, 51, EOS],
        [EOS],
        [70] * 5 + [EOS],
    ]
    ended = (written.letters == EOS).int().cumsum(1) - (written.letters == EOS).int()
    assert ((written.letters == PAD) == (ended > 0)).all()
    assert (written.probabilities[written.letters == PAD] == 1).all()
    expected = torch.tensor([CHANCE**3, CHANCE, CHANCE**6])
    assert torch.allclose(written.confidence, expected, rtol=1e-4)
    assert torch.allclose(written.confidence, written.probabilities.prod(1), rtol=1e-4)


class Restless(Decoder):
    """Ends answers at letters of its own choosing, soon or late, and remembers how many it was writing at each."""

    def __init__(self):
        super().__init__(tiny())
        self.batches = []

    def _logits(self, hidden):
        self.batches.append(len(hidden))
        logits = super()._logits(hidden)
        ends = hidden[..., :1] > 0.8  # follows from what the answer is about and from what was written
        return torch.where(ends & (torch.arange(logits.shape[-1]) == EOS), 100.0, logits)


@pytest.mark.parametrize("padded", [False, True])
def test_answers_that_have_ended_leave_the_batch_and_nothing_else_changes(padded):
    torch.manual_seed(3)
    decoder = Restless()
    for layer in decoder.layers:
        layer.attention.out.weight.data *= 8
        layer.mlp[2].weight.data *= 8
    memory, asked = decoder.remember(*pictures(24)), questions(*(f"Who is number {i}?" for i in range(24)))
    if padded:
        memory = memory._replace(real=torch.arange(20) < torch.randint(5, 21, (24, 1)))
    written = decoder.write(memory, asked, longest=60)
    lengths = (written.letters != PAD).sum(1)
    assert lengths.min() <= 8 and lengths.max() > 24
    sizes = decoder.batches.copy()
    assert sizes[0] == 24 and sizes[-1] <= 12 and sizes == sorted(sizes, reverse=True)
    for i in range(24):
        own = one(memory, i)._replace(real=None if memory.real is None else memory.real[i : i + 1])
        alone = decoder.write(own, asked[i : i + 1], longest=60)
        count = min(alone.letters.shape[1], written.letters.shape[1])
        assert torch.equal(alone.letters[0, :count], written.letters[i, :count])
        assert (written.letters[i, count:] == PAD).all() and (alone.letters[0, count:] == PAD).all()
        assert close(alone.confidence[0], written.confidence[i], 1e-4)


@pytest.mark.parametrize("longest", [1, 7, 8, 9, 20])
def test_writing_stops_at_the_longest(longest):
    written = Scripted(([80], [81], [EOS])).write(Decoder(tiny()).remember(*pictures()), questions(), longest=longest)
    assert written.letters.shape == written.probabilities.shape == (3, longest)
    assert (written.letters[0] == 80).all() and (written.letters[1] == 81).all()
    assert written.letters[2].tolist() == [EOS] + [PAD] * (longest - 1)


def test_one_memory_serves_several_questions(decoder):
    features, cells = pictures(1)
    memory = decoder.remember(features, cells)
    kept = [(key.clone(), value.clone()) for key, value in memory.layers]
    first = decoder.write(memory, questions(QUESTIONS[0]), longest=10)
    second = decoder.write(memory, questions(QUESTIONS[2]), longest=10)
    for (key, value), (old_key, old_value) in zip(memory.layers, kept, strict=True):
        assert torch.equal(key, old_key) and torch.equal(value, old_value)  # writing changes no memory
    assert memory.counts == (20, 20)
    many = Memory(tuple((key.expand(3, -1, -1, -1), value.expand(3, -1, -1, -1)) for key, value in memory.layers))
    together = decoder.write(many, questions(), longest=10)
    for row, alone in ((0, first), (2, second)):
        count = alone.letters.shape[1]
        assert torch.equal(together.letters[row, :count], alone.letters[0])
        assert close(together.probabilities[row, :count], alone.probabilities[0], 1e-4)


def test_a_memory_of_a_whole_page(decoder):
    features, cells = pictures(1, count=4096)
    memory = decoder.remember(features, cells)
    assert memory.counts == (4096, 4096)
    written = decoder.write(memory, questions("Who?"), longest=4)
    logits = decoder(memory, questions("Who?"), written.letters)
    assert torch.equal(logits.argmax(-1)[0, : written.letters.ne(PAD).sum()], written.letters[written.letters != PAD])


def test_writing_keeps_no_graph(decoder):
    written = decoder.write(decoder.remember(*pictures()), questions(), longest=3)
    assert not written.probabilities.requires_grad


def test_without_a_question(decoder):
    """A question of no words, or of padding alone, is the same: nothing was asked."""
    memory, answer = decoder.remember(*pictures()), answers()
    nothing, padding = torch.zeros(3, 0, dtype=torch.int64), torch.full((3, 4), PAD)
    assert close(decoder(memory, nothing, answer), decoder(memory, padding, answer))
    a, b = (decoder.write(memory, asked, longest=4) for asked in (nothing, padding))
    assert torch.equal(a.letters, b.letters)


# ------------------------------------------------------------------------------------------------- training and devices


def test_gradients_reach_everything(decoder):
    features, cells = pictures()
    features.requires_grad_()
    logits = decoder(decoder.remember(features, cells), questions(), answers())
    F.cross_entropy(logits.flatten(0, 1), answers().flatten(), ignore_index=PAD).backward()
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.abs().sum() > 0, name
    assert (features.grad.abs().sum((1, 2)) > 0).all()


def test_a_new_decoder_knows_nothing():
    """Its first loss is that of guessing evenly, within one nat."""
    torch.manual_seed(0)
    logits = Decoder(tiny())(Decoder(tiny()).remember(*pictures()), questions(), answers())
    loss = F.cross_entropy(logits.flatten(0, 1), answers().flatten(), ignore_index=PAD)
    assert abs(loss.item() - torch.tensor(1024.0).log().item()) < 1


@pytest.mark.parametrize("way", ["autocast", "bfloat16"])
def test_in_bfloat16(decoder, way):
    features, cells = pictures()
    expected = decoder(decoder.remember(features, cells), questions(), answers())
    if way == "bfloat16":
        decoder, features = decoder.bfloat16(), features.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        memory = decoder.remember(features, cells)
        logits = decoder(memory, questions(), answers())
        written = decoder.write(memory, questions(), longest=5)
    assert (logits.float() - expected).abs().mean() < 0.05 * expected.std()
    assert written.probabilities.dtype == torch.float32 and written.confidence.isfinite().all()


def test_the_host_never_waits(decoder):
    decoder.to("meta")
    features, cells = (
        x.to("meta") if isinstance(x, torch.Tensor) else Cells(*(y.to("meta") for y in x)) for x in pictures()
    )
    question, answer = questions().to("meta"), answers().to("meta")
    with NeverWaits():
        memory = decoder.remember(features, cells)
        decoder(memory, question, answer)
        decoder.write(memory, question, longest=8)  # the eighth letter is the first that may wait


# ------------------------------------------------------------------------------------------------------ who computes it


def test_text_is_not_left_to_kernels_that_plan_for_a_shape(decoder, monkeypatch):
    """Nor are those switched off for anybody else, whatever happens."""
    used, real = [], F.scaled_dot_product_attention

    def noted(*how, **more):
        used.append(torch.backends.cuda.cudnn_sdp_enabled())
        return real(*how, **more)

    before = torch.backends.cuda.cudnn_sdp_enabled()
    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    decoder.write(decoder.remember(*pictures()), questions(), longest=4)
    assert len(used) == 4 * len(decoder.layers) and not any(used)
    assert torch.backends.cuda.cudnn_sdp_enabled() == before
    with pytest.raises(ValueError, match="stop"), any_shape():
        raise ValueError("stop")
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


@pytest.mark.gpu
def test_a_gpu_writes_without_cudnn(decoder):
    features, cells = pictures()
    decoder.cuda()
    with torch.autocast("cuda", torch.bfloat16), torch.no_grad(), torch.profiler.profile(acc_events=True) as profile:
        memory = decoder.remember(features.cuda(), Cells(*(part.cuda() for part in cells)))
        decoder.write(memory, questions().cuda(), longest=6)
    names = {event.key for event in profile.key_averages()}
    assert any("attention" in name for name in names) and not any("cudnn" in name for name in names)
