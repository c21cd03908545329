"""Similarity to an eye: SSIM as others compute it, and what an eye cannot see does not count."""

import math

import pytest
import torch
from skimage.metrics import structural_similarity

from homunculus.biology.field import eccentricity_map
from homunculus.biology.perception import LUMA, acuity_similarity, similarity
from homunculus.errors import FixationError, ImageError


@pytest.mark.parametrize("shape", [(64, 64), (37, 90), (11, 11)])
def test_similarity_is_that_of_scikit_image(shape):
    a = torch.rand(shape, dtype=torch.float64)
    b = (a + 0.2 * torch.randn(shape, dtype=torch.float64)).clamp(0, 1)
    _, theirs = structural_similarity(
        a.numpy(), b.numpy(), data_range=1.0, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, full=True
    )
    # Theirs mirrors at the border as well.
    assert torch.allclose(similarity(a, b), torch.from_numpy(theirs), atol=1e-9)


def test_fine_checks_are_seen_at_the_gaze_and_not_seven_degrees_away():
    """At 60 pixels for a degree a pixel is one minute, all that 20/20 tells apart; at 7 degrees it is 4 pixels."""
    checks = ((torch.arange(64)[:, None] + torch.arange(512)) % 2).float() * 0.4 + 0.3
    flat, noisy = torch.full((3, 64, 512), 0.5), torch.full((3, 64, 512), 0.5)
    noisy[:, 16:48, 448:480] = checks[16:48, 448:480]
    there, away = (
        acuity_similarity(flat, noisy, torch.tensor(gaze), 512 / 60, edges=(0, 0.2, 6.5, 8))
        for gaze in ([464.0, 32.0], [44.0, 32.0])
    )
    assert there.rings[0] < 0.3 and away.rings[2] > 0.999
    assert there.plain[0] < 0.1 and away.plain[2] < 0.9  # plain SSIM minds both
    assert there.whole < away.whole


def test_a_pixel_counts_what_the_eye_tells_apart_in_it():
    """Two halves, one spoilt: the weighted mean is that of 1 / MAR^2 summed over the other half."""
    image = torch.rand(3, 256, 256)
    spoilt = image.clone()
    spoilt[:, :, 128:] = 0.5
    gaze = torch.tensor([64.0, 128.0])
    near = acuity_similarity(image, spoilt, gaze, 40.0)
    far = acuity_similarity(image, spoilt, torch.tensor([192.0, 128.0]), 40.0)
    assert near.whole > far.whole + 0.1  # spoilt where it looks is worse than spoilt elsewhere
    assert near.rings[0] > 0.999 and far.rings[0] < 0.2


def test_rings_and_luma():
    image, other = torch.rand(3, 40, 60), torch.rand(3, 40, 60)
    found = acuity_similarity(image, other, torch.tensor([30.0, 20.0]), 6.0, edges=(0, 2, 3, 50, 60))
    x, y = eccentricity_map(torch.tensor([30.0, 20.0]), (60, 40), 6.0)
    e = torch.hypot(x, y)
    weights = torch.tensor(LUMA, dtype=torch.float64)[:, None, None]
    plain = similarity((image * weights).sum(0), (other * weights).sum(0))
    assert found.plain[0] == pytest.approx(plain[e < 2].mean().item())
    assert math.isnan(found.rings[-1]) and math.isnan(found.plain[-1])
    # At 10 pixels for a degree no angle is finer than a pixel: plain and acute are the same.
    assert found.rings[:3] == pytest.approx(found.plain[:3])


def test_one_line_says_what_is_wrong():
    page = torch.rand(3, 20, 30)
    with pytest.raises(ImageError, match="images of 30x20 and 20x30 pixels are not two versions of one"):
        acuity_similarity(page, page.mT, torch.tensor([5.0, 5.0]))
    with pytest.raises(FixationError, match="is outside the image"):
        acuity_similarity(page, page, torch.tensor([31.0, 5.0]))
    with pytest.raises(ImageError, match="field of view"):
        acuity_similarity(page, page, torch.tensor([3.0, 5.0]), -1.0)
