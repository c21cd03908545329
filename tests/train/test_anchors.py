"""Where the words of a question stand, and a scorer that is taught to find them."""

import numpy as np
import pytest
import torch

from homunculus.data.degrade import MAX_SINE, Wear, turn_boxes, wear_page
from homunculus.data.dice import Dice
from homunculus.data.documents import compose
from homunculus.data.documents.letter import ARRANGEMENTS
from homunculus.model.config import tiny
from homunculus.model.scorer import Scorer
from homunculus.model.vlm import CompactVLM
from homunculus.train.anchors import ANCHORS, OFTEN, ORDINARY, anchors, places_of_words, words_in
from homunculus.train.augment import augmented, chances, drawn_warp, moved_boxes
from homunculus.train.densities import true_density
from homunculus.train.drills import make
from homunculus.train.marks import letter_marks
from homunculus.train.pool import Pool
from homunculus.train.renderers import READING
from homunculus.train.score import Scoring, names_loss, on_leaves


@pytest.fixture(scope="module")
def pool() -> Pool:
    found = Pool({"drills": 1.0, "documents": 1.0}, size=(512, 512), capacity=3, renewed=0, readings=8)
    found.fill()
    return found


# ------------------------------------------------------------------------------------------------------------ on a page


@pytest.mark.parametrize("family", ["documents", "drills"])
def test_words_stand_where_their_letters_do(family):
    """The letters between the sides of a word's box are those of the word, and no others of its line."""
    checked = 0
    for index in range(4):
        texts = make(family, "train", index, size=(768, 768), clean=True).meta["texts"]
        places = places_of_words(texts)
        for text in (text for text in texts if text["letters"]):
            x0, _, x1, _ = text["box"]
            centres = [x0 + (x1 - x0) * along for along in text["letters"]]
            for word, begin, end in words_in(text["text"]):
                own = [box for box in places[word] if box[1] == text["box"][1] and x0 <= box[0] <= box[2] <= x1]
                inside = [
                    [i for i, at in enumerate(centres) if left - 0.5 <= at <= right + 0.5] for left, _, right, _ in own
                ]
                assert list(range(begin, end)) in inside, (text["text"], word)
                checked += 1
    assert checked > 200


@pytest.mark.parametrize("sine", [MAX_SINE, -MAX_SINE])
def test_on_a_turned_page_letters_and_words_lie_on_their_ink(sine):
    """A word's box, turned back, is that of the word on the straight page; letters go with it."""
    page = compose(ARRANGEMENTS[0], Dice("a letter"), "train", (1024, 1024))
    straight = [{"text": text, "box": box, "letters": page.letters.get((text, box), [])} for text, box in page.written]
    _, moved = wear_page(page.image, [], Wear(sine=sine), Dice("any"), [box for _, box in page.written])
    turned = [known | {"box": box} for known, box in zip(straight, moved, strict=True)]
    before, after = places_of_words(straight), places_of_words(turned, sine)
    far = {"across": [], "down": [], "high": []}
    for word, boxes in before.items():
        for box, found in zip(boxes, after[word], strict=True):
            wanted = turn_boxes([box], (1024, 1024), sine)[0]
            far["across"].append(abs((found[0] + found[2]) - (wanted[0] + wanted[2])) / 2)
            far["down"].append(abs((found[1] + found[3]) - (wanted[1] + wanted[3])) / 2)
            far["high"].append(abs((found[3] - found[1]) - (wanted[3] - wanted[1])))
    assert len(far["down"]) > 100 and max(far["across"]) < 3 and max(far["down"]) < 2 and max(far["high"]) < 4
    long = max(turned, key=lambda known: len(known["letters"]))
    (x0, y0, x1, y1), marks = long["box"], letter_marks(long["text"], long["box"], long["letters"], sine)
    assert abs(marks[-1][1] - marks[0][1]) == pytest.approx((x1 - x0) * abs(sine), abs=2) and y1 - y0 > 30
    assert (marks[-1][1] > marks[0][1]) == (sine > 0)


def test_lines_of_paragraphs_know_where_their_letters_are():
    """Under the middle of a letter of set text there is ink; in the middle of a wide gap there is none."""
    page = compose(ARRANGEMENTS[0], Dice("a letter"), "train", (1024, 1024))
    paper, seen = np.asarray(page.image.convert("L")).astype(int), {"ink": [], "gap": []}
    light = int(np.median(paper))
    for (text, box), along in ((known, page.letters[known]) for known in page.written if len(known[0]) > 60):
        x0, y0, x1, y1 = box
        for letter, at in zip(text, along, strict=True):
            x = round(x0 + (x1 - x0) * at)
            dark = (np.abs(paper[y0:y1, x - 2 : x + 3] - light) > 60).any()
            if letter.isalnum():
                seen["ink"].append(dark)
            elif letter == " ":
                seen["gap"].append((np.abs(paper[y0:y1, x] - light) > 60).any())
    assert len(seen["ink"]) > 300 and np.mean(seen["ink"]) > 0.98
    assert len(seen["gap"]) > 40 and np.mean(seen["gap"]) < 0.1


def test_words_that_point_nowhere_are_left_out():
    box = (0, 0, 9, 9)
    places = {"net": [box] * (OFTEN + 1), "sum": [box] * OFTEN, "what": [box], "paid": [(5, 5, 8, 8)]}
    assert anchors("What is the net sum?", places) == [box] * OFTEN
    assert anchors("What was PAID, paid?", places) == [(5, 5, 8, 8)]  # once, in whatever case
    assert anchors("What is it?", places) == [] and "what" in ORDINARY
    assert len(anchors("a1 b1 c1 d1 e1", {f"{letter}1": [box] * 3 for letter in "abcde"})) == ANCHORS


