"""Reducers inside a language model: what each layer is shown, against a decoder that is masked by hand."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from homunculus.errors import BudgetError
from homunculus.model.config import Config
from homunculus.model.decoder import Decoder, Memory, text_turns
from homunculus.model.encoder import Cells
from homunculus.model.rotary import POSITIONS
from homunculus.model.tokenizer import BOS, EOS, PAD
from homunculus.peers.layers import (
    LAYER_PEERS,
    Shown,
    all_then,
    by_last_word,
    by_raters,
    falling,
    least_mean,
    looks,
    remember_reduced,
)
from tests.model.tiny import answers, close, questions

TOKENS, MEAN = 60, 30.0
ASKED = ("What is the total?", "Who?", "Read the line below the seal, please.")
peer_names = pytest.mark.parametrize("name", list(LAYER_PEERS))


def loud(**options: str) -> Decoder:
    """A decoder to which it matters what it is shown."""
    torch.manual_seed(4)
    made = Decoder(Config(width=32, heads=2, decoder_layers=3, **options)).eval().requires_grad_(False)
    for layer in made.layers:
        layer.attention.out.weight.data *= 8
        layer.attention.query.weight.data *= 4
    return made


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return loud()


def images(batch: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(batch, TOKENS, 4, generator=generator) * torch.tensor([4.0, 64.0, 64.0, 0.0])
    return torch.randn(batch, TOKENS, 32, generator=generator), places


def chosen_in(memory: Memory, decoder: Decoder, features: torch.Tensor, places: torch.Tensor) -> list[torch.Tensor]:
    """Which tokens each layer was shown, found by their values."""
    whole = decoder.remember(features, Cells(places, places[..., 0], places[..., :3]))
    found = []
    for (_, ours), (_, theirs) in zip(memory.layers, whole.layers, strict=True):
        same = (ours[:, 0, :, None] - theirs[:, 0, None]).abs().amax(-1) < 1e-5  # [b, k, n]
        assert (same.sum(-1) == 1).all()
        found.append(same.float().argmax(-1))
    return found


@pytest.mark.parametrize(("schedule", "mean"), [(all_then, 25), (falling, 25), (all_then, 59.5), (falling, 40)])
@pytest.mark.parametrize("layers", [3, 28])
def test_counts_begin_with_all_and_have_the_mean(schedule, mean, layers):
    counts = schedule(TOKENS, layers, mean)
    assert len(counts) == layers and counts[0] == TOKENS and min(counts) >= 1
    assert counts == sorted(counts, reverse=True)
    assert mean - 1 <= sum(counts) / layers <= mean
    assert schedule(TOKENS, layers, TOKENS) == [TOKENS] * layers


@pytest.mark.parametrize("schedule", [all_then, falling])
def test_what_cannot_be_is_refused(schedule):
    with pytest.raises(BudgetError, match=r"first of 3 layers is shown all 4096 tokens, so the mean is at least 1365"):
        schedule(4096, 3, 273)
    with pytest.raises(BudgetError, match="more than all 60"):
        schedule(60, 3, 61)
    with pytest.raises(BudgetError, match="first of 1 layers is shown all 60 tokens, so the mean is at least 60"):
        schedule(60, 1, 59)  # no other layer is shown fewer, to make up for it
    assert schedule(60, 1, 60) == [60]


@given(st.sampled_from([all_then, falling]), st.integers(1, 500), st.integers(1, 28), st.floats(1, 500))
def test_a_mean_is_kept_or_refused(schedule, tokens, layers, mean):
    try:
        counts = schedule(tokens, layers, mean)
    except BudgetError:
        return
    assert len(counts) == layers and sum(counts) <= mean * layers + 1e-3 and min(counts) >= 1


@peer_names
@pytest.mark.parametrize("positions", POSITIONS)
def test_with_room_for_all_nothing_changes(positions, name):
    decoder, (features, places) = loud(positions=positions), images()
    memory = remember_reduced(decoder, features, places, questions(*ASKED), LAYER_PEERS[name], TOKENS)
    whole = decoder.remember(features, Cells(places, places[..., 0], places[..., :3]))
    assert all(torch.equal(a, b) for ours, theirs in zip(memory.layers, whole.layers, strict=True)
               for a, b in zip(ours, theirs, strict=True))  # fmt: skip


@pytest.mark.parametrize("name", ["fastv", "pyramiddrop"])
def test_a_layer_is_shown_what_the_last_token_looked_at_and_nothing_else(decoder, name):
    """A decoder that is shown everything and masked by hand chooses the same tokens and says the same."""
    features, places = images()
    question, answer = questions(*ASKED), answers("12.50", "Ada", "none")
    memory = remember_reduced(decoder, features, places, question, LAYER_PEERS[name], MEAN)
    ours = chosen_in(memory, decoder, features, places)
    whole = decoder.remember(features, Cells(places, places[..., 0], places[..., :3]))
    counts = LAYER_PEERS[name].counts(TOKENS, 3, MEAN)
    assert memory.counts == tuple(counts) and counts[1] < TOKENS
    for image in range(3):
        text = question[image][question[image] != PAD]
        x = decoder.embedding(torch.cat((text, torch.tensor([1]))))  # BOS
        allowed = torch.arange(TOKENS)
        for number, layer in enumerate(decoder.layers):
            assert torch.equal(ours[number][image], allowed)
            x, looked = by_hand(layer, x, [part[image, :, allowed] for part in whole.layers[number]])
            if number + 1 < 3:
                order = looked[-1].argsort(descending=True, stable=True)[: counts[number + 1]]
                allowed = allowed[order.sort().values]
    logits = decoder(memory, question, answer)
    picked = [
        tuple(part.gather(2, index[:, None, :, None].expand(-1, part.shape[1], -1, part.shape[3])) for part in pair)
        for pair, index in zip(whole.layers, ours, strict=True)
    ]
    assert close(logits, decoder(Memory(tuple(picked)), question, answer))


def by_hand(layer, x, seen):
    """One layer on one text, the last token of which is the mark: the text after it, and what each token looked at."""
    length = len(x)
    where = text_turns(torch.arange(1, length + 1)[None], 16)
    normed = layer.norm(x[None])
    own_key, own_value = layer.attention.keys_values(normed, where)
    key, value = (torch.cat(parts, 1) for parts in zip(seen, (own_key[0], own_value[0]), strict=True))
    query = layer.attention.queries(normed, where)[0]
    heads, outs = [], []
    for head in range(2):
        scores = query[head] @ key[head].T / math.sqrt(16)
        scores[:-1, -1] = -math.inf  # the question does not see the mark
        weights = scores.softmax(-1)
        heads.append(weights[:, : seen[0].shape[1]])
        outs.append(weights @ value[head])
    x = x + layer.attention.out(torch.cat(outs, -1))
    return x + layer.mlp(layer.mlp_norm(x)), torch.stack(heads).mean(0)


@peer_names
def test_a_peer_is_told_how_the_text_looked_at_what_a_layer_was_shown(name):
    """Every choice, by hand for each question without its padding: its words, their likeness, what they look at."""
    decoder, (features, places), question = loud(), images(), questions(*ASKED)
    generator, asked, run = torch.Generator().manual_seed(7), [], []
    for layer in decoder.layers:  # a norm that turns vectors: the text is compared as it goes in
        layer.norm.weight.data = 3 * torch.rand(32, generator=generator)
        layer.register_forward_pre_hook(lambda own, _: run.append(own))
    peer = LAYER_PEERS[name]

    def noting(shown, count):
        asked.append((shown, count))
        return peer.choose(shown, count)

    memory = remember_reduced(decoder, features, places, question, replace(peer, choose=noting), MEAN)
    counts = peer.counts(TOKENS, 3, MEAN)
    drops = [number for number in range(2) if counts[number + 1] < counts[number]]
    assert [count for _, count in asked] == [counts[number + 1] for number in drops]
    assert run == [decoder.layers[number] for number in range(drops[-1])]  # for text that nobody looks at again: none
    assert (question == PAD).any(1).tolist() == [True, True, False]
    for image in range(3):
        words = int((question[image] != PAD).sum())
        real = [*range(words), -1]  # the mark stands behind the padding
        x = decoder.embedding(torch.cat((question[image, :words], torch.tensor([BOS]))))
        for (shown, _), number in zip(asked, drops, strict=True):
            where = decoder.turns(shown.places, 16)
            seen = decoder.layers[number].attention.keys_values(shown.features, where)
            assert all(torch.equal(ours, own) for ours, own in zip(memory.layers[number], seen, strict=True))
            likeness = F.cosine_similarity(x[:, None], shown.features[image, None], dim=-1)
            x, looked = by_hand(decoder.layers[number], x, [part[image] for part in seen])
            assert close(shown.attention[image, real], looked, 1e-5)
            assert close(shown.likeness[image, real], likeness, 1e-5)
            assert shown.question[image].nonzero().flatten().tolist() == list(range(words))


@peer_names
def test_writing_with_kept_keys_is_reading_anew(decoder, name):
    """Also where layers are shown different numbers of tokens."""
    features, places = images()
    question = questions(*ASKED)
    memory = remember_reduced(decoder, features, places, question, LAYER_PEERS[name], MEAN)
    written = decoder.write(memory, question, longest=6)
    chances = decoder(memory, question, written.letters.masked_fill(written.letters == PAD, EOS)).softmax(-1)
    real = written.letters != PAD
    again = chances.gather(2, written.letters[..., None])[..., 0]
    assert len(set(memory.counts)) > 1 and close(again[real], written.probabilities[real], 1e-4)
    assert torch.equal(chances.argmax(-1)[real], written.letters[real])


@peer_names
def test_neither_batch_mates_nor_padding_matter(decoder, name):
    features, places = images()
    question = questions(*ASKED)
    together = remember_reduced(decoder, features, places, question, LAYER_PEERS[name], MEAN)
    longer = remember_reduced(decoder, features, places, F.pad(question, (0, 5)), LAYER_PEERS[name], MEAN)
    for image in range(3):
        own = slice(image, image + 1)
        alone = remember_reduced(decoder, features[own], places[own], questions(ASKED[image]), LAYER_PEERS[name], MEAN)
        for kept, wide, by_itself in zip(together.layers, longer.layers, alone.layers, strict=True):
            for a, b, c in zip(kept, wide, by_itself, strict=True):
                assert close(a[own], c) and close(b[own], c)


def test_looks_are_told_apart_inside_autocast():
    """Two keys that bfloat16 takes for one."""
    query, key = torch.ones(1, 1, 1, 16), torch.ones(1, 1, 3, 16)
    key[:, :, 1] += 1e-4
    everything = torch.ones(1, 1, 1, 3, dtype=torch.bool)
    plain = looks(query, key, everything)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(looks(query, key, everything), plain)
    assert plain[0, 0, 1] > plain[0, 0, 0] == plain[0, 0, 2]
    assert looks(query, key, everything & torch.tensor([True, False, True]))[0, 0].tolist() == [0.5, 0.0, 0.5]


@peer_names
def test_autocast_chooses_and_remembers(decoder, name):
    features, places = images()
    with torch.autocast("cpu", torch.bfloat16):
        memory = remember_reduced(decoder, features.bfloat16(), places, questions(*ASKED), LAYER_PEERS[name], MEAN)
        written = decoder.write(memory, questions(*ASKED), 5)
    assert memory.counts == tuple(LAYER_PEERS[name].counts(TOKENS, 3, MEAN))
    assert written.probabilities.isfinite().all() and memory.layers[0][0].dtype == torch.bfloat16


@pytest.mark.parametrize("name", list(LAYER_PEERS))
@pytest.mark.parametrize("layers", [1, 2, 3, 28])
@pytest.mark.parametrize("least", [1, 7, 100])
def test_the_least_mean_is_the_first_that_works(name, layers, least):
    counts = LAYER_PEERS[name].counts

    def works(mean: int) -> bool:
        try:
            return min(counts(TOKENS, layers, mean)) >= min(least, TOKENS)
        except BudgetError:
            return False

    assert least_mean(counts, TOKENS, layers, least) == next(mean for mean in range(1, TOKENS + 1) if works(mean))


def shown(seed: int = 0, tokens: int = 40, words: int = 5) -> Shown:
    generator = torch.Generator().manual_seed(seed)
    attention = torch.rand(2, words + 1, tokens, generator=generator)
    text = torch.randn(2, words + 1, 8, generator=generator)
    question = torch.ones(2, words + 1, dtype=torch.bool)
    question[:, -1] = False
    question[1, 3:] = False
    features = torch.randn(2, tokens, 8, generator=generator)
    return Shown(features, torch.arange(tokens).float()[None, :, None].expand(2, -1, 1), attention, text, question)


def test_ties_go_to_the_first():
    flat = shown()._replace(attention=torch.ones(2, 6, 40))
    _, places = by_last_word(flat, 7)
    assert places[0, :, 0].tolist() == list(range(7))


@pytest.mark.parametrize("count", [9, 20])
def test_raters_are_words_that_have_to_do_with_the_image(count):
    """By a plain loop: who rates, who is kept, and what the last tenth becomes."""
    given = shown()
    features, places = by_raters(given, count)
    recycled = count // 10
    for image in range(2):
        words = [t for t in range(6) if given.question[image, t]]
        cosines = F.cosine_similarity(given.text[image, :, None], given.features[image, None], dim=-1)
        likeness = {t: cosines[t].mean().item() for t in words}
        raters = [t for t in words if likeness[t] >= sum(likeness.values()) / len(words)]
        assert 0 < len(raters) < len(words)
        rated = sum(given.attention[image, t] for t in raters)
        order = sorted(range(40), key=lambda i: (-rated[i].item(), i))[:count]
        assert places[image, :, 0].tolist() == sorted(order)
        alike = F.normalize(given.features[image], dim=-1)
        for place in order:
            mine = [place]
            if place in order[count - recycled :]:
                mine += [
                    i for i in range(40) if i not in order and max(order, key=lambda o: alike[i] @ alike[o]) == place
                ]
            mean = given.features[image, mine].mean(0)
            assert close(features[image, sorted(order).index(place)], mean, 1e-5)


@peer_names
def test_all_of_a_decoder_learns_inside_autocast(name):
    """What is read without gradients to choose tokens must not leave weights without gradients behind."""
    decoder, question, answer = loud().requires_grad_(True), questions(*ASKED), answers("7", "no", "red")
    features, places = torch.randn(3, TOKENS, 32), torch.rand(3, TOKENS, 4)
    with torch.autocast("cpu", torch.bfloat16):
        memory = remember_reduced(decoder, features, places, question, LAYER_PEERS[name], MEAN)
        decoder(memory, question, answer).float().square().sum().backward()
    assert [one for one, weight in decoder.named_parameters() if weight.grad is None] == []
