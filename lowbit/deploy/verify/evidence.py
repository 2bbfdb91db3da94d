"""What agreement proves: how many images it takes, and what decides where there are too few.

An engine that gives the trained model's class on every image has proven little if there were few images, or
if the model gives them all the same class: an engine that always gave that class would agree as well. Then
the distance of the outputs decides, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
ONE_CLASS = 0.9  # of the images or more with one class: (nearly) any engine agrees
# Relative RMS error of the outputs, 20 dB. Rounding moves single integers by one step. If that hits one in a
# hundred, the most that comparing layers allows, a layer on a 4-bit grid (values of 4.3 steps RMS) adds
# sqrt(0.01) / 4.3 = 2.3 %, and 18 such layers, independent of each other, 10 %.
RELATIVE_ERROR = 0.1
# Of the largest output of an image: what other orders of adding fp32 numbers make, and no difference.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Evidence:
    """Whether the agreement of classes proves what `limit` asks for.

    >>> print(weigh(64, 0.2, 0.99).reason)
    64 images are few: it takes 299 to show an agreement of 99 % (95 % confidence)
    """

    images: int
    needed: int | None  # images that show the limit, if all agree; None: no number of images does
    largest_class: float  # the largest fraction of images to which the model gives one class
    reason: str  # why agreement proves little; empty where it proves something

    @property
    def conclusive(self) -> bool:
        return not self.reason

    @property
    def judged_by(self) -> str:
        """What decides: `agreement`, or `agreement and outputs`."""
        return "agreement" if self.conclusive else "agreement and outputs"


def weigh(images: int, largest_class: float, limit: float) -> Evidence:
    """What so many images prove about an agreement of `limit`, a fraction.

    >>> weigh(1000, 0.2, 0.99).conclusive
    True
    """
    needed = images_needed(limit)
    reasons = []
    if needed is None:
        reasons.append(f"{images} images are few: no number of them shows an agreement of 100 %")
    elif images < needed:
        reasons.append(
            f"{images} images are few: it takes {needed} to show an agreement of {100 * limit:g} % "
            f"({100 * CONFIDENCE:g} % confidence)"
        )
    if largest_class >= ONE_CLASS and limit > 0:
        reasons.append(f"the model gives one class to {100 * largest_class:.4g} % of the images")
    return Evidence(images, needed, largest_class, ", and ".join(reasons))


def images_needed(limit: float) -> int | None:
    """The smallest number of images that, if all agree, shows at least this agreement.

    >>> images_needed(0.99), images_needed(0.8), images_needed(0.0), images_needed(1.0)
    (299, 14, 0, None)
    """
    if limit in (0, 1):
        return 0 if limit == 0 else None
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(limit))


def lower_bound(images: int, same: int) -> float:
    """The agreement that `same` of so many images show at least (Clopper and Pearson's one-sided bound).

    >>> round(lower_bound(299, 299), 3), round(lower_bound(1000, 995), 3), lower_bound(10, 0)
    (0.99, 0.99, 0.0)
    """
    different = images - same
    if same == 0:
        return 0.0
    low, high = 0.0, same / images
    chosen = np.arange(different + 1)
    ways = np.array(
        [math.lgamma(images + 1) - math.lgamma(k + 1) - math.lgamma(images - k + 1) for k in chosen]
    )
    for _ in range(60):
        rate = (low + high) / 2
        if rate in (0.0, 1.0):
            break
        # How probable so few differences are, if this were the agreement: too improbable below the bound.
        logs = ways + (images - chosen) * math.log(rate) + chosen * math.log1p(-rate)
        if np.exp(logs).sum() < 1 - CONFIDENCE:
            low = rate
        else:
            high = rate
    return low


def variation(outputs: np.ndarray) -> float:
    """How much the outputs [N, classes] depend on the image: RMS distance from their mean over the images."""
    values = np.where(np.isfinite(outputs), outputs, 0).astype(np.float64)
    center = values.mean(axis=0) if len(values) > 1 else values.mean()
    return float(np.sqrt(np.square(values - center).mean()))


def relative_error(expected: np.ndarray, answers: np.ndarray, rounding: np.ndarray) -> float:
    """RMS difference of the outputs, by what they vary from image to image; a constant answer has 1.

    Images in `rounding` (a mask) differ by no more than float rounding and count as equal.
    """
    difference = answers.astype(np.float64) - expected.astype(np.float64)
    difference[rounding] = 0
    if not np.isfinite(difference).all():
        return math.inf
    error = float(np.sqrt(np.square(difference).mean()))
    if error == 0:
        return 0.0
    spread = variation(expected)
    return error / spread if spread > 0 else math.inf
