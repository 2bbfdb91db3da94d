"""What a product of small integers is whole multiples of: who must keep it can keep those, in two bytes."""

from __future__ import annotations

import paddle
from paddle import Tensor

from lowbit.layers.channels_last import ChannelsLast
from lowbit.layers.contraction import Contraction
from lowbit.layers.operand import Operand

_ATTRIBUTE = "lowbit_scale"
_SMALL = 15  # sums of larger operands' products do not stay within 16 bits


def note_scale(y: Tensor, contraction: Contraction, x: Operand, weight: Operand) -> None:
    """Remember with Y, a product `forward` of images in NCHW, its scale; only with operands of up to 4 bits.

    Whoever takes it must see that it is right: Y may be changed in place.
    """
    small = all(o.is_integer and max(-o.lowest, o.highest) <= _SMALL for o in (x, weight))
    images = y.ndim == 4 and not isinstance(contraction, ChannelsLast)
    scale = contraction.forward_scale(x.scale, weight.scale) if small and images else None
    if scale is not None:
        setattr(y, _ATTRIBUTE, scale)


def noted_scale(y: Tensor) -> Tensor | None:
    """The scale of every channel of every image, [images, channels], if there is one."""
    scale = getattr(y, _ATTRIBUTE, None)
    return (
        None
        if scale is None
        else paddle.expand(scale, [*y.shape[:2], 1, 1]).reshape(y.shape[:2]).contiguous()
    )
