"""Dropping while writing: kept keys against everything computed anew under masks, counts, and nothing at rate 0."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from homunculus.errors import AllocatorError, BudgetError, ModelError
from homunculus.model.config import Config
from homunculus.model.decoder import Decoder, Memory, text_turns
from homunculus.model.encoder import Cells
from homunculus.model.recorded import recorded
from homunculus.model.tokenizer import BOS, EOS, PAD
from homunculus.peers.dyrate import Schedule, forgotten, least_mean, mean_left, schedule_for, write_forgetting
from tests.devices import no_sync
from tests.model.tiny import NeverWaits, close, questions

ASKED = ("What is the total?", "Who?", "Read the line below the seal, please.")
TOKENS = 60
schedules = pytest.mark.parametrize("schedule", [Schedule(0.1), Schedule(0.3, least=7), Schedule(0.1, every=3)])


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    torch.manual_seed(4)
    made = Decoder(Config(width=32, heads=2, decoder_layers=3)).eval().requires_grad_(False)
    for layer in made.layers:  # loud, so that what is left matters
        layer.attention.out.weight.data *= 8
        layer.attention.query.weight.data *= 4
        layer.mlp[2].weight.data *= 4
    return made


def remembered(decoder: Decoder, counts: tuple[int, ...] = (TOKENS,) * 3, batch: int = 3, seed: int = 0) -> Memory:
    """Images made of noise, each layer shown the first few of their tokens."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(batch, TOKENS, 4, generator=generator) * torch.tensor([4.0, 64.0, 64.0, 0.0])
    features = torch.randn(batch, TOKENS, 32, generator=generator)
    whole = decoder.remember(features, Cells(places, places[..., 0], places[..., :3]))
    layers = zip(whole.layers, counts, strict=True)
    return Memory(tuple((key[:, :, :count], value[:, :, :count]) for (key, value), count in layers))


def one(memory: Memory, image: int) -> Memory:
    return Memory(tuple((key[image : image + 1], value[image : image + 1]) for key, value in memory.layers))


def anew(decoder: Decoder, memory: Memory, question: torch.Tensor, schedule: Schedule, steps: int):
    """The answer to one question, the whole sequence computed again for each letter; nothing is ever kept or gathered.

    `open_to[layer][place]` are the visual tokens that the token at that place may look at: fewer for every letter.
    """
    text = [*question[question != PAD].tolist(), BOS]
    asked = len(text) - 1
    everything = [set(range(count)) for count in memory.counts]
    open_to = [[everything[number]] * len(text) for number in range(len(decoder.layers))]
    letters, chances = [], []
    while len(letters) < steps and EOS not in letters:
        where = text_turns(torch.arange(1, len(text) + 1)[None], 16)
        x = decoder.embedding(torch.tensor([text]))
        for number, layer in enumerate(decoder.layers):
            key, value = memory.layers[number]
            own_key, own_value = layer.attention.keys_values(layer.norm(x), where)
            query, shown = layer.attention.queries(layer.norm(x), where), key.shape[2]
            keys, values = torch.cat((key, own_key), 2)[0], torch.cat((value, own_value), 2)[0]
            if letters:  # the newest token drops what it looks at least, before it reads
                count = schedule.left(shown, steps)[len(letters)]
                before = open_to[number][-1]
                looked = torch.zeros(shown)
                for head in range(2):
                    scores = query[0, head, -1] @ keys[head, :-1].T / math.sqrt(16)
                    for place in set(range(shown)) - before:
                        scores[place] = -math.inf
                    looked += scores.softmax(-1)[:shown]
                order = sorted(before, key=lambda place: (-looked[place].item(), place))
                open_to[number].append(set(order[: min(count, len(before))]))
            mask = torch.zeros(len(text), shown + len(text), dtype=torch.bool)
            for place in range(len(text)):
                mask[place, sorted(open_to[number][place])] = True
                mask[place, shown : shown + max(asked, place + 1)] = True
            out = F.scaled_dot_product_attention(query, keys[None], values[None], attn_mask=mask)
            x = x + layer.attention.out(out.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.mlp_norm(x))
        chance, letter = decoder._logits(x[:, -1]).softmax(-1).max(-1)
        letters.append(letter.item())
        chances.append(chance.item())
        text.append(letter.item())
    return letters, chances, open_to


