"""RandAugment and AugMix, in PaddleClas's variants and in timm's."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from lowbit.config import transform_ops as specs
from lowbit.config.transform_ops import parse_timm
from lowbit.data import image_ops as ops
from lowbit.data.image_ops import Moves

Step = Callable[[np.ndarray, np.random.Generator], np.ndarray]
# An image at a level of 0 (nothing) to 1, with a sign of 1 or -1 where it has a direction.
_Leveled = Callable[[np.ndarray, float, int], np.ndarray]

_INTERPOLATIONS = {
    "nearest": cv2.INTER_NEAREST,
    "bilinear": cv2.INTER_LINEAR,
    "bicubic": cv2.INTER_CUBIC,
    "area": cv2.INTER_AREA,
    "lanczos": cv2.INTER_LANCZOS4,
}
_SHIFT = 150 / 331  # of the image's side, AutoAugment's range


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

        def change(one: np.ndarray) -> np.ndarray:
            return self.apply(str(rng.choice(self.names)), one, rng)

        return _mixture(image, rng, change, policy.alpha, policy.width, policy.depth)


def _mixture(
    image: np.ndarray,
    rng: np.random.Generator,
    change: Callable[[np.ndarray], np.ndarray],
    alpha: float,
    width: int,
    depth: int,
) -> np.ndarray:
    """The image blended with `width` chains of `depth` changes each; a depth of -1 is drawn from 1 to 3."""
    weights, share = rng.dirichlet([alpha] * width), rng.beta(alpha, alpha)
    mixture = np.zeros(image.shape, np.float32)
    for weight in weights:
        chained = image
        for _ in range(depth if depth > 0 else int(rng.integers(1, 4))):
            chained = change(chained)
        mixture += np.float32(weight) * chained
    blended = (1 - share) * image.astype(np.float32) + share * mixture
    return np.clip(np.rint(blended), 0, 255).astype(np.uint8)


# PaddleClas's own AugMix, with the operations of the paper.


def augmix(op: specs.AugMix) -> Step:
    """For `prob` of the images a mixture of chains, each operation at a level of its own."""
    moves = Moves((0, 0, 0), cv2.INTER_LINEAR)
    common = _moves_and_colours(moves, lambda level, side: level * side / 3)
    words = ("AutoContrast", "Equalize", "Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
    table: list[_Leveled] = [
        *(common[word] for word in words),
        lambda image, level, sign: ops.posterize(image, 4 - int(4 * level)),
        lambda image, level, sign: ops.solarize(image, 256 - int(256 * level)),
    ]

    def step(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if rng.random() >= op.prob:
            return image

        def change(one: np.ndarray) -> np.ndarray:
            level = rng.uniform(min(0.1, op.aug_severity), op.aug_severity) / 10
            return table[int(rng.integers(len(table)))](one, level, 1 if rng.random() < 0.5 else -1)

        return _mixture(image, rng, change, op.aug_prob_coeff, op.mixture_width, op.mixture_depth)

    return step
