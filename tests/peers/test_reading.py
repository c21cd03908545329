"""Every peer by one call: what it says, how many tokens it was shown, and that sharing an encoding changes nothing."""

from pathlib import Path

import pytest
import torch

from homunculus.errors import AllocatorError, BudgetError, ModelError
from homunculus.model.config import Config
from homunculus.model.looking import question_ids
from homunculus.model.tokenizer import PAD
from homunculus.model.vlm import CompactVLM, look
from homunculus.peers import get_peer, peers
from homunculus.peers.combined import remember_combined
from homunculus.peers.compact import on_grid, received, remember_tokens, seen_whole
from homunculus.peers.dyrate import Schedule, schedule_for, write_forgetting
from homunculus.peers.layers import LAYER_PEERS
from homunculus.peers.reading import ALL_LEAVES, all_peers, least_budget, read_with, stage_of
from homunculus.peers.variable import COUNTS, counts_of
from tests.model.tiny import close
from tests.peers.made import remembered

ASKED = ["What is the total?", "Who?", "Read the line below the seal, please."]
LEAVES = 60
PAGE = Path(__file__).parents[2] / "docs" / "peers.md"
every = pytest.mark.parametrize("peer", list(all_peers()))


@pytest.fixture(scope="module")
def model() -> CompactVLM:
    torch.manual_seed(2)
    config = Config(
        width=32, heads=2, encoder_layers=2, scorer_stem=(8, 8), scorer_width=16, scorer_heads=2, scorer_blocks=1
    )
    made = CompactVLM(config).eval().requires_grad_(False)
    for layer in made.decoder.layers:  # loud, so that answers follow from what is seen
        layer.attention.out.weight.data *= 16
        layer.mlp[2].weight.data *= 8
    made.scorer.out.weight.data *= 8  # relevance that differs
    return made


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return (torch.rand(3, 3, 96, 160, generator=torch.Generator().manual_seed(1)) * 255).to(torch.uint8)


def budget_of(peer: str) -> int | None:
    return 12 if stage_of(peer) == "features" else None


def options_of(peer: str) -> dict:
    """Counts that differ even where relevance hardly does."""
    return {"thresholds": (47, 50, 52, 54)} if peer == "variable" else {}


def same(one, two, tolerance=1e-4) -> None:
    assert torch.equal(one.written.letters, two.written.letters)
    assert close(one.written.probabilities, two.written.probabilities, tolerance)


def test_every_kind_is_listed():
    names = all_peers()
    assert set(names) == {*peers(), *LAYER_PEERS, "whole", "dyrate", "variable", "combined"} and all(names.values())
    kinds = {stage: [name for name in names if stage_of(name) == stage] for stage in map(stage_of, names)}
    assert kinds["features"] == list(peers()) and kinds["layers"] == list(LAYER_PEERS)
    assert [kinds[kind] for kind in ("none", "decoding", "batch", "combined")] == [
        ["whole"], ["dyrate"], ["variable"], ["combined"],
    ]  # fmt: skip


@pytest.mark.parametrize("peer", list(peers()))
def test_images_may_be_reduced_some_at_a_time(model, images, peer, monkeypatch):
    options = {"seed": torch.tensor([5, 6, 7])} if peer == "random" else {}  # one for each image
    together = read_with(model, peer, images, ASKED, 12, longest=6, **options)
    for tokens in (LEAVES, 2 * LEAVES + 1):  # one image at a time, or two
        monkeypatch.setattr("homunculus.peers.reading.TOGETHER", {"cpu": tokens})
        apart = read_with(model, peer, images, ASKED, 12, longest=6, **options)
        same(together, apart)
        assert torch.equal(together.covered, apart.covered)


@every
def test_every_peer_answers(model, images, peer):
    read = read_with(model, peer, images, ASKED, budget_of(peer), longest=6, **options_of(peer))
    assert read.written.letters.shape[0] == 3 and read.written.probabilities.isfinite().all()
    assert read.density.shape == (3, 6, 10) and read.density.dtype == torch.float64
    assert close(read.density.sum((1, 2)), torch.ones(3).double(), 1e-5)
    if stage_of(peer) in ALL_LEAVES:
        deaf = read_with(model, peer, images, ASKED, budget_of(peer), longest=1, told=False, **options_of(peer))
        assert (deaf.density is not None) == (peer == "cdpruner")
    assert read.covered.shape == (3,) and (read.covered > 0).all() and (read.covered <= 1 + 1e-6).all()
    assert 0 <= read.waste < 1 and (read.waste > 0) == (peer == "variable")