@schedules
@pytest.mark.parametrize("counts", [(60, 60, 60), (60, 31, 9)])
def test_cached_is_uncached(decoder, schedule, counts):
    memory, question = remembered(decoder, counts), questions(*ASKED)
    written = write_forgetting(decoder, memory, question, schedule, longest=9)
    assert len({tuple(row) for row in written.letters.tolist()}) == 3 and len(written.letters.unique()) > 4
    for image in range(3):
        letters, chances, open_to = anew(decoder, one(memory, image), question[image], schedule, 9)
        assert len(letters) > 4  # it has dropped something
        assert written.letters[image, : len(letters)].tolist() == letters
        assert close(written.probabilities[image, : len(letters)], torch.tensor(chances), 1e-4)
        for number, places in enumerate(open_to):
            left = [len(own) for own in places[-len(letters) :]]
            assert left == schedule.left(counts[number], 9)[: len(letters)]
    plain = decoder.write(memory, question, longest=9)
    assert not close(plain.probabilities, written.probabilities, 1e-2)  # what is dropped matters to this decoder


@pytest.mark.parametrize("schedule", [Schedule(0.0), Schedule(0.5, least=1000), Schedule(0.5, every=12)])
def test_where_nothing_is_dropped_nothing_changes(decoder, schedule):
    """And its steps can be recorded, which those that drop something cannot."""
    memory, question = remembered(decoder, (60, 31, 9)), questions(*ASKED)

    def forget(letter, number, x, where, seen, sees):
        count = schedule.left(memory.counts[number], 12)[letter]
        return forgotten(decoder.layers[number], x, where, seen, sees, count)

    ours, plain = write_forgetting(decoder, memory, question, schedule, 12), decoder.write(memory, question, 12)
    for one_by_one in (plain, decoder.write(memory, question, 12, forget)):
        assert torch.equal(ours.letters, one_by_one.letters)
        assert torch.equal(ours.probabilities, one_by_one.probabilities)
    with recorded(decoder) as recorder:
        again = write_forgetting(decoder, memory, question, schedule, 12)
        assert len(recorder.steps) == 1
    assert torch.equal(again.letters, ours.letters) and close(again.probabilities, ours.probabilities, 1e-4)


@pytest.mark.parametrize("schedule", [Schedule(0.5, every=11), Schedule(0.5, least=59), Schedule(0.01)])
def test_what_drops_in_one_layer_or_before_the_last_letter_is_not_recorded(decoder, schedule):
    memory, question = remembered(decoder, (60, 9, 1)), questions(*ASKED)
    assert sum(schedule.left(count, 12)[-1] < count for count in memory.counts) >= 1
    with recorded(decoder) as recorder:
        write_forgetting(decoder, memory, question, schedule, 12)
        assert not recorder.steps


@schedules
def test_counts_follow_the_schedule(decoder, schedule):
    """As the layers see them, own token and text taken off."""
    memory, question, seen = remembered(decoder, (60, 31, 9)), questions(*ASKED), []
    hooks = [
        layer.register_forward_pre_hook(lambda _, given, n=number: seen.append((n, given[2][0].shape[2], given[3])))
        for number, layer in enumerate(decoder.layers)
    ]
    try:
        write_forgetting(decoder, memory, question, schedule, 9)
    finally:
        for hook in hooks:
            hook.remove()
    for number, count in enumerate((60, 31, 9)):
        own = [(shown, mask) for layer, shown, mask in seen if layer == number]
        text = [0, *range(question.shape[1] + 1, question.shape[1] + 9)]  # the first reads question and mark
        assert [shown - words for (shown, _), words in zip(own, text, strict=False)] == schedule.left(count, 9)[
            : len(own)
        ]
        assert all(mask.shape[3] == shown + mask.shape[2] for shown, mask in own)
    assert len(seen) > 15


