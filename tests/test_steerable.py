"""The steerable pyramid: equal to plenoptic's, a tight frame on any size, and each band answers to its own strokes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homunculus.pyramid import ImagePyramid
from homunculus.steerable import (
    STROKES,
    SteerablePyramid,
    collapse_steerable,
    orientation_energy,
    steerable_pyramid,
)


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def energy_of(pyramid: SteerablePyramid) -> torch.Tensor:
    """Of each image of the batch."""
    return sum(part.square().flatten(1).sum(1) for part in (pyramid.high, *pyramid.bands, pyramid.low))


# ---------------------------------------------------------------------------------------------------------- the oracle


@pytest.mark.parametrize("size", [(64, 64), (48, 80), (72, 44)])
@pytest.mark.parametrize("decimate", [True, False])
def test_coefficients_are_those_of_plenoptic(size, decimate):
    """Its tight frame has our scale. Its band j has gradients at j * 45 degrees, so strokes at j * 45 + 90; half a turn
    of an odd filter is its negative."""
    oracle = pytest.importorskip("plenoptic").process.SteerablePyramidFreq
    images = noise(2, *size)
    theirs = oracle(size, 2, 3, downsample=decimate, tight_frame=True).double()(images[:, None])
    ours = steerable_pyramid(images, 2, decimate)
    close = {"atol": 1e-5, "rtol": 0}  # their masks are interpolated in a table
    assert torch.allclose(ours.high, theirs["residual_highpass"][:, 0], **close)
    assert torch.allclose(ours.low, theirs["residual_lowpass"][:, 0], **close)
    for scale in range(2):
        for k in range(4):
            theirs_k = theirs[scale][:, 0, (k + 2) % 4] * (1 if k < 2 else -1)
            assert torch.allclose(ours.bands[scale][:, k], theirs_k, **close), (scale, k)


# --------------------------------------------------------------------------------------------------------- tight frame

sides = st.integers(1, 70)


@given(sides, sides, st.integers(0, 4), st.booleans(), st.sampled_from([torch.float32, torch.float64]))
def test_any_size_comes_back_with_its_energy(width, height, scales, decimate, dtype):
    images = noise(2, height, width, seed=width * 71 + height, dtype=dtype)
    pyramid = steerable_pyramid(images, scales, decimate)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert pyramid.low.dtype == dtype and len(pyramid.bands) == scales
    assert torch.allclose(collapse_steerable(pyramid), images, rtol=0, atol=tolerance)
    assert torch.allclose(energy_of(pyramid), images.square().sum((1, 2)), rtol=tolerance)


@given(sides, sides, st.integers(0, 3), st.booleans())
def test_synthesis_is_the_adjoint_of_analysis(width, height, scales, decimate):
    """<analysis of x, y> = <x, synthesis of y> for any coefficients y, not only for those of some image."""
    images = noise(1, height, width, seed=1)
    found = steerable_pyramid(images, scales, decimate)
    other = SteerablePyramid(
        torch.randn_like(found.high), tuple(map(torch.randn_like, found.bands)), torch.randn_like(found.low)
    )
    parts = zip((found.high, *found.bands, found.low), (other.high, *other.bands, other.low), strict=True)
    inner = sum((a * b).sum() for a, b in parts)
    assert torch.isclose(inner, (images * collapse_steerable(other)).sum(), rtol=1e-9, atol=1e-9)


def test_decimation_only_leaves_samples_out():
    images = noise(2, 48, 80)
    kept, all_samples = steerable_pyramid(images, 3), steerable_pyramid(images, 3, decimate=False)
    for scale, (few, many) in enumerate(zip(kept.bands, all_samples.bands, strict=True)):
        step = 2**scale
        assert torch.allclose(few, many[..., ::step, ::step] * step, atol=1e-12)
    assert torch.allclose(kept.low, all_samples.low[..., ::8, ::8] * 8, atol=1e-12)


def test_gradients():
    images = noise(1, 7, 10).requires_grad_()

    def flat(x):
        pyramid = steerable_pyramid(x, 2)
        return torch.cat([part.flatten() for part in (pyramid.high, *pyramid.bands, pyramid.low)])

    assert torch.autograd.gradcheck(flat, (images,))


# --------------------------------------------------------------------------------------------------------- orientation


@pytest.mark.parametrize("periods", [(0, 9), (9, 0), (7, 7), (7, -7), (3, 8), (8, 3), (-5, 6), (11, 2)])
def test_a_grating_is_shared_by_the_sixth_power_of_the_cosine(periods):
    """Strokes lie at right angles to the frequency (x, y)."""
    x, y = torch.arange(64.0).double(), torch.arange(64.0).double()[:, None]
    grating = torch.cos(2 * math.pi * (periods[0] * x + periods[1] * y) / 64)[None]
    stroke = math.atan2(periods[1], periods[0]) + math.pi / 2
    for band in steerable_pyramid(grating, 3).bands:
        energy = band.square().sum((0, 2, 3))
        if energy.sum() > 1e-6 * grating.square().sum():
            shares = [0.8 * math.cos(stroke - own) ** 6 for own in STROKES]
            assert torch.allclose(energy / energy.sum(), torch.tensor(shares).double(), atol=1e-9)


def strokes(kind: str, side: int = 128, period: int = 16) -> torch.Tensor:
    """Thin dark lines on white, `[1, 3, side, side]`."""
    x, y = torch.arange(side), torch.arange(side)[:, None]
    place = {"horizontal": y + 0 * x, "backslash": y - x, "vertical": x + 0 * y, "slash": x + y}[kind]
    return 1 - ((place % period) < 3).float().expand(1, 3, side, side)


@pytest.mark.parametrize(("band", "kind"), list(enumerate(["horizontal", "backslash", "vertical", "slash"])))
def test_each_band_answers_to_its_own_strokes(band, kind):
    energy = orientation_energy(ImagePyramid(strokes(kind), (8, 8)))
    by_band = energy[..., 2:-2, 2:-2].mean((0, 2, 3))  # the margin is a mirror: at the border a slash has a backslash
    assert by_band.argmax() == band and by_band[band] > 0.7 * by_band.sum()
    assert by_band[(band + 2) % 4] < 0.02 * by_band.sum()


# ------------------------------------------------------------------------------------------------------ energy by leaf


def test_leaves_add_up_to_the_bands():
    """Far from the borders the margin does nothing: the leaves hold the energy of the bands of the plain image."""
    window = torch.hann_window(64, periodic=False, dtype=torch.float64) ** 4
    grey = 0.5 + (noise(64, 64) - 0.5) * window * window[:, None]
    pyramid = ImagePyramid(grey.expand(1, 3, 64, 64), (16, 16), leaf=4)  # its base level is the image itself
    bands = steerable_pyramid(grey[None], 2).bands
    expected = sum(band.square().sum((2, 3)) for band in bands)
    assert torch.allclose(orientation_energy(pyramid).sum((2, 3)) * 16, expected, rtol=1e-2)


def test_energy_stays_where_it_is():
    image = torch.full((1, 3, 256, 256), 0.5)
    image[..., 160:176, 48:64] = strokes("vertical", 16, 8)
    energy = orientation_energy(ImagePyramid(image, (16, 16)))[0].sum(0)
    assert int(energy.argmax()) == 10 * 16 + 3
    assert energy[9:12, 2:5].sum() > 0.95 * energy.sum()


def test_opposite_borders_do_not_meet():
    """White below, black above: one edge in the middle, none where the transform wraps around."""
    image = torch.zeros(1, 3, 256, 256)
    image[..., 128:, :] = 1.0
    energy = orientation_energy(ImagePyramid(image, (16, 16)))[0].sum((0, 2))
    assert energy[[0, 1, -2, -1]].max() < 0.005 * energy[7]


@settings(max_examples=settings.default.max_examples // 3)
@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from([1, 2, 3, 4, 16, 17, 28]), st.integers(0, 2**31))
def test_alone_and_in_a_batch_to_the_last_bit(gw, gh, leaf, seed):
    images = (noise(3, 3, 4 + seed % 50, 3 + seed % 41, seed=seed) * 255).to(torch.uint8)
    energy = orientation_energy(ImagePyramid(images, (gw, gh), leaf))
    assert energy.shape == (3, 4, gh, gw) and (energy >= 0).all() and energy.isfinite().all()
    for i in range(3):
        assert torch.equal(orientation_energy(ImagePyramid(images[i : i + 1], (gw, gh), leaf))[0], energy[i])


@pytest.mark.parametrize("value", [0.0, 0.1, 0.3, 1.0])
def test_a_flat_image_has_none(value):
    image = torch.full((1, 3, 70, 110), value)
    assert (orientation_energy(ImagePyramid(image, (7, 5))) == 0).all()


def test_equal_leaves_have_equal_energy():
    """What repeats exactly must tie exactly, or rounding in the transform would choose between equals."""
    tile = noise(3, 16, 16, dtype=torch.float32)
    image = torch.cat((tile, tile.flip(2)), 2).tile(1, 4, 4)[None]  # mirrored, as the margin continues it
    energy = orientation_energy(ImagePyramid(image, (8, 4)))[0]
    assert torch.equal(energy[2, :, 2:4], energy[2, :, 4:6])
