"""AutoAugment's policies for ImageNet, CIFAR-10 and SVHN."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lowbit.config.transform_ops import AutoAugment
from lowbit.data import image_ops as ops
from lowbit.data.image_ops import Moves

_MOVES = Moves()


def apply(name: str, image: np.ndarray, magnitude: int, sign: int = 1) -> np.ndarray:
    """One operation at a magnitude of 0 to 9; `sign` matters to the geometric and the enhancing ones."""
    return _OPERATIONS[name](image, magnitude / 9, sign)


def _shift(level: float, sign: int, side: int) -> int:
    return round(150 / 331 * side * level) * sign  # the paper shifts by up to 150 pixels of 331


# Each at a level of 0 to 1.
_OPERATIONS: dict[str, Callable[[np.ndarray, float, int], np.ndarray]] = {
    "ShearX": lambda image, level, sign: _MOVES.shear_x(image, 0.3 * level * sign),
    "ShearY": lambda image, level, sign: _MOVES.shear_y(image, 0.3 * level * sign),
    "TranslateX": lambda image, level, sign: _MOVES.translate_x(image, _shift(level, sign, image.shape[1])),
    "TranslateY": lambda image, level, sign: _MOVES.translate_y(image, _shift(level, sign, image.shape[0])),
    "Rotate": lambda image, level, sign: _MOVES.rotate(image, 30 * level * sign),
    "Invert": lambda image, level, sign: ops.invert(image),
    "Solarize": lambda image, level, sign: ops.solarize(image, 256 * (1 - level)),
    "Posterize": lambda image, level, sign: ops.posterize(image, 8 - round(4 * level)),
    "Brightness": lambda image, level, sign: ops.brightness(image, 1 + 0.9 * level * sign),
    "Contrast": lambda image, level, sign: ops.contrast(image, 1 + 0.9 * level * sign),
    "Color": lambda image, level, sign: ops.color(image, 1 + 0.9 * level * sign),
    "Sharpness": lambda image, level, sign: ops.sharpness(image, 1 + 0.9 * level * sign),
    "AutoContrast": lambda image, level, sign: ops.auto_contrast(image),
    "Equalize": lambda image, level, sign: ops.equalize(image),
}


# AutoAugment (Cubuk et al., 2019): the policies for ImageNet, CIFAR-10 and SVHN.
#
# A policy has 25 pairs of operations. Each image gets one random pair; each operation is applied with its
# probability, at its magnitude (0..9 on the operation's range), with a random sign where it has one.


def auto_augment(op: AutoAugment) -> Callable[[np.ndarray, np.random.Generator], np.ndarray]:
    """A function that applies a random pair of the policy to an RGB image."""
    policy = POLICIES[op.policy]

    def step(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        for name, probability, magnitude in policy[int(rng.integers(len(policy)))]:
            chance, sign = rng.random(
                2
            )  # drawn always, so that one operation's luck does not move the next one's
            if chance < probability:
                image = apply(name, image, magnitude, 1 if sign < 0.5 else -1)
        return image

    return step


Operation = tuple[str, float, int]  # name, probability, magnitude


def _parse(table: str) -> list[tuple[Operation, Operation]]:
    """Lines of `name probability magnitude | name probability magnitude`."""
    pairs = []
    for line in table.strip().splitlines():
        first, second = (
            (name, float(probability), int(magnitude))
            for name, probability, magnitude in (part.split() for part in line.split("|"))
        )
        pairs.append((first, second))
    return pairs


POLICIES: dict[str, list[tuple[Operation, Operation]]] = {
    "imagenet": _parse("""
        Posterize 0.4 8 | Rotate 0.6 9
        Solarize 0.6 5 | AutoContrast 0.6 5
        Equalize 0.8 8 | Equalize 0.6 3
        Posterize 0.6 7 | Posterize 0.6 6
        Equalize 0.4 7 | Solarize 0.2 4
        Equalize 0.4 4 | Rotate 0.8 8
        Solarize 0.6 3 | Equalize 0.6 7
        Posterize 0.8 5 | Equalize 1.0 2
        Rotate 0.2 3 | Solarize 0.6 8
        Equalize 0.6 8 | Posterize 0.4 6
        Rotate 0.8 8 | Color 0.4 0
        Rotate 0.4 9 | Equalize 0.6 2
        Equalize 0.0 7 | Equalize 0.8 8
        Invert 0.6 4 | Equalize 1.0 8
        Color 0.6 4 | Contrast 1.0 8
        Rotate 0.8 8 | Color 1.0 2
        Color 0.8 8 | Solarize 0.8 7
        Sharpness 0.4 7 | Invert 0.6 8
        ShearX 0.6 5 | Equalize 1.0 9
        Color 0.4 0 | Equalize 0.6 3
        Equalize 0.4 7 | Solarize 0.2 4
        Solarize 0.6 5 | AutoContrast 0.6 5
        Invert 0.6 4 | Equalize 1.0 8
        Color 0.6 4 | Contrast 1.0 8
        Equalize 0.8 8 | Equalize 0.6 3
    """),
    "cifar10": _parse("""
        Invert 0.1 7 | Contrast 0.2 6
        Rotate 0.7 2 | TranslateX 0.3 9
        Sharpness 0.8 1 | Sharpness 0.9 3
        ShearY 0.5 8 | TranslateY 0.7 9
        AutoContrast 0.5 8 | Equalize 0.9 2
        ShearY 0.2 7 | Posterize 0.3 7
        Color 0.4 3 | Brightness 0.6 7
        Sharpness 0.3 9 | Brightness 0.7 9
        Equalize 0.6 5 | Equalize 0.5 1
        Contrast 0.6 7 | Sharpness 0.6 5
        Color 0.7 7 | TranslateX 0.5 8
        Equalize 0.3 7 | AutoContrast 0.4 8
        TranslateY 0.4 3 | Sharpness 0.2 6
        Brightness 0.9 6 | Color 0.2 8
        Solarize 0.5 2 | Invert 0.0 3
        Equalize 0.2 0 | AutoContrast 0.6 0
        Equalize 0.2 8 | Equalize 0.6 4
        Color 0.9 9 | Equalize 0.6 6
        AutoContrast 0.8 4 | Solarize 0.2 8
        Brightness 0.1 3 | Color 0.7 0
        Solarize 0.4 5 | AutoContrast 0.9 3
        TranslateY 0.9 9 | TranslateY 0.7 9
        AutoContrast 0.9 2 | Solarize 0.8 3
        Equalize 0.8 8 | Invert 0.1 3
        TranslateY 0.7 9 | AutoContrast 0.9 1
    """),
    "svhn": _parse("""
        ShearX 0.9 4 | Invert 0.2 3
        ShearY 0.9 8 | Invert 0.7 5
        Equalize 0.6 5 | Solarize 0.6 6
        Invert 0.9 3 | Equalize 0.6 3
        Equalize 0.6 1 | Rotate 0.9 3
        ShearX 0.9 4 | AutoContrast 0.8 3
        ShearY 0.9 8 | Invert 0.4 5
        ShearY 0.9 5 | Solarize 0.2 6
        Invert 0.9 6 | AutoContrast 0.8 1
        Equalize 0.6 3 | Rotate 0.9 3
        ShearX 0.9 4 | Solarize 0.3 3
        ShearY 0.8 8 | Invert 0.7 4
        Equalize 0.9 5 | TranslateY 0.6 6
        Invert 0.9 4 | Equalize 0.6 7
        Contrast 0.3 3 | Rotate 0.8 4
        Invert 0.8 5 | TranslateY 0.0 2
        ShearY 0.7 6 | Solarize 0.4 8
        Invert 0.6 4 | Rotate 0.8 4
        ShearY 0.3 7 | TranslateX 0.9 3
        ShearX 0.1 6 | Invert 0.6 5
        Solarize 0.7 2 | TranslateY 0.6 7
        ShearY 0.8 4 | Invert 0.8 8
        ShearX 0.7 9 | TranslateY 0.8 3
        ShearY 0.8 5 | AutoContrast 0.7 3
        ShearX 0.7 2 | Invert 0.1 5
    """),
}
