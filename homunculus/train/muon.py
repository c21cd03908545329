"""Muon: momentum whose every step is made orthogonal, for the matrices between the first layer and the last.

torch.optim.Muon does the same mathematics (a test compares them). Ours can skip a step on the device when a gradient is
not finite, as the fused AdamW can, and takes matrices of one shape through the iteration together: a handful of
launches for a whole network instead of twenty for each matrix. https://kellerjordan.github.io/posts/muon and, for the
scale of a step, https://arxiv.org/abs/2502.16982.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

QUINTIC = (3.4445, -4.7750, 2.0315)  # takes small singular values towards 1 as fast as a polynomial can


def orthogonal(matrices: Float[Tensor, "n rows columns"], steps: int = 5) -> Float[Tensor, "n rows columns"]:
    """Each matrix with its singular values taken near 1 (0.7 to 1.2), by Newton-Schulz, in bfloat16 on a GPU.

    >>> values = torch.linalg.svdvals(orthogonal(torch.randn(2, 8, 32)))
    >>> bool(((values > 0.6) & (values < 1.3)).all())
    True
    """
    a, b, c = QUINTIC
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x  # the products below are [rows, rows]: the smaller side
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, made orthogonal and scaled to the size of AdamW's steps, so that both take one rate.

    As with the fused AdamW, a step is skipped where the attribute `found_inf` (a tensor on the device) is 1.
    """

    found_inf: Tensor | None = None

    def __init__(
        self, parameters: Iterable[nn.Parameter], rate: float, decay: float = 0.0, momentum: float = 0.95
    ) -> None:
        super().__init__(parameters, {"lr": rate, "weight_decay": decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of all matrices that have a gradient."""
        for group in self.param_groups:
            alike = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike[matrix.shape, matrix.dtype, matrix.device].append(matrix)
            for matrices in alike.values():
                self._step(matrices, group["lr"], group["weight_decay"], group["momentum"])

    def _step(self, matrices: list[nn.Parameter], rate: float, decay: float, momentum: float) -> None:
        for matrix in matrices:
            if "momentum" not in self.state[matrix]:
                self.state[matrix]["momentum"] = torch.zeros_like(matrix)
        buffers = [self.state[matrix]["momentum"] for matrix in matrices]
        gradient = torch.stack([matrix.grad for matrix in matrices if matrix.grad is not None])  # [n, rows, columns]
        average = torch.stack(buffers)
        go = torch.ones((), device=gradient.device)
        if self.found_inf is not None:
            go = 1 - self.found_inf
            gradient = torch.where(go > 0, gradient, 0.0)  # 0 times NaN would be NaN
        average = average.lerp(gradient, (1 - momentum) * go)
        ahead = gradient.lerp(average, momentum)
        size = 0.2 * max(matrices[0].shape) ** 0.5  # the root mean square of AdamW's steps, about
        change = orthogonal(ahead) * (-rate * size * go)
        torch._foreach_copy_(buffers, list(average.unbind()))
        weights = [matrix.data for matrix in matrices]
        torch._foreach_mul_(weights, 1 - rate * decay * go)
        torch._foreach_add_(weights, list(change.unbind()))
