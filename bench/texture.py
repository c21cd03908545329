"""What CUDA's texture units buy: filling once, then looks at dyadic, upright, turned and stretched cells.

    python -m bench.texture        on a CUDA device with nvcc, 64 images of 1024 x 1024, N = 273

Beside each: the same cells by Triton, or in plain torch where Triton has no kernel.
"""

import torch
from rich.table import Table

from bench.kernels import LEAF, OUT, Case, by_triton, make_case
from bench.timing import announce, cold_ms
from homunculus.kernels import plain, texture

FEW = 8  # plain torch takes its time with turned cells: this many images, scaled


def look_ms(pyramid: texture.TexturePyramid, boxes: torch.Tensor, turn: torch.Tensor | None, **how: object) -> str:
    return f"{cold_ms(lambda: pyramid.sample(boxes, turn, dtype=OUT, **how), graph=False):.4f}"


def whole_ms(case: Case, boxes: torch.Tensor, turn: torch.Tensor, kind: str) -> str:
    def run() -> torch.Tensor:
        return texture.sample_cells(case.images, boxes, turn, leaf=LEAF, kind=kind, dtype=OUT)

    return f"{cold_ms(run, graph=False):.4f}"


def plain_ms(case: Case, boxes: torch.Tensor, turn: torch.Tensor) -> str:
    def run() -> torch.Tensor:
        return plain.sample_cells(case.images[:FEW], boxes[:FEW], turn[:FEW], leaf=LEAF, kind="rotated", dtype=OUT)

    return f"{cold_ms(run, repeats=5) * len(case.images) / FEW:.1f} (torch)"


def main() -> None:
    if why := texture.missing(torch.device("cuda")):
        raise SystemExit(f"no textures here: {why}")
    console = announce("cuda", width=110)
    case, rings = make_case("tiling", 64, 1024), make_case("rings", 64, 1024)
    boxes, ring_boxes = case.allocation.boxes, rings.allocation.boxes
    upright, turn = torch.zeros_like(boxes[..., 0]), torch.rand_like(boxes[..., 0]) * 6
    thin = boxes.clone()  # a quarter as high
    thin[..., 3] = thin[..., 1] + (thin[..., 3] - thin[..., 1]) / 4

    def fill() -> None:
        texture.TexturePyramid(case.images).close()

    table = Table("cells", "reads a patch pixel", "one look, ms", "with filling, ms", "else, ms")
    table.add_row("(filling the array alone)", "", "", f"{cold_ms(fill, graph=False):.4f}", "")
    with texture.TexturePyramid(case.images) as pyramid:
        dyadic = look_ms(pyramid, boxes, None, dyadic=True)
        blocks = f"{cold_ms(lambda: by_triton(case)):.4f} (Triton)"
        table.add_row("dyadic", "1 texel", dyadic, whole_ms(case, boxes, upright, "dyadic"), blocks)
        reads = look_ms(pyramid, boxes, turn)
        in_torch = plain_ms(case, boxes, turn)
        table.add_row("turned", "4x4 bilinear", reads, whole_ms(case, boxes, turn, "rotated"), in_torch)
        table.add_row("turned, 4:1", "4x4 bilinear", look_ms(pyramid, thin, turn), "", plain_ms(case, thin, turn))
        table.add_row("turned", "1 trilinear", look_ms(pyramid, boxes, turn, reads=1, trilinear=True), "", "")
        table.add_row("turned, 4:1", "1 trilinear", look_ms(pyramid, thin, turn, reads=1, trilinear=True), "", "")
    with texture.TexturePyramid(rings.images) as pyramid:
        reads = look_ms(pyramid, ring_boxes, None)
        exact = f"{cold_ms(lambda: by_triton(rings)):.4f} (Triton, exact)"
        table.add_row("rings", "4x4 bilinear", reads, whole_ms(rings, ring_boxes, upright, "box"), exact)
        table.add_row("rings", "1 trilinear", look_ms(pyramid, ring_boxes, None, reads=1, trilinear=True), "", "")
    console.print(table)
    texture.release()


if __name__ == "__main__":
    main()
