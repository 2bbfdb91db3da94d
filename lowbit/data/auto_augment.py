"""AutoAugment's ImageNet policy and its operations, and random erasing."""

from __future__ import annotations

import math
from collections.abc import Callable

import cv2
import numpy as np

from lowbit.config.transform_ops import AutoAugment, RandomErasing
from lowbit.errors import LowbitError

_GREY = (128, 128, 128)  # what rotating and shifting uncover, as in the paper's experiments
_LEVELS = np.arange(256)


def apply(name: str, image: np.ndarray, magnitude: int, sign: int = 1) -> np.ndarray:
    """One operation at a magnitude of 0 to 9; `sign` matters to the geometric and the enhancing ones."""
    return _OPERATIONS[name](image, magnitude / 9, sign)


def _warp(image: np.ndarray, matrix: list[list[float]]) -> np.ndarray:
    height, width = image.shape[:2]
    # The matrices describe where a pixel comes from, hence the inverse map.
    return cv2.warpAffine(
        image,
        np.array(matrix, np.float64),
        (width, height),
        flags=cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=_GREY,
    )


def _shear_x(image: np.ndarray, level: float, sign: int) -> np.ndarray:
    return _warp(image, [[1, 0.3 * level * sign, 0], [0, 1, 0]])


def _shear_y(image: np.ndarray, level: float, sign: int) -> np.ndarray:
    return _warp(image, [[1, 0, 0], [0.3 * level * sign, 1, 0]])


def _translate_x(image: np.ndarray, level: float, sign: int) -> np.ndarray:
    # The paper shifts by up to 150 pixels of 331.
    return _warp(image, [[1, 0, round(150 / 331 * image.shape[1] * level) * sign], [0, 1, 0]])


def _translate_y(image: np.ndarray, level: float, sign: int) -> np.ndarray:
    return _warp(image, [[1, 0, 0], [0, 1, round(150 / 331 * image.shape[0] * level) * sign]])


def _rotate(image: np.ndarray, level: float, sign: int) -> np.ndarray:
    center = ((image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2)
    return _warp(image, cv2.getRotationMatrix2D(center, 30 * level * sign, 1).tolist())


def _invert(image: np.ndarray, level: float, sign: int) -> np.ndarray:
    return 255 - image


def _solarize(image: np.ndarray, level: float, sign: int) -> np.ndarray:
    threshold = 256 * (1 - level)
    return _look_up(image, np.where(threshold > _LEVELS, _LEVELS, 255 - _LEVELS))


def _posterize(image: np.ndarray, level: float, sign: int) -> np.ndarray:
    dropped = round(4 * level)  # 8 bits down to 4
    return _look_up(image, _LEVELS >> dropped << dropped)


def _brightness(image: np.ndarray, level: float, sign: int) -> np.ndarray:
    return _look_up(image, _LEVELS * (1 + 0.9 * level * sign))


def _contrast(image: np.ndarray, level: float, sign: int) -> np.ndarray:
    mean = round(float(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).mean()))
    return _look_up(image, mean + (_LEVELS - mean) * (1 + 0.9 * level * sign))


def _color(image: np.ndarray, level: float, sign: int) -> np.ndarray:
    grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return _away_from(grey, image, 1 + 0.9 * level * sign)


def _sharpness(image: np.ndarray, level: float, sign: int) -> np.ndarray:
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
    smooth = image.copy()  # the outermost pixels have no full neighbourhood and stay as they are
    smooth[1:-1, 1:-1] = cv2.filter2D(image, -1, kernel)[1:-1, 1:-1]
    return _away_from(smooth, image, 1 + 0.9 * level * sign)


def _away_from(reference: np.ndarray, image: np.ndarray, factor: float) -> np.ndarray:
    """`reference` at factor 0, `image` at 1, beyond it above."""
    return cv2.addWeighted(image, factor, reference, 1 - factor, 0)


def _auto_contrast(image: np.ndarray, level: float, sign: int) -> np.ndarray:
    return _per_channel(image, _stretch)


def _stretch(channel: np.ndarray) -> np.ndarray:
    low, high = int(channel.min()), int(channel.max())
    return _LEVELS if low == high else (_LEVELS - low) * (255 / (high - low))


def _equalize(image: np.ndarray, level: float, sign: int) -> np.ndarray:
    return _per_channel(image, _flatten)


def _flatten(channel: np.ndarray) -> np.ndarray:
    counts = np.bincount(channel.ravel(), minlength=256)
    # The last level in use is left out, so that the brightest pixels stay at the top.
    step = (channel.size - counts[np.flatnonzero(counts)[-1]]) // 255
    if step == 0:
        return _LEVELS
    return (np.cumsum(counts) - counts + step // 2) // step


def _per_channel(image: np.ndarray, table: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    channels = cv2.split(image)
    return cv2.merge([_look_up(channel, table(channel)) for channel in channels])


def _look_up(image: np.ndarray, table: np.ndarray) -> np.ndarray:
    return cv2.LUT(image, np.clip(table, 0, 255).astype(np.uint8))


_OPERATIONS: dict[str, Callable[[np.ndarray, float, int], np.ndarray]] = {
    "ShearX": _shear_x,
    "ShearY": _shear_y,
    "TranslateX": _translate_x,
    "TranslateY": _translate_y,
    "Rotate": _rotate,
    "Invert": _invert,
    "Solarize": _solarize,
    "Posterize": _posterize,
    "Brightness": _brightness,
    "Contrast": _contrast,
    "Color": _color,
    "Sharpness": _sharpness,
    "AutoContrast": _auto_contrast,
    "Equalize": _equalize,
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


# Random erasing (Zhong et al., 2017): a rectangle of the normalized image becomes zeros or noise.


def random_erasing(op: RandomErasing) -> Callable[[np.ndarray, np.random.Generator], None]:
    """A function that erases in place in a float32 CHW image.

    The rectangle covers `sl` to `sh` of the image with an aspect ratio of `r1` to 1/`r1`; one that does not
    fit is drawn again, up to `attempt` times. Zero is the mean colour, since the image is normalised.
    """
    if op.sl > op.sh:
        raise LowbitError(f"RandomErasing: the smallest area sl ({op.sl}) is above the largest, sh ({op.sh})")
    low, high = sorted((op.r1, 1 / op.r1))

    def erase(image: np.ndarray, rng: np.random.Generator) -> None:
        if rng.random() >= op.EPSILON:
            return
        _, height, width = image.shape
        for _ in range(op.attempt):
            area = rng.uniform(op.sl, op.sh) * height * width
            if op.use_log_aspect:
                ratio = math.exp(rng.uniform(math.log(low), math.log(high)))
            else:
                ratio = rng.uniform(low, high)
            box_height = round(math.sqrt(area * ratio))
            box_width = round(math.sqrt(area / ratio))
            if 0 < box_height < height and 0 < box_width < width:
                top = int(rng.integers(height - box_height + 1))
                left = int(rng.integers(width - box_width + 1))
                box = image[:, top : top + box_height, left : left + box_width]
                box[:] = 0 if op.mode == "const" else rng.standard_normal(box.shape, np.float32)
                return

    return erase
