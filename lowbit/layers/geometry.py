"""The geometry of a convolution, with its padding in numbers, from the layer and the shape of its input."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from paddle import nn

from lowbit.kernels.onednn import Geometry


def geometry_of(layer: nn.Conv2D, shape: Sequence[int]) -> Geometry | None:
    """Of an input with this shape in NCHW; None for shapes that do not fit together: Paddle's own operator
    has the error message for them.

    >>> geometry_of(nn.Conv2D(3, 8, 3, padding="SAME"), [1, 3, 5, 5]).output
    (1, 8, 5, 5)
    """
    if len(shape) != 4 or shape[1] != layer._in_channels:
        return None
    kernel, stride, dilation = layer.weight.shape[2:], layer._stride, layer._dilation
    if layer._padding_mode != "zeros":
        padding = (0, 0, 0, 0)  # done before
    elif isinstance(layer._padding, str):
        padding, dilation = _by_word(layer._padding.upper(), shape[2:], kernel, stride, dilation)
    else:
        padding = _sides(layer)
    return _geometry(
        input=tuple(shape),
        outputs=layer._out_channels,
        kernel=tuple(kernel),
        stride=tuple(stride),
        padding=padding,
        dilation=tuple(dilation),
        groups=layer._groups,
    )


@lru_cache(maxsize=4096)
def _geometry(**sizes: Any) -> Geometry | None:
    geometry = Geometry(**sizes)
    return geometry if min(geometry.input + geometry.output) > 0 and min(geometry.padding) >= 0 else None


def transposed_geometry(
    layer: nn.Conv2DTranspose, shape: Sequence[int], output_size: Sequence[int] | int | None
) -> Geometry | None:
    """The geometry of the convolution that makes the layer's input out of its output; None as above.

    >>> transposed_geometry(nn.Conv2DTranspose(8, 3, 2, stride=2), [1, 8, 4, 4], None).input
    (1, 3, 8, 8)
    """
    if len(shape) != 4 or shape[1] != layer._in_channels or isinstance(layer._padding, str):
        return None
    padding, kernel = _sides(layer), layer.weight.shape[2:]
    sizes = [
        (size - 1) * stride - before - after + dilation * (taps - 1) + 1
        for size, stride, before, after, dilation, taps in zip(
            shape[2:], layer._stride, padding[::2], padding[1::2], layer._dilation, kernel, strict=True
        )
    ]
    extra = layer.output_padding
    if output_size is not None:
        sizes = [output_size] * 2 if isinstance(output_size, int) else list(output_size)
    else:
        extra = [extra] * 2 if isinstance(extra, int) else extra
        sizes = [size + more for size, more in zip(sizes, extra, strict=True)]
    geometry = Geometry(
        input=(shape[0], layer._out_channels, *map(int, sizes)),
        outputs=layer._in_channels,
        kernel=tuple(kernel),
        stride=tuple(layer._stride),
        padding=padding,
        dilation=tuple(layer._dilation),
        groups=layer._groups,
    )
    fits = min(geometry.input) > 0 and min(padding) >= 0 and geometry.output == tuple(shape)
    return geometry if fits else None


def _by_word(
    word: str, size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, int, int, int], Sequence[int]]:
    if word == "VALID":
        return (0, 0, 0, 0), dilation
    sides: list[int] = []
    for length, taps, step in zip(size, kernel, stride, strict=True):
        total = max((-(-length // step) - 1) * step + taps - length, 0)
        sides += [total // 2, total - total // 2]
    return tuple(sides), (1, 1)  # with SAME, Paddle takes dilation for 1


def _sides(layer: nn.Conv2D | nn.Conv2DTranspose) -> tuple[int, int, int, int]:
    """Top, bottom, left, right, out of any way in which Paddle lets one write them."""
    padding = layer._padding
    if isinstance(padding, int):
        return (padding,) * 4
    if isinstance(padding[0], list | tuple):  # a pair for every axis, those of batch and channels being 0
        height = layer._data_format.index("H")
        return (*padding[height], *padding[height + 1])
    if len(padding) == 4:
        return tuple(padding)
    return (padding[0], padding[0], padding[1], padding[1])
