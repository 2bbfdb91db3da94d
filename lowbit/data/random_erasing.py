"""Random erasing (Zhong et al., 2017): a rectangle of the normalised image becomes zeros or noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from lowbit.config.transform_ops import RandomErasing
from lowbit.errors import LowbitError


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
