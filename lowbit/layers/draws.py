"""Which random numbers a layer's stochastic roundings draw: by run, step, layer, operand and place."""

from __future__ import annotations

import paddle
import paddle.distributed as dist
from paddle import nn

from lowbit.numerics import Stochastic

_OPERANDS = ("forward.input", "forward.weight", "grad_input.grad_output", "grad_input.weight",
             "grad_weight.grad_output", "grad_weight.input")  # fmt: skip
_SAMPLES = 2


class Draws(nn.Layer):
    """Counts the steps of one layer; the count is a buffer, so that a resumed run draws what it would have.

    >>> draws = Draws(layer=3)
    >>> draws.next_step()
    >>> draws.rounding("forward.input", 0, size=10).step
    1
    """

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer, self.seed = layer, 0
        self.register_buffer("step", paddle.zeros([1], "int64"))

    def next_step(self) -> None:
        """To be called once in every forward pass of training."""
        paddle.increment(self._buffers["step"])

    def rounding(self, operand: str, sample: int, *, size: int) -> Stochastic:
        """The rounding of an operand of `size` values in this step; `sample` tells several of it apart."""
        return Stochastic(
            seed=self.seed,
            step=int(self._buffers["step"].item()),
            layer=(self.layer * len(_OPERANDS) + _OPERANDS.index(operand)) * _SAMPLES + sample,
            # A rank's part of a batch draws as that part of the whole would; the weight is the same on all.
            first=0 if operand.endswith(".weight") or not dist.is_initialized() else size * dist.get_rank(),
        )


def seed_draws(model: nn.Layer, seed: int) -> None:
    """Let all layers of a model draw by the seed of a run."""
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, Draws):
            layer.seed = seed
