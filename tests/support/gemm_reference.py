"""The integer products by their definition, in NumPy and int64: the slow reference of the kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowbit.kernels.gemm import Geometry


def taps(geometry: Geometry) -> Iterator[tuple[int, int, tuple[slice, slice]]]:
    """The kernel's rows and columns, with the pixels of the padded input that an output grid meets there."""
    height, width = geometry.output[2:]
    for row in range(geometry.kernel[0]):
        for column in range(geometry.kernel[1]):
            top, left = row * geometry.dilation[0], column * geometry.dilation[1]
            down = slice(top, top + (height - 1) * geometry.stride[0] + 1, geometry.stride[0])
            along = slice(left, left + (width - 1) * geometry.stride[1] + 1, geometry.stride[1])
            yield row, column, (down, along)


def forward_sums(geometry: Geometry, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Over the input channels of a group and over the taps."""
    batch, _, height, width = geometry.output
    top, bottom, left, right = geometry.padding
    padded = np.pad(x.astype(np.int64), [(0, 0), (0, 0), (top, bottom), (left, right)])
    padded = padded.reshape(batch, geometry.groups, -1, *padded.shape[2:])
    weight = w.astype(np.int64).reshape(geometry.groups, -1, *w.shape[1:])
    sums = np.zeros((batch, *weight.shape[:2], height, width), np.int64)
    for row, column, (down, along) in taps(geometry):
        sums += np.einsum("ngchw,goc->ngohw", padded[..., down, along], weight[..., row, column])
    return sums.reshape(geometry.output)


def grad_input_sums(geometry: Geometry, dy: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Over the output channels of a group and over the taps."""
    ones = np.ones((len(dy), 1, *dy.shape[2:]), np.int64)
    return added_taps(geometry, dy, w, ones)


def added_taps(geometry: Geometry, dy: np.ndarray, w: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The sums over the output channels times each pixel's scale, added tap by tap in the scale's type."""
    batch, channels, height, width = geometry.input
    top, bottom, left, right = geometry.padding
    gradient = dy.astype(np.int64).reshape(batch, geometry.groups, -1, *dy.shape[2:])
    weight = w.astype(np.int64).reshape(geometry.groups, -1, *w.shape[1:])
    total = np.zeros((batch, channels, top + height + bottom, left + width + right), scale.dtype)
    for row, column, (down, along) in taps(geometry):
        sums = np.einsum("ngohw,goc->ngchw", gradient, weight[..., row, column])
        total[..., down, along] += sums.reshape(batch, channels, *dy.shape[2:]).astype(scale.dtype) * scale
    return total[..., top : top + height, left : left + width]


def grad_weight_sums(geometry: Geometry, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Over the pixels: [batch, outputs, channels of a group, kernel rows, kernel columns]."""
    batch, channels = x.shape[:2]
    top, bottom, left, right = geometry.padding
    padded = np.pad(x.astype(np.int64), [(0, 0), (0, 0), (top, bottom), (left, right)])
    padded = padded.reshape(batch, geometry.groups, -1, *padded.shape[2:])
    gradient = dy.astype(np.int64).reshape(batch, geometry.groups, -1, *dy.shape[2:])
    shape = (batch, geometry.outputs, channels // geometry.groups)
    sums = np.zeros((*shape, *geometry.kernel), np.int64)
    for row, column, (down, along) in taps(geometry):
        met = np.einsum("ngohw,ngchw->ngoc", gradient, padded[..., down, along])
        sums[..., row, column] = met.reshape(shape)
    return sums


def added_samples(sums: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The sums of each sample times its scale, added in fp32, sample after sample."""
    terms = sums.astype(np.float32) * scale
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
