"""What a product of small integers is whole multiples of: a batch norm can keep those, in two bytes each.

The scale is an attribute of the product, which user code may change in place. So it is a proposal only: the
batch norm's kernel divides every value by it, and keeps multiples only if all of them give back the value.
"""

from __future__ import annotations

import paddle
from paddle import Tensor

from lowbit.layers.channels_last import ChannelsLast
from lowbit.layers.contraction import Contraction
from lowbit.layers.operand import Operand

_ATTRIBUTE = "lowbit_scale"
_SMALL = 15  # sums of larger operands' products do not stay within 16 bits


def attach_scale(y: Tensor, contraction: Contraction, x: Operand, weight: Operand) -> None:
    """Attach to Y, a product `forward` of images in NCHW, its scale; only with operands of up to 4 bits."""
    if not (_is_small(x) and _is_small(weight)) or len(y.shape) != 4 or isinstance(contraction, ChannelsLast):
        return
    scale = contraction.forward_scale(x.scale, weight.scale)
    if scale is not None:
        setattr(y, _ATTRIBUTE, scale)


def attached_scale(y: Tensor) -> Tensor | None:
    """The scale of every channel of every image, [images, channels], if there is one.

    Callers must verify it.
    """
    scale = getattr(y, _ATTRIBUTE, None)
    if scale is None or y.ndim != 4:
        return None
    each = y.shape[:2]
    if any(own not in (1, size) for own, size in zip(scale.shape[:2], each, strict=True)):
        return None  # Y was reshaped in place
    if scale.shape != [*each, 1, 1]:
        scale = paddle.expand(scale, [*each, 1, 1])
    return scale.reshape(each).contiguous()


def _is_small(operand: Operand) -> bool:
    return operand.is_integer and operand.lowest >= -_SMALL and operand.highest <= _SMALL