def test_a_text_of_unknown_letters_is_one_word_or_nothing():
    known = places_of_words([{"text": "GALAXY", "box": [1, 2, 3, 4]}, {"text": "two words", "box": [5, 6, 7, 8]}])
    assert known == {"galaxy": [(1, 2, 3, 4)]}


# ------------------------------------------------------------------------------------------------------------ in a pool


def test_a_pool_keeps_them_by_question(pool):
    found = 0
    for slot, asked in enumerate(pool.asked_of):
        family, index = pool.plan.record(slot)
        meta = make(family, "train", index, size=(512, 512)).meta
        places = places_of_words(meta["texts"], meta["sine"])
        for number, question in enumerate(asked):
            wanted = [] if question.kind == READING else anchors(question.text, places)
            kept = pool.rows.anchors[slot, number]
            assert kept[: len(wanted)].tolist() == [list(map(float, box)) for box in wanted]
            assert not kept[len(wanted) :].any()
            found += bool(wanted)
    assert found > 20
    samples = pool.draw(6, step=0)
    assert torch.equal(samples.anchors, pool.rows.anchors[samples.slot, samples.number])


def test_they_move_with_their_images(pool):
    samples = pool.draw(12, step=1, each=4)
    moved = augmented(samples, seed=3, step=1)
    boxes = samples.boxes.unflatten(0, (3, 4)).flatten(1, 2)
    warp = drawn_warp(chances(3, 3, 1, torch.device("cpu")), (512, 512), torch.zeros(3, dtype=torch.bool), boxes)
    wanted, _ = moved_boxes(samples.anchors.unflatten(0, (3, 4)).flatten(1, 2), warp, (512, 512))
    assert torch.equal(moved.anchors.flatten(), wanted.flatten()) and not torch.equal(moved.anchors, samples.anchors)


# ---------------------------------------------------------------------------------------------------------- in a scorer


def test_leaves_that_show_a_word_stand_out():
    """Of leaves that show a word of the question, one it does not have, and nothing: the first alone is above."""
    torch.manual_seed(0)
    scorer = Scorer(tiny()).requires_grad_(False)
    scorer.shown, scorer.asked = torch.nn.Identity(), torch.nn.Identity()
    words = 6 * torch.eye(16)[None, :3]
    features = torch.zeros(1, 2, 3, 16)
    features[0, 0, 1], features[0, 1, 2] = 6 * torch.eye(16)[1], 6 * torch.eye(16)[7]
    real = torch.tensor([True, True, False])[None, None, None]
    names = scorer.named(features, words, real)[0]
    assert names.argmax() == 1 and (names.flatten()[[0, 2, 3, 4, 5]] < 0).all()
    assert names.exp().mean().item() == pytest.approx(1, rel=1e-5)
    features[0, 0, 1] = 6 * torch.eye(16)[2]  # a padded word is nobody's
    assert torch.allclose(scorer.named(features, words, real), torch.zeros(1, 2, 3), atol=1e-6)


def test_the_loss_of_names_is_a_plain_loop():
    generator = torch.Generator().manual_seed(0)
    names = torch.randn(5, 3, 4, generator=generator)
    truth = torch.rand(5, 3, 4, generator=generator) * (torch.rand(5, 3, 4, generator=generator) < 0.4)
    truth[2] = 0
    loss, named = names_loss(names, truth)
    losses, hits = [], []
    for one, where in zip(names.double(), truth.double(), strict=True):
        if where.sum() > 0:
            density = one.exp() / one.exp().sum()
            losses.append(-(where / where.sum() * density.log()).sum().item())
            hits.append(where.flatten()[one.argmax()].item() > 0)
    assert len(losses) == 4
    assert loss.item() == pytest.approx(np.mean(losses), rel=1e-5) and named.item() == pytest.approx(np.mean(hits))
    nothing, none = names_loss(names, torch.zeros(5, 3, 4))
    assert nothing.item() == 0 and none.item() == 0


def test_a_scorer_learns_to_find_words(pool):
    """On one batch the loss falls by a third of what a uniform density costs; with no weight nothing asks for it."""
    torch.manual_seed(0)
    scoring = Scoring(CompactVLM(tiny()), [pool], images=2, each=4, letters=0.0)
    samples = pool.draw(8, step=0, each=4)
    where = on_leaves(samples.anchors, samples, (32, 32))
    assert torch.equal(where, true_density(samples.anchors, (512, 512), (32, 32))) and where.any()
    scorer = scoring.model.scorer
    optimiser = torch.optim.Adam(scorer.parameters(), lr=3e-3)

    def naming() -> torch.Tensor:
        features = scorer.features(samples.images).repeat_interleave(4, dim=0)
        return names_loss(scorer.scores_and_names(features, samples.question)[1], where)[0]

    before = naming().item()
    for _ in range(60):
        optimiser.zero_grad()
        naming().backward()
        optimiser.step()
    assert naming().item() < before - np.log(32 * 32) / 3
    weighted, plain = (Scoring(scoring.model, [pool], images=2, each=4, letters=0.0, names=w) for w in (0.5, 0.0))
    (more, about), (less, without) = weighted(0), plain(0)
    assert more > less and "named" in about and "named" not in without