def told_leaves(model, images):
    """All leaves of the images, of which the questions told how relevant they are."""
    density = model.relevance(images, question_ids(model, ASKED))
    seen = seen_whole(model, images, density=density)
    return seen._replace(relevance=on_grid(density, seen.grid))


@every
def test_a_peer_pays_for_the_attention_it_asks_for_and_no_more(model, images, peer, monkeypatch):
    blocks, ends = [], {"late": model.encoder.blocks[-1], "early": model.encoder.blocks[0]}

    def noting(block, *rest):
        blocks.append(block)
        return received(block, *rest)

    monkeypatch.setattr("homunculus.peers.compact.received", noting)
    read_with(model, peer, images, ASKED, budget_of(peer), longest=1, **options_of(peer))
    asks = {"visionzip": ["late"], "prumerge+": ["late"], "hired": ["late", "early"], "vscan": ["late", "early"]}
    assert blocks == [ends[when] for when in asks.get(peer, [])]


@pytest.mark.parametrize("peer", ["variable", "combined"])
def test_of_cells_the_encoder_is_always_told(model, images, peer):
    with pytest.raises(AllocatorError, match=f"{peer} cuts cells, and of those the encoder is always told"):
        read_with(model, peer, images, ASKED, budget_of(peer), told=False, **options_of(peer))


@pytest.mark.parametrize("peer", ["tome", "cdpruner", "fastv", "dyrate", "whole"])
def test_leaves_of_which_nothing_was_told(model, images, peer):
    """They can be shared by all questions of an image, and say something else."""
    how = {"longest": 6, **options_of(peer)}
    fresh = read_with(model, peer, images, ASKED, budget_of(peer), told=False, **how)
    shared = read_with(model, peer, images, ASKED, budget_of(peer), told=False, seen=seen_whole(model, images), **how)
    same(fresh, shared, 1e-5)
    told = read_with(model, peer, images, ASKED, budget_of(peer), **how)
    assert not close(told.written.probabilities, fresh.written.probabilities, 1e-4)


@pytest.mark.parametrize("peer", ["tome", "cdpruner", "random", "fastv", "dyrate", "whole"])
def test_questions_that_tell_nothing_share_an_image(model, images, peer):
    which = [1, 0, 1]
    how = {"longest": 6, "told": False, **options_of(peer)}
    shared = read_with(
        model, peer, images[which], ASKED, budget_of(peer), seen=seen_whole(model, images[:2]), which=which, **how
    )
    same(read_with(model, peer, images[which], ASKED, budget_of(peer), **how), shared, 1e-5)


@every
def test_an_encoding_can_be_shared(model, images, peer):
    """Also one that was made for a peer that asks for more."""
    seen = told_leaves(model, images)
    how = {"longest": 6, **options_of(peer)}
    fresh = read_with(model, peer, images, ASKED, budget_of(peer), **how)
    shared = read_with(model, peer, images, ASKED, budget_of(peer), seen=seen, **how)
    same(fresh, shared, 1e-5)
    assert close(fresh.covered, shared.covered) and (fresh.density is None) == (shared.density is None)
    assert torch.equal(torch.as_tensor(fresh.tokens), torch.as_tensor(shared.tokens))


@every
def test_an_image_alone_is_itself_in_a_batch(model, images, peer):
    how = {"longest": 6, **options_of(peer)}
    together = read_with(model, peer, images, ASKED, budget_of(peer), **how)
    for image in range(3):
        own = slice(image, image + 1)
        alone = read_with(model, peer, images[own], ASKED[own], budget_of(peer), **how)
        length = alone.written.letters.shape[1]
        assert torch.equal(alone.written.letters[0], together.written.letters[image, :length])
        assert close(alone.written.probabilities[0], together.written.probabilities[image, :length], 1e-4)
        tokens = torch.as_tensor(together.tokens).expand(3)
        assert torch.as_tensor(alone.tokens).flatten().tolist() == [tokens[image].item()]
        assert alone.waste == 0 and close(alone.covered[0], together.covered[image])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("told", [True, False])
