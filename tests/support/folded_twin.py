"""A layer folded with its batch norm, in float64 NumPy, from the formulas: the slow twin of folded.py.

Inputs are quantized per tensor to 8 bits by their largest value. A convolution (stride 1, no padding) is a
matrix product of its patches.
"""

from __future__ import annotations

import numpy as np
from paddle import nn


class Twin:
    def __init__(self, layer: nn.Layer, norm: nn.Layer) -> None:
        def read(tensor):
            return None if tensor is None else tensor.numpy().astype(np.float64)

        self.is_conv = isinstance(layer, nn.Conv2D)
        self.kernel = read(layer.weight)
        # [what is summed over, outputs]
        self.weight = self.kernel.reshape(len(self.kernel), -1).T if self.is_conv else self.kernel
        self.bias = 0.0 if layer.bias is None else read(layer.bias)
        self.gamma, self.beta = read(norm.weight), read(norm.bias)
        self.mean, self.variance = read(norm._mean), read(norm._variance)
        self.epsilon, self.momentum = norm._epsilon, norm._momentum
        self.uses_running = bool(norm._use_global_stats)
        self.step: np.ndarray | None = None  # of LSQ, per output, on int4; else int4-narrow by the largest

    def forward(self, x: np.ndarray) -> np.ndarray:
        rows = self._rows(x.astype(np.float64))
        scale = np.abs(rows).max() / 127
        self.rows = np.clip(np.rint(rows / scale), -128, 127) * scale
        self.gain = self.gamma / np.sqrt(self.variance + self.epsilon)
        folded = self.weight * self.gain
        if self.step is None:
            low, high, step = -7, 7, np.abs(folded).max() / 7
        else:
            low, high, step = -8, 7, self.step.reshape(1, -1)
        self.v = folded / step
        self.q = np.rint(np.clip(self.v, low, high))
        self.inside = (self.v > low) & (self.v < high) | (self.step is None)
        self.used = self.q * step / self.gain
        y = self.rows @ self.used + self.bias
        mean, variance = y.mean(0), y.var(0)
        if self.uses_running:
            mean, variance = self.mean, self.variance
        self.inverse = 1 / np.sqrt(variance + self.epsilon)
        self.normal = (y - mean) * self.inverse
        self.mean = self.momentum * self.mean + (1 - self.momentum) * mean
        self.variance = self.momentum * self.variance + (1 - self.momentum) * variance
        return self._images(self.normal * self.gamma + self.beta)

    def backward(self, dy: np.ndarray) -> dict[str, np.ndarray]:
        dy = self._flat(dy.astype(np.float64))
        found = {"gamma": (dy * self.normal).sum(0), "beta": dy.sum(0)}
        dz = dy * self.gamma * self.inverse
        if not self.uses_running:
            # The batch's mean and variance depend on every row.
            dz = dz - dz.mean(0) - self.normal * (dz * self.normal).mean(0)
        found["bias"] = dz.sum(0)
        d_used = self.rows.T @ dz
        d_folded = d_used / self.gain
        d_weight = d_folded * self.inside * self.gain
        found["weight"] = d_weight.T.reshape(self.kernel.shape) if self.is_conv else d_weight
        if self.step is not None:
            pace = 1 / np.sqrt(len(self.weight) * 7)
            d_step = (d_folded * np.where(self.inside, self.q - self.v, self.q)).sum(0) * pace
            found["step"] = d_step.reshape(self.step.shape)
        found["x"] = self._to_input(dz @ self.used.T)
        return found

    def _rows(self, x: np.ndarray) -> np.ndarray:
        self.shape = x.shape
        if not self.is_conv:
            return x
        size = self.kernel.shape[-1]
        patches = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3))
        self.images = patches.shape[0], patches.shape[2], patches.shape[3]
        return patches.transpose(0, 2, 3, 1, 4, 5).reshape(-1, self.kernel[0].size)

    def _images(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(*self.images, -1).transpose(0, 3, 1, 2) if self.is_conv else rows

    def _flat(self, images: np.ndarray) -> np.ndarray:
        return images.transpose(0, 2, 3, 1).reshape(-1, images.shape[1]) if self.is_conv else images

    def _to_input(self, d_rows: np.ndarray) -> np.ndarray:
        if not self.is_conv:
            return d_rows
        n, h, w = self.images
        channels, size = self.kernel.shape[1], self.kernel.shape[-1]
        patches = d_rows.reshape(n, h, w, channels, size, size)
        dx = np.zeros(self.shape)
        for i in range(size):
            for j in range(size):
                dx[:, :, i : i + h, j : j + w] += patches[..., i, j].transpose(0, 3, 1, 2)
        return dx
