"""Texture sampling on a GPU: the reference within the bound, streams and memory respected."""

import gc
import threading

import pytest
import torch
from torch import Tensor

import homunculus
from homunculus.errors import KernelError
from homunculus.kernels import texture
from homunculus.kernels.reference import sample_boxes
from homunculus.kernels.texture import TexturePyramid, release, sample_cells, sample_texture
from homunculus.kernels.texture_arrays import MAX_SIDE, POOL, ArrayShape, MipArray, Reading
from homunculus.kernels.texture_bound import texture_error_bound
from homunculus.kernels.texture_build import load
from homunculus.sampling import sample

from ..devices import no_sync
from .texture_cases import DTYPES, READINGS, SIZES, any_boxes, assert_within_bound, blocks, expected, noise, precisions

pytestmark = pytest.mark.gpu
KIND = {"leaf": 4, "kind": "rotated"}


def cells_on_gpu(batch: int, count: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    boxes, angle = any_boxes(batch, count, height, width)
    return boxes.cuda(), angle.cuda()


# ------------------------------------------------------------------------------------------------ against the reference


@pytest.mark.parametrize("size", [*SIZES, (600, 450)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_box_is_the_reference_within_the_bound(size, dtype):
    boxes, angle = cells_on_gpu(3, 40, *size)
    for precision in precisions(dtype):
        for contrast in (1.0, 0.04):
            images = noise(dtype, 3, 3, *size, contrast=contrast).cuda()
            for reads, filter in READINGS:
                how = {"leaf": 5, "reads": reads, "trilinear": filter == "trilinear", "precision": precision}
                found = sample_cells(images, boxes, angle, kind="rotated", **how)
                assert_within_bound(found, images, boxes, angle, Reading(5, reads, filter), precision)


@pytest.mark.parametrize("size", [(64, 64), (61, 67), (320, 256), (1100, 700)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("leaf", [5, 16, 28])
def test_dyadic_cells(size, dtype, leaf):
    images, boxes = noise(dtype, 2, 3, *size).cuda(), blocks(2, *size, leaf).cuda()
    reading = Reading(leaf, 1, "point")
    leaves = boxes[0, :, 2] - boxes[0, :, 0] == leaf
    for precision in precisions(dtype):
        how = {"leaf": leaf, "kind": "dyadic", "precision": precision}
        found = sample_cells(images, boxes, torch.zeros_like(boxes[..., 0]), **how)
        assert_within_bound(found, images, boxes, None, reading, precision)
        if dtype in (torch.uint8, torch.float16):
            # Torch divides by 255 on a CPU; on a GPU it multiplies by 1/255, which is off by the last bit.
            exact = expected(images.cpu(), boxes.cpu(), None, reading).float()
            assert torch.equal(found[:, leaves].cpu(), exact[:, leaves.cpu()])


def test_boxes_are_rotated_by_nothing():
    """As documented: the quadrature, and not the area average, whatever angle is given."""
    images = noise(torch.float32, 1, 3, 200, 300, contrast=0.2).cuda()
    boxes, angle = cells_on_gpu(1, 30, 200, 300)
    found = sample_cells(images, boxes, angle, leaf=8, kind="box")
    assert_within_bound(found, images, boxes, None, Reading(8), "half")
    assert (found - sample_boxes(images, boxes, 8)).abs().max() > texture_error_bound("half", contrast=0.2)


@pytest.mark.parametrize("precision", ["byte", "half"])
def test_a_constant_stays_one(precision):
    """No weight, place or mip matters here: what is left is the filter's own arithmetic, which nobody documents."""
    codes = torch.arange(256, dtype=torch.uint8).reshape(256, 1, 1, 1).expand(256, 3, 40, 40).cuda()
    boxes, angle = cells_on_gpu(256, 4, 40, 40)
    for trilinear in (False, True):
        how = {"precision": precision, "trilinear": trilinear}
        found = sample_cells(codes, boxes, angle, **KIND, **how)
        wanted = torch.arange(256).cuda().reshape(256, 1, 1, 1, 1) / 255
        assert (found - wanted).abs().max() <= 2**-12


def test_places_far_out_in_a_wide_image():
    width = 16384
    images = noise(torch.float16, 1, 3, 4, width).cuda()
    x = width - torch.rand(1, 500, 1).cuda() * 6000 - 20
    boxes = torch.cat((x, x * 0 + 1, x + 8, x * 0 + 3), dim=-1)
    found = sample_cells(images, boxes, torch.zeros_like(x[..., 0]), **KIND)
    bound = texture_error_bound("half", longest=width, extent=10)
    assert (found - expected(images, boxes, None, Reading(4))).abs().max() <= bound < 0.011


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_patches_are_normalised_and_rounded_at_the_end(dtype):
    images = noise(torch.uint8, 2, 3, 61, 67).cuda()
    boxes, angle = cells_on_gpu(2, 20, 61, 67)
    colours = {"scale": (4.0, 2.0, 1.5), "shift": (-2.0, -1.0, 0.25)}
    found = sample_cells(images, boxes, angle, dtype=dtype, **KIND, **colours)
    assert found.dtype == dtype
    assert_within_bound(found, images, boxes, angle, Reading(4, 4, "bilinear", **colours), "byte")


def test_layouts():
    wide = noise(torch.uint8, 3, 5, 80, 180).cuda()
    boxes, angle = cells_on_gpu(2, 20, 40, 60)
    for images in (
        wide[:2, 1:4, 3:43, 5:65],
        wide[1:, :3, ::2, ::3],
        wide[:1, :3, :40, :60].expand(2, 3, 40, 60),
        wide[:2, :3, :40, :60].contiguous(memory_format=torch.channels_last),
        wide[:2, :3, :60, :40].transpose(2, 3),
    ):
        for kind in ("rotated", "box"):
            found = sample_cells(images, boxes, angle, leaf=4, kind=kind)
            assert torch.equal(found, sample_cells(images.contiguous(), boxes, angle, leaf=4, kind=kind))


def test_any_number_of_images_in_any_parts(monkeypatch):
    """Alone, together, in turns through a small array, packed: the same bits."""
    images = noise(torch.uint8, 7, 3, 61, 67).cuda()
    boxes, angle = cells_on_gpu(7, 9, 61, 67)
    together = sample_cells(images, boxes, angle, **KIND)
    alone = [sample_cells(images[i : i + 1], boxes[i : i + 1], angle[i : i + 1], **KIND) for i in range(7)]
    assert torch.equal(together, torch.cat(alone))
    counts = [9, 0, 4, 1, 9, 0, 7]
    packed = [torch.cat([cells[i, :n] for i, n in enumerate(counts)]) for cells in (boxes, angle)]
    offsets = torch.tensor([0, *counts]).cuda().cumsum(0).int()
    for limit in (texture.CHUNK_BYTES, 50_000, 1):
        monkeypatch.setattr(texture, "CHUNK_BYTES", limit)
        assert torch.equal(sample_cells(images, boxes, angle, **KIND), together)
        found = sample_cells(images, *packed, offsets=offsets, **KIND)
        assert torch.equal(found, torch.cat([together[i, :n] for i, n in enumerate(counts)]))
    assert sample_cells(images, boxes[:, :0], angle[:, :0], **KIND).shape == (7, 0, 3, 4, 4)


def test_random_images_and_boxes():
    draw = torch.Generator().manual_seed(1)

    def one_of(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=draw))

    for _ in range(150):
        height, width, leaf, reads = one_of(1, 200), one_of(1, 200), one_of(1, 20), one_of(1, 5)
        filter = ("bilinear", "trilinear")[one_of(0, 1)]
        images = noise(DTYPES[one_of(0, 3)], one_of(1, 3), 3, height, width).cuda()
        boxes, angle = cells_on_gpu(len(images), one_of(1, 20), height, width)
        found = sample_cells(
            images, boxes, angle, leaf=leaf, kind="rotated", reads=reads, trilinear=filter == "trilinear"
        )
        precision = precisions(images.dtype)[0]
        assert_within_bound(found, images, boxes, angle, Reading(leaf, reads, filter), precision)


# --------------------------------------------------------------------------------- pyramids, streams, memory, compilers


def test_a_pyramid_is_filled_once_and_sampled_often():
    images = noise(torch.uint8, 2, 3, 256, 320).cuda()
    dyadic = blocks(2, 256, 320, 16).cuda()
    with TexturePyramid(images, leaf=5) as pyramid:
        for _ in range(3):
            boxes, angle = cells_on_gpu(2, 20, 256, 320)
            for reads, filter in READINGS:
                found = pyramid.sample(boxes, angle, reads=reads, trilinear=filter == "trilinear")
                assert_within_bound(found, images, boxes, angle, Reading(5, reads, filter), "byte")
            assert_within_bound(pyramid.sample(boxes), images, boxes, None, Reading(5), "byte")
        found = pyramid.sample(dyadic, leaf=16, dyadic=True)
        assert_within_bound(found, images, dyadic, None, Reading(16, 1, "point"), "byte")
        with pytest.raises(KernelError, match=r"needs? mips to level .* TexturePyramid\(images, leaf=1\)"):
            pyramid.sample(boxes, angle, leaf=1, reads=1)
    with pytest.raises(KernelError, match="is closed"):
        pyramid.sample(boxes, angle)
    pyramid.close()


def test_what_is_queued_on_one_stream_is_safe_from_another():
    images = [noise(torch.uint8, 2, 3, 256, 256).cuda() for _ in range(2)]
    boxes, angle = cells_on_gpu(2, 50, 256, 256)
    wanted = []
    for own in images:
        with TexturePyramid(own) as pyramid:
            wanted.append(pyramid.sample(boxes, angle))
    release()
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    with torch.cuda.stream(streams[0]):
        torch.cuda._sleep(20_000_000)
        first = TexturePyramid(images[0])
    with torch.cuda.stream(streams[1]):
        assert torch.equal(first.sample(boxes, angle), wanted[0])  # filled on the other stream, later
    with torch.cuda.stream(streams[0]):
        torch.cuda._sleep(20_000_000)
        late = first.sample(boxes, angle)
    array = first._array
    first.close()
    with torch.cuda.stream(streams[1]):
        second = TexturePyramid(images[1])
        assert second._array is array  # whose patches of the first images are still to be read
        assert torch.equal(second.sample(boxes, angle), wanted[1])
    second.close()
    torch.cuda.synchronize()
    assert torch.equal(late, wanted[0])


def test_threads():
    images = [noise(torch.uint8, 2, 3, 200, 200).cuda() for _ in range(4)]
    boxes, angle = cells_on_gpu(2, 30, 200, 200)
    wanted = [sample_cells(own, boxes, angle, **KIND) for own in images]
    torch.cuda.synchronize()
    wrong = []

    def work(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            found = [sample_cells(images[i], boxes, angle, **KIND) for _ in range(30)]
            torch.cuda.current_stream().synchronize()
            wrong.extend(i for patches in found if not torch.equal(patches, wanted[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def free_memory() -> int:
    gc.collect()
    release()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def test_memory_is_kept_for_reuse_and_given_back():
    images = torch.zeros(8, 3, 1024, 1024, dtype=torch.uint8).cuda()
    boxes, angle = cells_on_gpu(8, 5, 1024, 1024)
    sample_cells(images, boxes, angle, **KIND)  # loads the kernels, which stay
    before = free_memory()
    slack = 8 << 20
    with TexturePyramid(images) as pyramid:
        size = pyramid._array.shape.bytes
        assert torch.cuda.mem_get_info()[0] <= before - size + slack
    assert POOL.bytes == size
    with TexturePyramid(images) as again:
        assert again._array is pyramid._array and POOL.bytes == 0
    forgotten = TexturePyramid(images)
    del forgotten
    gc.collect()
    assert POOL.bytes == size
    for side in range(900, 1000, 10):  # a new shape each time
        sample_cells(images[..., :side, :side], boxes, angle, **KIND)
    assert POOL.bytes <= POOL.limit
    assert free_memory() >= before - slack and POOL.bytes == 0


def test_the_pool_is_bounded(monkeypatch):
    release()
    images = torch.zeros(2, 3, 512, 512, dtype=torch.uint8).cuda()
    boxes, angle = cells_on_gpu(2, 5, 512, 512)
    monkeypatch.setattr(POOL, "limit", 8_000_000)
    for side in range(300, 512, 32):
        sample_cells(images[..., :side, :side], boxes, angle, **KIND)
        assert 0 < POOL.bytes <= POOL.limit
    release()


def test_no_room_and_no_such_size():
    library = load(torch.device("cuda", 0))
    with pytest.raises(KernelError, match="sample fewer or smaller images"):
        MipArray(ArrayShape(0, (MAX_SIDE, MAX_SIDE), 2048, 1, "half"), library)
    with pytest.raises(KernelError, match=r"CUDA error \d+"):
        MipArray(ArrayShape(torch.cuda.device_count(), (64, 64), 1, 1, "byte"), library)
    images = torch.zeros(1, 3, 1, 1, dtype=torch.uint8).cuda().expand(1, 3, 4, MAX_SIDE + 1)
    boxes, angle = cells_on_gpu(1, 2, 4, 4)
    with pytest.raises(KernelError, match="exceed a texture's"):
        sample_cells(images, boxes, angle, **KIND)
    torch.cuda.synchronize()  # none of this has left an error behind


def test_gradients_and_graphs_are_refused():
    images = noise(torch.float32, 1, 3, 64, 64).cuda()
    boxes, angle = cells_on_gpu(1, 5, 64, 64)
    with pytest.raises(KernelError, match="gradient"):
        sample_cells(images.clone().requires_grad_(), boxes, angle, **KIND)
    with torch.no_grad():
        sample_cells(images.clone().requires_grad_(), boxes, angle, **KIND)
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        images + 1  # a graph of nothing warns
        with pytest.raises(KernelError, match="cannot be part of a CUDA graph"):
            sample_cells(images, boxes, angle, **KIND)
        with pytest.raises(KernelError, match="cannot be part of a CUDA graph"):
            TexturePyramid(images)


def test_nothing_waits_for_the_device():
    images = noise(torch.uint8, 2, 3, 256, 256).cuda()
    boxes, angle = cells_on_gpu(2, 5, 256, 256)
    wanted = sample_cells(images, boxes, angle, **KIND)
    with no_sync():
        found = sample_cells(images, boxes, angle, **KIND)
    assert torch.equal(found, wanted)


@pytest.mark.filterwarnings("ignore")
def test_under_torch_compile():
    images = noise(torch.uint8, 2, 3, 64, 64).cuda()
    boxes, angle = cells_on_gpu(2, 5, 64, 64)

    def patches(images: Tensor, boxes: Tensor, angle: Tensor) -> Tensor:
        return sample_cells(images, boxes * 1.0, angle, dtype=torch.bfloat16, **KIND) + 1

    compiled = torch.compile(patches, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(images, boxes, angle), patches(images, boxes, angle))
    how = (4, 4, "bilinear", [1.0] * 3, [0.0] * 3, torch.float32, "byte")
    torch.library.opcheck(sample_texture, (images, boxes, angle, None, *how))


def test_the_dispatcher_takes_textures_where_they_are_named(monkeypatch):
    images = noise(torch.uint8, 2, 3, 512, 512).cuda()
    allocation = homunculus.allocate(torch.rand(2, 32, 32).cuda(), 64)
    wanted = sample(images, allocation)
    monkeypatch.setenv("HOMUNCULUS_KERNELS", "texture")
    assert (sample(images, allocation) - wanted).abs().max() <= texture_error_bound("byte", dyadic=True)