@schedules
def test_an_image_alone_is_itself_in_a_batch(decoder, schedule):
    memory = remembered(decoder)
    together = write_forgetting(decoder, memory, questions(*ASKED), schedule, 9)
    longer = write_forgetting(decoder, memory, F.pad(questions(*ASKED), (0, 5)), schedule, 9)
    assert torch.equal(longer.letters, together.letters) and close(longer.probabilities, together.probabilities, 1e-4)
    for image, asked in enumerate(ASKED):
        alone = write_forgetting(decoder, one(memory, image), questions(asked), schedule, 9)
        length = alone.letters.shape[1]
        assert torch.equal(alone.letters[0], together.letters[image, :length])
        assert close(alone.probabilities[0], together.probabilities[image, :length], 1e-4)


def test_what_is_left_is_what_it_was(decoder):
    """Keys and values to the bit, in their order; all text stays, the padding of a question is never looked at."""
    generator = torch.Generator().manual_seed(1)
    key, value = (torch.randn(2, 2, 50, 16, generator=generator) for _ in range(2))
    sees = torch.ones(2, 1, 1, 11, dtype=torch.bool)  # 40 visual tokens, 10 of text, itself
    sees[0, ..., 2:6] = False
    x, where = torch.randn(2, 1, 32, generator=generator), text_turns(torch.tensor([[11], [11]]), 16)
    layer = decoder.layers[0]
    left_key, left_value = forgotten(layer, x, where, (key, value), sees, 12)
    assert left_key.shape == left_value.shape == (2, 2, 22, 16)
    query = layer.attention.queries(layer.norm(x), where)
    for image in range(2):
        scores = (query[image] @ key[image].mT)[:, 0] / 4
        words = [place for place in range(50) if place < 40 or sees[image, 0, 0, place - 40]]
        looked = torch.zeros(50)
        looked[words] = scores[:, words].softmax(-1).sum(0)
        index = sorted(sorted(range(40), key=lambda place: -looked[place].item())[:12]) + list(range(40, 50))
        assert torch.equal(left_key[image], key[image][:, index]) and torch.equal(
            left_value[image], value[image][:, index]
        )
    loud = key.clone()
    loud[0, :, 42:46] *= 1000
    assert torch.equal(forgotten(layer, x, where, (loud, value), sees, 12)[1], left_value)
    assert forgotten(layer, x, where, (key, value), sees, 40)[0] is key


def test_the_memory_is_not_written_over(decoder):
    memory = remembered(decoder)
    before = [part.clone() for pair in memory.layers for part in pair]
    write_forgetting(decoder, memory, questions(*ASKED), Schedule(0.2), 6)
    assert all(torch.equal(a, b) for a, b in zip(before, (p for pair in memory.layers for p in pair), strict=True))


@pytest.mark.parametrize("way", ["autocast", "bfloat16"])
def test_in_bfloat16(decoder, way):
    memory, question = remembered(decoder), questions(*ASKED)
    if way == "bfloat16":
        decoder = Decoder(Config(width=32, heads=2, decoder_layers=3)).bfloat16()
        memory = Memory(tuple((key.bfloat16(), value.bfloat16()) for key, value in memory.layers))
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        written = write_forgetting(decoder, memory, question, Schedule(0.2), 6)
    assert written.probabilities.isfinite().all() and written.probabilities.dtype == torch.float32