def test_a_draw_is_of_the_image_alone(model, images, dtype, told):
    """Whatever is asked, whoever is beside it, however its features come out: of an image the same tokens are drawn."""
    question = question_ids(model, ASKED)
    densities = model.relevance(images, question) if told else None
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        together = get_peer("random")(seen_whole(model, images, density=densities), 12).index
        other = get_peer("random")(seen_whole(model, images, density=None if told else torch.rand(3, 6, 10)), 12).index
        for image in range(3):
            own = densities[image : image + 1] if told else None
            alone = get_peer("random")(seen_whole(model, images[image : image + 1], density=own), 12).index
            assert torch.equal(alone[0], together[image])
    assert torch.equal(together, other) and len(set(map(tuple, together.tolist()))) == 3
    again = get_peer("random")(seen_whole(model, images), 12, seed=1).index
    assert not (again == together).all(1).any()


@every
def test_in_bfloat16(model, images, peer):
    with torch.autocast("cpu", torch.bfloat16):
        read = read_with(model, peer, images, ASKED, budget_of(peer), longest=4, **options_of(peer))
    assert read.written.probabilities.dtype == torch.float32 and read.written.probabilities.isfinite().all()
    assert read.covered.dtype == torch.float32


@pytest.mark.parametrize("peer", ["tome", "cdpruner", "fastv", "sparsevlm", "dyrate", "whole"])
def test_room_for_all_is_the_whole_image(model, images, peer):
    whole = read_with(model, "whole", images, ASKED, None, longest=6)
    read = read_with(model, peer, images, ASKED, LEAVES, longest=6)
    same(whole, read, 1e-5)
    assert torch.as_tensor(read.tokens).unique().tolist() == [LEAVES] == [whole.tokens] and (read.covered == 1).all()
    seen = told_leaves(model, images)
    by_hand = remember_tokens(model, seen.features, seen.places)
    assert torch.equal(whole.written.letters, model.decoder.write(by_hand, question_ids(model, ASKED), 6).letters)


@pytest.mark.parametrize("peer", [*peers(), *LAYER_PEERS])
def test_it_is_the_peer_itself(model, images, peer):
    question, seen = question_ids(model, ASKED), told_leaves(model, images)
    budget = 40 if peer in LAYER_PEERS else 12
    written = model.decoder.write(remembered(model, seen, peer, budget, question), question, 6)
    read = read_with(model, peer, images, ASKED, budget, longest=6)
    assert torch.equal(read.written.letters, written.letters)
    assert close(read.written.probabilities, written.probabilities, 1e-5)
    if peer in LAYER_PEERS:
        assert abs(read.tokens - 40) <= 1 and (read.covered == 1).all()
    else:
        assert read.tokens == 12 and close(read.covered, get_peer(peer)(seen, 12).mass.sum(1) / LEAVES)


def test_coverage_tells_merging_from_dropping(model, images):
    covered = {peer: read_with(model, peer, images, ASKED, 12, longest=2).covered for peer in ("tome", "divprune")}
    assert close(covered["tome"], torch.ones(3)) and close(covered["divprune"], torch.full((3,), 12 / LEAVES))


def test_options_reach_the_peer(model, images):
    one, two = (read_with(model, "random", images, ASKED, 12, longest=3, seed=seed) for seed in (0, 1))
    assert not close(one.written.probabilities, two.written.probabilities, 1e-4)
    slow = read_with(model, "dyrate", images, ASKED, None, longest=6, rate=0.0)
    same(slow, read_with(model, "whole", images, ASKED, None, longest=6), 0)
    assert slow.tokens.tolist() == [LEAVES] * 3


def test_relevance_may_be_given(model, images):
    """It moves what asks for it, and nothing else."""
    corner = torch.zeros(3, 6, 10)
    corner[:, :2, :2] = 1
    for peer in ("cdpruner", "variable", "combined", "divprune"):
        how = {"longest": 3, **options_of(peer)}
        plain = read_with(model, peer, images, ASKED, budget_of(peer), **how)
        moved = read_with(model, peer, images, ASKED, budget_of(peer), relevance=corner, **how)
        assert torch.equal(moved.density, corner.double())
        assert not close(plain.written.probabilities, moved.written.probabilities, 1e-4)
    deaf = [read_with(model, "divprune", images, ASKED, 12, told=False, relevance=own) for own in (None, corner)]
    assert torch.equal(deaf[0].written.probabilities, deaf[1].written.probabilities) and deaf[1].density is None
    seen = seen_whole(model, images)._replace(relevance=corner.flatten(1))
    kept = read_with(model, "cdpruner", images, ASKED, 12, longest=3, seen=seen)
    assert torch.equal(kept.density, corner.double())


