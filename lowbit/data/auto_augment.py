"""AutoAugment with its policies; RandAugment and AugMix in PaddleClas's and timm's variants."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from lowbit.config import transform_ops as specs
from lowbit.config.transform_ops import AutoAugment, parse_timm
from lowbit.data import image_ops as ops
from lowbit.data.image_ops import Moves

Step = Callable[[np.ndarray, np.random.Generator], np.ndarray]
_MOVES = Moves()
_SHIFT = 150 / 331  # of the image's side: the paper shifts by up to 150 pixels of 331


def apply(name: str, image: np.ndarray, magnitude: int, sign: int = 1) -> np.ndarray:
    """One operation at a magnitude of 0 to 9; `sign` matters to the geometric and the enhancing ones."""
    return _OPERATIONS[name](image, magnitude / 9, sign)


def _shift(level: float, sign: int, side: int) -> int:
    return round(_SHIFT * side * level) * sign


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


def auto_augment(op: AutoAugment) -> Step:
    """A function that applies a random pair of the policy to an RGB image."""
    policy = POLICIES[op.policy]

    def step(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        for name, probability, magnitude in policy[int(rng.integers(len(policy)))]:
            # Drawn always, so that one operation's luck does not move the next one's.
            chance, sign = rng.random(2)
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


# RandAugment in PaddleClas's variants, and timm's RandAugment and AugMix.

# An image at a level of 0 (nothing) to 1, with a sign of 1 or -1 where it has a direction.
_Leveled = Callable[[np.ndarray, float, int], np.ndarray]

_INTERPOLATIONS = {
    "nearest": cv2.INTER_NEAREST,
    "bilinear": cv2.INTER_LINEAR,
    "bicubic": cv2.INTER_CUBIC,
    "area": cv2.INTER_AREA,
    "lanczos": cv2.INTER_LANCZOS4,
}


def rand_augment(op: specs.RandAugment | specs.RandAugmentV2 | specs.RandAugmentV3) -> Step:
    """`num_layers` operations drawn with replacement, all at the level magnitude / 10."""
    table = _TABLES[type(op)](op)
    names, level = list(table), op.magnitude / 10

    def step(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        for _ in range(op.num_layers):
            # Also the sign that an operation may not need, so that one does not move the next one's luck.
            name, sign = names[int(rng.integers(len(names)))], 1 if rng.random() < 0.5 else -1
            image = (
                _cut_out(image, level, rng, op.fillcolor)
                if name == "Cutout"
                else table[name](image, level, sign)
            )
        return image

    return step


def _cut_out(image: np.ndarray, level: float, rng: np.random.Generator, fill: tuple[int, ...]) -> np.ndarray:
    """A square of up to 80 pixels around a random place."""
    reach, image = int(40 * level), image.copy()
    y, x = (int(rng.integers(side + 1)) for side in image.shape[:2])
    image[max(y - reach, 0) : y + reach, max(x - reach, 0) : x + reach] = fill[0]
    return image


def _moves_and_colours(moves: Moves, shift: Callable[[float, int], float]) -> dict[str, _Leveled]:
    """What the variants have in common; `shift` gives the pixels of a shift by level and side."""
    return {
        "ShearX": lambda image, level, sign: moves.shear_x(image, 0.3 * level * sign),
        "ShearY": lambda image, level, sign: moves.shear_y(image, 0.3 * level * sign),
        "TranslateX": lambda image, level, sign: moves.translate_x(
            image, shift(level, image.shape[1]) * sign
        ),
        "TranslateY": lambda image, level, sign: moves.translate_y(
            image, shift(level, image.shape[0]) * sign
        ),
        "Rotate": lambda image, level, sign: moves.rotate(image, 30 * level * sign),
        "Color": lambda image, level, sign: ops.color(image, 1 + 0.9 * level * sign),
        "Contrast": lambda image, level, sign: ops.contrast(image, 1 + 0.9 * level * sign),
        "Sharpness": lambda image, level, sign: ops.sharpness(image, 1 + 0.9 * level * sign),
        "Brightness": lambda image, level, sign: ops.brightness(image, 1 + 0.9 * level * sign),
        "AutoContrast": lambda image, level, sign: ops.auto_contrast(image),
        "Equalize": lambda image, level, sign: ops.equalize(image),
        "Invert": lambda image, level, sign: ops.invert(image),
    }


def _relative(level: float, side: int) -> float:
    return _SHIFT * level * side


def _first(op: specs.RandAugment) -> dict[str, _Leveled]:
    moves = Moves(op.fillcolor, cv2.INTER_CUBIC)
    return _moves_and_colours(moves, _relative) | {
        "Posterize": lambda image, level, sign: ops.posterize(image, int(4 * level)),
        "Solarize": lambda image, level, sign: ops.solarize(image, 256 * level),
    }


def _second(op: specs.RandAugmentV2) -> dict[str, _Leveled]:
    """Colours by factors of 0.1 to 1.9 without a sign, shifts in pixels."""
    moves = Moves(op.fillcolor, cv2.INTER_NEAREST)
    return _moves_and_colours(moves, lambda level, side: 100 * level) | {
        "Color": lambda image, level, sign: ops.color(image, 1.8 * level + 0.1),
        "Contrast": lambda image, level, sign: ops.contrast(image, 1.8 * level + 0.1),
        "Sharpness": lambda image, level, sign: ops.sharpness(image, 1.8 * level + 0.1),
        "Brightness": lambda image, level, sign: ops.brightness(image, 1.8 * level + 0.1),
        "Posterize": lambda image, level, sign: ops.posterize(image, int(4 * level)),
        "Solarize": lambda image, level, sign: ops.solarize(image, int(256 * level)),
        "SolarizeAdd": lambda image, level, sign: ops.solarize_add(image, 110 * level),
        "Cutout": lambda image, level, sign: image,  # drawn in `rand_augment`: it needs a place
    }


def _third(op: specs.RandAugmentV3) -> dict[str, _Leveled]:
    moves = Moves(op.fillcolor, _INTERPOLATIONS[op.interpolation])
    return _moves_and_colours(moves, _relative) | {
        "Posterize": lambda image, level, sign: ops.posterize(image, 8 - int(4 * level)),
        "Solarize": lambda image, level, sign: ops.solarize(image, 255 * (1 - level)),
    }


_TABLES: dict[type, Callable[..., dict[str, _Leveled]]] = {
    specs.RandAugment: _first,
    specs.RandAugmentV2: _second,
    specs.RandAugmentV3: _third,
}


# ----------------------------------------------------------------------------------------------------------
# timm's policies, as PaddleClas has them in TimmAutoAugment.


# How often each operation is drawn with `w0`.
_WEIGHTS = {
    "Rotate": 0.3,
    "ShearX": 0.2,
    "ShearY": 0.2,
    "TranslateX": 0.1,
    "TranslateY": 0.1,
    "Color": 0.025,
    "Sharpness": 0.025,
    "AutoContrast": 0.025,
    "Solarize": 0.005,
    "SolarizeAdd": 0.005,
    "Contrast": 0.005,
    "Brightness": 0.005,
    "Equalize": 0.005,
    "Posterize": 0.0,
    "Invert": 0.0,
}
_NOT_IN_AUGMIX = ("Invert", "SolarizeAdd")


def timm_augment(op: specs.TimmAutoAugment) -> Step:
    """RandAugment or AugMix as `config_str` says, for `prob` of the images."""
    if op.config_str is None:
        return lambda image, rng: image
    policy = parse_timm(op.config_str)
    augment = _AugMix(op, policy) if policy.kind == "augmix" else _TimmRandAugment(op, policy)

    def step(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return augment(image, rng) if op.prob == 1 or rng.random() < op.prob else image

    return step


class _Operations:
    """Operations at a noisy level, with an interpolation that may be drawn."""

    def __init__(self, op: specs.TimmAutoAugment, policy: specs.TimmPolicy) -> None:
        self.policy = policy
        drawn = ("bilinear", "bicubic") if op.interpolation == "random" else (op.interpolation,)
        red, green, blue = (min(255, round(255 * value)) for value in op.mean)
        # A shift is a part of the image's side; AugMix's is smaller.
        shift = 0.3 if policy.kind == "augmix" else 0.45
        increasing = policy.increasing or policy.kind == "augmix"
        self._tables = [
            _timm_table(Moves((red, green, blue), _INTERPOLATIONS[word]), shift, increasing) for word in drawn
        ]
        self.names = [name for name in _WEIGHTS if policy.kind == "rand" or name not in _NOT_IN_AUGMIX]

    def apply(self, name: str, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        magnitude = self.policy.magnitude
        if self.policy.noise:
            magnitude = rng.normal(magnitude, self.policy.noise)
        level, sign = min(max(magnitude, 0.0), 10.0) / 10, 1 if rng.random() < 0.5 else -1
        table = self._tables[int(rng.integers(len(self._tables)))]
        return table[name](image, level, sign)


def _timm_table(moves: Moves, shift: float, increasing: bool) -> dict[str, _Leveled]:
    """`increasing`: a higher level changes the image more, for every operation."""
    table = _moves_and_colours(moves, lambda level, side: shift * level * side)
    table["SolarizeAdd"] = lambda image, level, sign: ops.solarize_add(image, int(110 * level))
    if increasing:
        return table | {
            "Posterize": lambda image, level, sign: ops.posterize(image, 4 - int(4 * level)),
            "Solarize": lambda image, level, sign: ops.solarize(image, 256 - int(256 * level)),
        }
    return table | {
        "Posterize": lambda image, level, sign: ops.posterize(image, int(4 * level)),
        "Solarize": lambda image, level, sign: ops.solarize(image, int(256 * level)),
        "Color": lambda image, level, sign: ops.color(image, 1.8 * level + 0.1),
        "Contrast": lambda image, level, sign: ops.contrast(image, 1.8 * level + 0.1),
        "Sharpness": lambda image, level, sign: ops.sharpness(image, 1.8 * level + 0.1),
        "Brightness": lambda image, level, sign: ops.brightness(image, 1.8 * level + 0.1),
    }


class _TimmRandAugment(_Operations):
    """`layers` operations, each happening with probability 0.5; with weights no operation comes twice."""

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        weights = list(_WEIGHTS.values()) if self.policy.weighted else None
        names = rng.choice(self.names, self.policy.layers, replace=weights is None, p=weights)
        for name in names:
            if rng.random() < 0.5:
                image = self.apply(str(name), image, rng)
        return image


class _AugMix(_Operations):
    """The image blended with a mixture of chains of operations (Hendrycks et al., 2020)."""

    def __call__(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        policy = self.policy
        weights = rng.dirichlet([policy.alpha] * policy.width)
        share = rng.beta(policy.alpha, policy.alpha)
        mixture = np.zeros(image.shape, np.float32)
        for weight in weights:
            depth = policy.depth if policy.depth > 0 else int(rng.integers(1, 4))
            chained = image
            for name in rng.choice(self.names, depth):
                chained = self.apply(str(name), chained, rng)
            mixture += np.float32(weight) * chained
        blended = (1 - share) * image.astype(np.float32) + share * mixture
        return np.clip(np.rint(blended), 0, 255).astype(np.uint8)
