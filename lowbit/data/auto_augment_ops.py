"""The operations that AutoAugment's policies are made of, on RGB images, with OpenCV and look-up tables."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

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