@pytest.mark.parametrize("peer", list(LAYER_PEERS))
@pytest.mark.parametrize("shown", [1, 5, 20])
def test_layers_run_at_the_least_mean_they_can(model, images, peer, shown):
    least = least_budget(peer, LEAVES, 3, shown=shown)
    counts = LAYER_PEERS[peer].counts
    assert min(counts(LEAVES, 3, least)) >= shown
    try:
        assert min(counts(LEAVES, 3, least - 1)) < shown
    except BudgetError:
        assert shown == 1
    read = read_with(model, peer, images, ASKED, None, longest=2, shown=shown)
    assert read.tokens == round(sum(counts(LEAVES, 3, least)) / 3) <= least


@every
def test_the_least_budget_is_the_least(model, images, peer):
    least = least_budget(peer, LEAVES, 3)
    options = {"thresholds": (0, 300, 301, 302)} if peer == "variable" else {}
    assert read_with(model, peer, images, ASKED, least, longest=2, **options).written.letters.shape == (3, 2)
    if peer != "variable":  # its thresholds say what is given
        with pytest.raises(BudgetError):
            read_with(model, peer, images, ASKED, least - 1, longest=2)


def test_dyrate_is_the_whole_image_first(model, images):
    seen, question = told_leaves(model, images), question_ids(model, ASKED)
    memory = remember_tokens(model, seen.features, seen.places)
    read = read_with(model, "dyrate", images, ASKED, 20, longest=7)
    schedule = schedule_for(LEAVES, 20)
    written = write_forgetting(model.decoder, memory, question, schedule, 7)
    assert torch.equal(read.written.letters, written.letters)
    left = schedule.left(LEAVES, 7)
    for letters, tokens in zip((written.letters != PAD).sum(1).tolist(), read.tokens.tolist(), strict=True):
        assert tokens == round(sum(left[:letters]) / letters)


def test_variable_tells_counts_and_waste(model, images):
    density = torch.zeros(3, 6, 10)
    density[0, 0, 0], density[1, :2, :4], density[2] = 1, 1, 1  # 1, 8 and 60 leaves
    read = read_with(model, "variable", images, ASKED, 273, longest=3, relevance=density)
    assert tuple(read.tokens.tolist()) == counts_of(density) == (64, 100, 400)
    assert read.waste == pytest.approx(1 - 564 / 1200) and (read.covered == 1).all()
    few = read_with(model, "variable", images, ASKED, 5, longest=3, relevance=density, counts=(16, 19), thresholds=(7,))
    assert few.tokens.tolist() == [16, 19, 19]
    for wrong in ({}, {"counts": (16, 19)}):
        with pytest.raises(BudgetError, match=r"give thresholds, as variable.thresholds_for finds them"):
            read_with(model, "variable", images, ASKED, 200, **wrong)


@pytest.mark.parametrize("cells", [None, 64, 273])
def test_combined_is_all_of_them_in_turn(model, images, cells):
    """Fewer cells, merged, fewer in each layer, fewer for each letter."""
    question = question_ids(model, ASKED)
    density = model.relevance(images, question).double()
    counts = []
    hooks = [model.encoder.register_forward_pre_hook(lambda _, given: counts.append(given[0].shape[1]))]
    count = lambda _, given: counts.append(given[2][0].shape[2])  # noqa: E731
    hooks += [layer.register_forward_pre_hook(count) for layer in model.decoder.layers]
    try:
        read = read_with(model, "combined", images, ASKED, cells, longest=4)
    finally:
        for hook in hooks:
            hook.remove()
    cells = cells or 150
    merged = round(cells * 2 / 3)
    assert counts[:2] == [cells, merged]
    layers = counts[2:5]
    assert layers == LAYER_PEERS["pyramiddrop"].counts(merged, 3, 0.6 * merged) and layers[2] < layers[1] < merged
    text = question.shape[1] + 1
    # The first layer has read the question to choose; three read it to answer; then three for every letter.
    later = [counts[5 + 3 * t : 8 + 3 * t] for t in range(3)]
    for t, shown in enumerate(later):
        assert [each - text - t for each in shown] == [Schedule().left(n, 4)[t + 1] for n in layers]
    memory = remember_combined(model, images, density, question, cells)
    again = write_forgetting(model.decoder, memory, question, Schedule(), 4)
    assert torch.equal(read.written.letters, again.letters)
    tokens = look(images, density, cells)
    assert tokens.allocation.budget == cells and memory.counts == tuple(layers)


