"""The three products of a convolution or a Linear layer in NumPy: slow, and readable. In fp64."""

from __future__ import annotations

import itertools

import numpy as np


def forward(x, weight, stride, padding, dilation, groups):
    """Y[n, o, i, j] = the sum of X[n, c, i·s + h·d - p, j·s + w·d - p] · W[o, c, h, w]."""
    return _walk("y", stride, padding, dilation, groups, x=x, weight=weight)


def grad_input(dy, weight, shape, stride, padding, dilation, groups):
    """dX: every product of forward, back to where its X came from."""
    return _walk("x", stride, padding, dilation, groups, dy=dy, weight=weight, shape=shape)


def grad_weight(dy, x, shape, stride, padding, dilation, groups):
    """dW: every product of forward, back to where its W came from."""
    return _walk("weight", stride, padding, dilation, groups, dy=dy, x=x, shape=shape)


def _walk(wanted, stride, padding, dilation, groups, *, x=None, weight=None, dy=None, shape=None):
    x_shape = x.shape if x is not None else shape
    w_shape = weight.shape if weight is not None else shape
    outputs, per_group, *kernel = w_shape
    top, bottom, left, right = padding
    height = (x_shape[2] + top + bottom - dilation * (kernel[0] - 1) - 1) // stride + 1
    width = (x_shape[3] + left + right - dilation * (kernel[1] - 1) - 1) // stride + 1
    out = np.zeros({"y": (x_shape[0], outputs, height, width), "x": x_shape, "weight": w_shape}[wanted])
    for o, c, h, w, i, j in itertools.product(
        range(outputs), range(per_group), *map(range, kernel), range(height), range(width)
    ):
        channel = o // (outputs // groups) * per_group + c
        row, column = i * stride + h * dilation - top, j * stride + w * dilation - left
        if not (0 <= row < x_shape[2] and 0 <= column < x_shape[3]):
            continue
        if wanted == "y":
            out[:, o, i, j] += x[:, channel, row, column] * weight[o, c, h, w]
        elif wanted == "x":
            out[:, channel, row, column] += dy[:, o, i, j] * weight[o, c, h, w]
        else:
            out[o, c, h, w] += (dy[:, o, i, j] * x[:, channel, row, column]).sum()
    return out


def quantized(x, letters, layout, lowest, highest):
    """Values on the grid, with minmax's scale for every group that the letters tell apart."""
    axes = tuple(axis for axis, letter in enumerate(layout) if letter not in letters)
    scale = np.abs(x).max(axis=axes, keepdims=True) / np.float32(highest)
    scale = np.where(scale > 0, scale, np.float32(1))
    integers = np.clip(np.rint(x / scale), lowest, highest)
    return integers.astype(np.float64) * scale
