"""Mixup, CutMix and FMix: the images of a batch, and with them their labels, become mixtures of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lowbit.config import batch_ops as specs
from lowbit.config.batch_ops import BatchOp

# Mixes float32 NCHW images in place. Returns for each image the index of the one it was mixed with and how
# much of it is still its own; None where a batch stays as it is.
Mixer = Callable[[np.ndarray, np.random.Generator], tuple[np.ndarray, float] | None]


def build_mixer(ops: Sequence[BatchOp]) -> Mixer | None:
    """The function that mixes a batch as a config says; None where it lists nothing.

    >>> mixer = build_mixer([specs.MixupOperator(alpha=0.2)])
    >>> partners, share = mixer(np.zeros((4, 3, 8, 8), np.float32), np.random.default_rng(0))
    >>> len(partners), 0 <= share <= 1
    (4, True)
    """
    return _MIXERS[type(ops[0])](ops[0]) if ops else None


def _mixup(op: specs.MixupOperator) -> Mixer:
    def mix(images: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        partners, share = rng.permutation(len(images)), float(rng.beta(op.alpha, op.alpha))
        others = images[partners]
        images *= np.float32(share)
        others *= np.float32(1 - share)
        images += others
        return partners, share

    return mix


def _cutmix(op: specs.CutmixOperator) -> Mixer:
    def mix(images: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        partners, share = rng.permutation(len(images)), float(rng.beta(op.alpha, op.alpha))
        height, width = images.shape[2:]
        part = np.sqrt(1 - share)  # of each side
        (top, bottom), (left, right) = (_stretch(side, part, rng) for side in (height, width))
        box = images[partners, :, top:bottom, left:right]  # a copy
        images[:, :, top:bottom, left:right] = box
        # What was cut off at the border belongs to the image itself.
        return partners, 1 - (bottom - top) * (right - left) / (height * width)

    return mix


def _stretch(side: int, part: float, rng: np.random.Generator) -> tuple[int, int]:
    center, half = int(rng.integers(side)), int(side * part) // 2
    return max(center - half, 0), min(center + half, side)


def _fmix(op: specs.FmixOperator) -> Mixer:
    def mix(images: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        partners, share = rng.permutation(len(images)), float(rng.beta(op.alpha, op.alpha))
        height, width = images.shape[2:]
        noise = _low_frequency_noise(height, width, op.decay_power, rng)
        own = round(share * noise.size)
        mask = np.zeros(noise.size, bool)
        mask[np.argsort(noise, axis=None, kind="stable")[noise.size - own :]] = True
        np.copyto(images, images[partners], where=~mask.reshape(height, width))
        return partners, own / noise.size

    return mix


def _low_frequency_noise(height: int, width: int, decay: float, rng: np.random.Generator) -> np.ndarray:
    """Noise whose amplitudes fall with the frequency to the power of `decay`."""
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    frequency = np.maximum(np.hypot(rows, columns), 1 / max(height, width))
    spectrum = rng.standard_normal((2, *frequency.shape)) / frequency**decay
    return np.fft.irfft2(spectrum[0] + 1j * spectrum[1], (height, width))


def _sampler(op: specs.OpSampler) -> Mixer:
    return _one_of([(_MIXERS[type(each)](each), probability) for each, probability in op.ops])


def _one_of(mixers: Sequence[tuple[Mixer, float]]) -> Mixer:
    def mix(images: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float] | None:
        left = rng.random()
        for mixer, probability in mixers:
            if left < probability:
                return mixer(images, rng)
            left -= probability
        return None

    return mix


def _hybrid(op: specs.MixupCutmixHybrid) -> Mixer:
    cutmix = op.switch_prob if op.mixup_alpha and op.cutmix_alpha else float(not op.mixup_alpha)
    mixers = []
    if cutmix:
        mixers.append((_cutmix(specs.CutmixOperator(alpha=op.cutmix_alpha)), op.prob * cutmix))
    if cutmix < 1:
        mixers.append((_mixup(specs.MixupOperator(alpha=op.mixup_alpha)), op.prob * (1 - cutmix)))
    return _one_of(mixers)


_MIXERS: dict[type[BatchOp], Callable[..., Mixer]] = {
    specs.MixupOperator: _mixup,
    specs.CutmixOperator: _cutmix,
    specs.FmixOperator: _fmix,
    specs.OpSampler: _sampler,
    specs.MixupCutmixHybrid: _hybrid,
}
