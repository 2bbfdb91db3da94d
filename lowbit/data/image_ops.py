"""Operations on RGB images of bytes that augmentation policies are made of, by their natural arguments."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

GREY = (128, 128, 128)  # what rotating and shifting uncover, as in AutoAugment's experiments
_LEVELS = np.arange(256)


class Moves:
    """Shear, shift and rotate with one interpolation and one colour for what is uncovered.

    >>> Moves().rotate(np.zeros((8, 8, 3), np.uint8), 30).shape
    (8, 8, 3)
    """

    def __init__(self, fill: tuple[int, int, int] = GREY, interpolation: int = cv2.INTER_NEAREST) -> None:
        self._fill, self._interpolation = fill, interpolation

    def shear_x(self, image: np.ndarray, factor: float) -> np.ndarray:
        """Row y comes from `factor`·y pixels further right."""
        return self._warp(image, [[1, factor, 0], [0, 1, 0]])

    def shear_y(self, image: np.ndarray, factor: float) -> np.ndarray:
        """Column x comes from `factor`·x pixels further down."""
        return self._warp(image, [[1, 0, 0], [factor, 1, 0]])

    def translate_x(self, image: np.ndarray, pixels: float) -> np.ndarray:
        """Shifted left by `pixels`."""
        return self._warp(image, [[1, 0, pixels], [0, 1, 0]])

    def translate_y(self, image: np.ndarray, pixels: float) -> np.ndarray:
        """Shifted up by `pixels`."""
        return self._warp(image, [[1, 0, 0], [0, 1, pixels]])

    def rotate(self, image: np.ndarray, degrees: float) -> np.ndarray:
        """Turned about its centre."""
        center = ((image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2)
        return self._warp(image, cv2.getRotationMatrix2D(center, degrees, 1).tolist())

    def _warp(self, image: np.ndarray, matrix: list[list[float]]) -> np.ndarray:
        height, width = image.shape[:2]
        # The matrices describe where a pixel comes from, hence the inverse map.
        return cv2.warpAffine(
            image,
            np.array(matrix, np.float64),
            (width, height),
            flags=self._interpolation | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=self._fill,
        )


def invert(image: np.ndarray) -> np.ndarray:
    """The negative."""
    return 255 - image


def solarize(image: np.ndarray, threshold: float) -> np.ndarray:
    """The negative of values from `threshold` on."""
    return _look_up(image, np.where(threshold > _LEVELS, _LEVELS, 255 - _LEVELS))


def solarize_add(image: np.ndarray, add: float) -> np.ndarray:
    """`add` more for values below 128."""
    return _look_up(image, np.where(_LEVELS < 128, _LEVELS + int(add), _LEVELS))


def posterize(image: np.ndarray, bits: int) -> np.ndarray:
    """The highest `bits` bits alone."""
    dropped = 8 - min(max(bits, 0), 8)
    return _look_up(image, _LEVELS >> dropped << dropped)


def brightness(image: np.ndarray, factor: float) -> np.ndarray:
    """Black at 0, the image at 1."""
    return _look_up(image, _LEVELS * factor)


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
    """Its mean grey at 0, the image at 1."""
    mean = round(float(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).mean()))
    return _look_up(image, mean + (_LEVELS - mean) * factor)


def color(image: np.ndarray, factor: float) -> np.ndarray:
    """Without colours at 0, the image at 1."""
    return _away_from(greyscale(image), image, factor)


def greyscale(image: np.ndarray) -> np.ndarray:
    """Three equal channels."""
    return cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)


def hue(image: np.ndarray, turn: float) -> np.ndarray:
    """Colours turned by a part of their circle: 0 and 1 change nothing."""
    values = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
    # Overflow is what turns.
    values[..., 0] = values[..., 0].astype(np.uint8) + np.uint8(round(turn * 256) % 256)
    return cv2.cvtColor(values, cv2.COLOR_HSV2RGB_FULL)


def sharpness(image: np.ndarray, factor: float) -> np.ndarray:
    """Smoothed at 0, the image at 1."""
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
    smooth = image.copy()  # the outermost pixels have no full neighbourhood and stay as they are
    smooth[1:-1, 1:-1] = cv2.filter2D(image, -1, kernel)[1:-1, 1:-1]
    return _away_from(smooth, image, factor)


def _away_from(reference: np.ndarray, image: np.ndarray, factor: float) -> np.ndarray:
    """`reference` at factor 0, `image` at 1, beyond it above."""
    return cv2.addWeighted(image, factor, reference, 1 - factor, 0)


def auto_contrast(image: np.ndarray) -> np.ndarray:
    """Each channel stretched to 0..255."""
    return _per_channel(image, _stretch)


def _stretch(channel: np.ndarray) -> np.ndarray:
    low, high = int(channel.min()), int(channel.max())
    return _LEVELS if low == high else (_LEVELS - low) * (255 / (high - low))


def equalize(image: np.ndarray) -> np.ndarray:
    """Each channel's values spread evenly."""
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