def test_the_host_never_waits():
    decoder = Decoder(Config(width=32, heads=2, decoder_layers=3)).to("meta")
    key = torch.zeros(3, 2, 60, 16, device="meta")
    question = questions(*ASKED).to("meta")
    with NeverWaits():
        write_forgetting(decoder, Memory(((key, key),) * 3), question, Schedule(0.2), 8)  # the eighth may wait


@pytest.mark.gpu
def test_on_a_gpu(decoder):
    memory, question = remembered(decoder), questions(*ASKED)
    here = write_forgetting(decoder, memory, question, Schedule(0.2), 8)
    there = Decoder(Config(width=32, heads=2, decoder_layers=3)).cuda()
    there.load_state_dict(decoder.state_dict())
    kept, asked = Memory(tuple((key.cuda(), value.cuda()) for key, value in memory.layers)), question.cuda()
    with no_sync():
        written = write_forgetting(there, kept, asked, Schedule(0.2), 8)
    assert torch.equal(written.letters.cpu(), here.letters)
    assert close(written.probabilities.cpu(), here.probabilities, 1e-3)


# ------------------------------------------------------------------------------------------------------------- schedule


@schedules
def test_a_schedule_only_falls_and_falls_faster(schedule):
    left = schedule.left(4096, 40)
    assert left[0] == 4096 and left == sorted(left, reverse=True) and left[-1] == schedule.least
    if schedule.every == 1:
        shares = [b / a for a, b in pairwise(left) if b > 60]
        assert shares == sorted(shares, reverse=True) and len(shares) > 2  # a rising share goes
        assert all(abs(share - (1 - schedule.rate * (t + 1))) < 0.02 for t, share in enumerate(shares))


@pytest.mark.parametrize(("tokens", "mean"), [(4096, 273), (4096, 257), (4096, 4096), (60, 30.5), (400, 399)])
@pytest.mark.parametrize("every", [1, 4])
def test_a_rate_for_a_mean(tokens, mean, every):
    if mean < least_mean(tokens, every=every):
        with pytest.raises(BudgetError, match=f"give at least {least_mean(tokens, every=every)}"):
            schedule_for(tokens, mean, every=every)
        return
    schedule = schedule_for(tokens, mean, every=every)
    total = sum(schedule.left(tokens, 16))
    assert mean * 16 - 40 * every <= total <= mean * 16
    if schedule.rate > 0:  # the next lower one is too many
        assert sum(Schedule(schedule.rate - 1e-9, 1, every).left(tokens, 16)) > mean * 16


def test_what_cannot_be_is_refused(decoder):
    for wrong in ({"rate": -0.1}, {"rate": 1.5}, {"least": -1}, {"every": 0}, {"rate": math.nan}):
        with pytest.raises(AllocatorError, match="dyrate takes a rate from 0 to 1, least >= 0 and every >= 1"):
            Schedule(**wrong)
    with pytest.raises(BudgetError, match=r"first of 16 letters is written with all 4096 tokens.*give at least 257"):
        schedule_for(4096, 256)
    with pytest.raises(BudgetError, match="more than all 60"):
        schedule_for(60, 61)
    padded = remembered(decoder)._replace(real=torch.ones(3, 60, dtype=torch.bool))
    with pytest.raises(ModelError, match="padding among them"):
        write_forgetting(decoder, padded, questions(*ASKED), Schedule(), 5)


def test_the_mean_is_over_the_letters_of_an_answer(decoder):
    written = write_forgetting(decoder, remembered(decoder), questions(*ASKED), Schedule(0.1), 9)
    letters = torch.full((3, 9), PAD)
    letters[0, 0], letters[1, :3], letters[2] = EOS, 70, 70
    changed = type(written)(letters, torch.ones(3, 9))
    left = [a + b for a, b in zip(*(Schedule(0.1).left(n, 9) for n in (60, 30)), strict=True)]
    wanted = [sum(left[:n]) / (2 * n) for n in (1, 3, 9)]
    assert mean_left(changed, (60, 30), Schedule(0.1)).tolist() == [round(value) for value in wanted]
