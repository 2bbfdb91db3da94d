"""Into mixed precision and out of it again: `paddle.amp` on a GPU, the same numerics emulated on a CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import paddle

from lowbit.numerics.grid import Grid
from lowbit.training.autocast import rounding

# Under paddle.amp, convolutions that are not on its list take the widest type of their operands; a quantized
# layer's weight comes in fp32, so that they would not be computed in the narrow type at all.
_PRODUCTS = ("conv2d", "depthwise_conv2d", "conv2d_transpose", "depthwise_conv2d_transpose")


@dataclass(frozen=True)
class AmpContext:
    """A level, a grid, and where.

    >>> amp = AmpContext("O1", BF16, on_gpu=False)
    >>> with amp.inside():
    ...     with amp.outside():
    ...         y = paddle.to_tensor([[1.001]]) @ paddle.to_tensor([[1.0]])
    >>> y.item()
    1.0010000467300415
    """

    level: str
    grid: Grid
    on_gpu: bool

    def inside(self) -> AbstractContextManager[None]:
        """Products (O1) or nearly everything (O2) is computed on the grid."""
        if self.level == "O0":
            return nullcontext()
        if self.on_gpu:
            return paddle.amp.auto_cast(level=self.level, dtype=self.grid.storage)
        return rounding(self.grid, self.level)

    def product(self) -> AbstractContextManager[None]:
        """Around one product of a quantized layer, whatever the types of its operands."""
        if self.on_gpu and self.level != "O0":
            return paddle.amp.auto_cast(
                level=self.level, dtype=self.grid.storage, custom_white_list=_PRODUCTS
            )
        return self.inside()

    def outside(self) -> AbstractContextManager[None]:
        """fp32, although mixed precision is on around it."""
        return paddle.amp.auto_cast(enable=False) if self.on_gpu else rounding(self.grid, "O0")
