"""One small case of every kernel, for compute-sanitizer to watch:

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    compute-sanitizer --tool memcheck --error-exitcode 1 python -m tests.kernels.sanitize
    compute-sanitizer --tool racecheck --error-exitcode 1 python -m tests.kernels.sanitize

Without the caching allocator every tensor is an allocation of its own, so a read one past its end is seen.
"""

import torch

import homunculus
from homunculus.kernels import dispatch, plain, triton_ops
from homunculus.sampling import sample
from tests.kernels.oracle import anywhere, blocks, picture


def pool() -> None:
    for layout in ("planar", "channels_last", "slice"):
        for kind, boxes in (("dyadic", blocks(2, 4, 4, 16)), ("box", anywhere(2, 12, 64, 64))):
            images = picture(torch.uint8, 2, 64, 64, layout)
            cells = {"leaf": 16, "kind": kind}
            found = triton_ops.sample_cells(images, boxes, boxes[..., 0], **cells)
            assert torch.allclose(found, plain.sample_cells(images, boxes, boxes[..., 0], **cells), atol=1e-5)


def spread() -> None:
    images, boxes = picture(torch.float32, 2, 61, 67).requires_grad_(), anywhere(2, 9, 61, 67)
    triton_ops.sample_cells(images, boxes, boxes[..., 0], leaf=16, kind="box").sum().backward()
    assert images.grad.isfinite().all()


def cut() -> None:
    for grid in ((16, 16), (13, 7)):
        allocation = homunculus.allocate(torch.rand(2, grid[1], grid[0], device="cuda"), 40)
        images = picture(torch.uint8, 2, grid[1] * 16, grid[0] * 16)
        assert sample(images, allocation).isfinite().all()


def texture() -> None:
    from homunculus.kernels import texture

    for dtype in (torch.uint8, torch.float16):
        images, boxes = picture(dtype, 2, 61, 67), anywhere(2, 9, 61, 67)
        for kind in ("box", "rotated"):
            assert texture.sample_cells(images, boxes, boxes[..., 0], leaf=16, kind=kind).isfinite().all()
    texture.release()


def main() -> None:
    assert dispatch.use_triton(torch.device("cuda"))
    for case in (pool, spread, cut):
        case()
        print(case.__name__, flush=True)
    if missing := dispatch.texture_is_missing(torch.device("cuda")):
        print(f"without texture: {missing}")
    else:
        texture()
        print("texture")
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
