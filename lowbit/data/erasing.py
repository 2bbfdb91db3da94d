"""Parts of a normalised image become zeros or noise: random erasing, cutout, grid mask, hide-and-seek."""

from __future__ import annotations

import math
from collections.abc import Callable

import cv2
import numpy as np

from lowbit.config.transform_ops import Cutout, GridMask, HideAndSeek, RandomErasing
from lowbit.errors import LowbitError

# In place, on a float32 CHW image. Zero is the mean colour, since the image is normalised.
Erase = Callable[[np.ndarray, np.random.Generator], None]


def random_erasing(op: RandomErasing) -> Erase:
    """One rectangle (Zhong et al., 2017).

    It covers `sl` to `sh` of the image with an aspect ratio of `r1` to 1/`r1`; one that does not fit is drawn
    again, up to `attempt` times.
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
                box[:] = _colour(op, box.shape, rng)
                return

    return erase


def _colour(op: RandomErasing, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if op.mode == "const":
        return np.array(op.mean, np.float32)[:, None, None]
    return rng.standard_normal(shape if op.mode == "pixel" else (3, 1, 1), np.float32)


def cutout(op: Cutout) -> Erase:
    """Squares around random pixels; what lies outside of the image is lost."""

    def erase(image: np.ndarray, rng: np.random.Generator) -> None:
        _, height, width = image.shape
        for _ in range(op.n_holes):
            y, x = int(rng.integers(height)), int(rng.integers(width))
            top, left = max(y - op.length // 2, 0), max(x - op.length // 2, 0)
            image[:, top : y + (op.length + 1) // 2, left : x + (op.length + 1) // 2] = 0

    return erase


def grid_mask(op: GridMask) -> Erase:
    """A grid with a random period and offset; the mask is larger than the image, so that it can be turned."""

    def erase(image: np.ndarray, rng: np.random.Generator) -> None:
        if rng.random() >= op.prob:
            return
        _, height, width = image.shape
        period = int(rng.integers(op.d1, op.d2))
        stripe = int(period * op.ratio + 0.5)
        # The diagonal is the side of a square that covers the image however it is turned.
        side = math.ceil(math.hypot(height, width))
        kept = [(np.arange(side) - int(rng.integers(period))) % period >= stripe for _ in range(2)]
        mask = np.outer(kept[0], kept[1]).astype(np.uint8)
        degrees = int(rng.integers(op.rotate))
        if degrees:
            center = ((side - 1) / 2, (side - 1) / 2)
            turn = cv2.getRotationMatrix2D(center, degrees, 1)
            mask = np.asarray(cv2.warpAffine(mask, turn, (side, side), flags=cv2.INTER_NEAREST), np.uint8)
        top, left = (side - height) // 2, (side - width) // 2
        image *= mask[top : top + height, left : left + width] != op.mode

    return erase


_GRID_SIZES = (0, 16, 32, 44, 56)  # pixels; 0 hides nothing


def hide_and_seek(op: HideAndSeek) -> Erase:
    """Each cell of a grid is hidden with probability 0.5 (Kumar Singh and Lee, 2017)."""

    def erase(image: np.ndarray, rng: np.random.Generator) -> None:
        size = int(rng.choice(_GRID_SIZES))
        if not size:
            return
        _, height, width = image.shape
        for top in range(0, height, size):
            for left in range(0, width, size):
                if rng.random() < 0.5:
                    image[:, top : top + size, left : left + size] = 0

    return erase


ERASERS: dict[type, Callable[..., Erase]] = {
    RandomErasing: random_erasing,
    Cutout: cutout,
    GridMask: grid_mask,
    HideAndSeek: hide_and_seek,
}