def test_combined_with_nothing_reduced_is_a_plain_look(model, images):
    question = question_ids(model, ASKED)
    read = read_with(model, "combined", images, ASKED, 100, longest=5, merged=1.0, shown=1.0, rate=0.0)
    plain = model.read(look(images, model.relevance(images, question).double(), 100), question, 5)
    assert torch.equal(read.written.letters, plain.letters)
    assert close(read.written.probabilities, plain.probabilities, 1e-5) and read.tokens.tolist() == [100] * 3


@pytest.mark.parametrize(
    ("peer", "budget", "options", "problem"),
    [
        ("dirate", 12, {}, "unknown peer 'dirate': did you mean 'dyrate'"),
        ("tome", None, {}, "tome keeps 1 to 60 tokens of these images, got None"),
        ("tome", 12, {"shown": 3}, "tome has no option 'shown': it takes rounds"),
        ("fastv", 12, {}, "the first of 3 layers is shown all 60 tokens, so the mean is at least 20"),
        ("fastv", 40, {"shown": 12}, "fastv takes a budget or shown, not both"),
        ("sparsevlm", 40, {"shown": 1}, "sparsevlm takes a budget or shown, not both"),
        ("fastv", True, {}, "a budget of fastv is a number of tokens, 1 or more, or None, got True"),
        ("fastv", None, {"rounds": 2}, "fastv has no option 'rounds': it takes shown"),
        ("fastv", None, {"shown": 2.5}, "shown of fastv is a whole number"),
        ("whole", 12, {}, "whole reads all 60 tokens, got a budget of 12: give None"),
        ("dyrate", 30, {"rate": 0.1}, "dyrate takes a budget or a rate, not both"),
        ("dyrate", "many", {}, "a budget of dyrate is a number of tokens"),
        ("dyrate", 3, {}, "first of 16 letters is written with all 60 tokens"),
        ("dyrate", None, {"rate": float("nan")}, "rate of dyrate is a finite number"),
        ("combined", 99.5, {}, "a budget of combined is a number of tokens"),
        ("combined", 15, {}, "at least 16"),
        ("combined", None, {"merged": 0.0}, "shares above 0 up to 1"),
        ("variable", None, {"thresholds": (3, 2, 1, 0)}, "5 counts need 4 rising thresholds"),
    ],
)
def test_what_cannot_be_is_refused(model, images, peer, budget, options, problem):
    with pytest.raises((AllocatorError, BudgetError), match=problem) as error:
        read_with(model, peer, images, ASKED, budget, longest=2, **options)
    assert "\n" not in str(error.value)


def test_the_example_of_the_page_runs(model):
    example = PAGE.read_text().split("## Any of them by name")[1].split("```")[1].removeprefix("python\n")
    images = torch.rand(2, 3, 256, 288, generator=torch.Generator().manual_seed(1))
    known = {"model": model, "images": images, "questions": ["Who?", "When?"]}
    exec(example, known)
    fresh = read_with(model, "tome", images, known["questions"], 273, relevance=known["density"])
    same(fresh, known["read"], 1e-5)


def test_one_question_for_each_image(model, images):
    with pytest.raises(ModelError, match="3 images, 2 questions"):
        read_with(model, "whole", images, ASKED[:2], None)
    with pytest.raises(ModelError, match="leave out which, or give told=False"):
        read_with(model, "whole", images, ASKED, None, seen=seen_whole(model, images[:1]), which=[0, 0, 0])
    with pytest.raises(ModelError, match="and their seen"):
        read_with(model, "whole", images, ASKED, None, seen=seen_whole(model, images[:2]))
    assert COUNTS == (64, 100, 160, 256, 400)
