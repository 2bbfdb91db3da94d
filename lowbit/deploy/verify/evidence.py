"""Whether agreement is conclusive: how many images it takes, and the criterion if there are too few.

An engine that gives the trained model's class on every image has proven little if there were few images, or
if the model gives them all the same class: an engine that always gave that class would agree as well. Then
the distance of the outputs decides, too.

The other way round, an image with another class need not be an error. Where the trained model itself hardly
prefers its class, rounding decides, in either direction. Such near-ties are recognised
by the model's own margin between the two classes.
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
    """What a number of images proves about an agreement of `limit`, a fraction.

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
    """A lower bound of the agreement if `same` of `images` agree (Clopper and Pearson's one-sided bound).

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


NEAR_TIE = 3.0  # standard deviations of what rounding moves a margin by: a larger margin is not a near-tie
_NORMAL = 1.4826  # standard deviation of a normal distribution by its median absolute value
_SMALL_NOISE = 0.5  # of the model's usual margin: more cannot be rounding


@dataclass(frozen=True)
class Ties:
    """The images to which an engine gives another class than the model, and how close a call they were."""

    differing: int
    near_ties: int  # of these: the model's margin between the two classes is within the noise
    margin: float | None  # the model's margin between the two classes, median over these
    usual_margin: float  # between its first two classes, median over all images
    noise: float  # standard deviation of what the engine moves this margin by, over all images
    lost: int | None  # images on which the model alone is right; None without labels
    gained: int | None  # images on which the engine alone is right

    @property
    def errors(self) -> int:
        """Images with another class that are not near-ties."""
        return self.differing - self.near_ties

    @property
    def accuracy_is_equal(self) -> bool:
        """Whether both are right equally often, by McNemar's exact test; unknown is not equal."""
        if self.lost is None or self.gained is None:
            return False
        return sign_test(self.lost, self.gained) >= 1 - CONFIDENCE

    @property
    def noise_is_small(self) -> bool:
        """Whether the engine moves margins by far less than the model usually has."""
        return self.noise <= _SMALL_NOISE * self.usual_margin


def count_ties(expected: np.ndarray, answers: np.ndarray, labels: np.ndarray | None) -> Ties:
    """Compare the logits [N, classes] of the model (`expected`) and of an engine.

    >>> model = np.array([[2.0, 0.0], [0.01, 0.0], [0.0, 3.0], [0.0, 4.0]])
    >>> count_ties(model, model + [[0.01, 0.0], [-0.02, 0], [0.0, 0.01], [0.0, 0.02]], None).near_ties
    1
    """
    broken = ~(np.isfinite(expected).all(axis=1) & np.isfinite(answers).all(axis=1))
    expected, answers = (np.where(np.isfinite(one), one, -1e30) for one in (expected, answers))
    rows = np.arange(len(expected))
    order = np.argsort(-expected, axis=1, kind="stable")
    first, second = order[:, 0], order[:, min(1, expected.shape[1] - 1)]
    margins = expected[rows, first] - expected[rows, second]
    moved = answers[rows, first] - answers[rows, second] - margins
    noise = _NORMAL * float(np.median(np.abs(moved)))
    given = answers.argmax(axis=1)
    differing = np.flatnonzero((given != first) | broken)
    own = expected[differing, first[differing]] - expected[differing, given[differing]]
    own[broken[differing]] = np.inf  # NaN agrees with nothing
    lost = gained = None
    if labels is not None:
        lost = int(((first == labels) & (given != labels)).sum())
        gained = int(((first != labels) & (given == labels)).sum())
    return Ties(
        differing=len(differing),
        near_ties=int((own <= NEAR_TIE * noise).sum()),
        margin=float(np.median(own)) if len(own) else None,
        usual_margin=float(np.median(margins)),
        noise=noise,
        lost=lost,
        gained=gained,
    )


def sign_test(one: int, other: int) -> float:
    """How probable a split as uneven as this is, if both sides are equally likely (two-sided, exact).

    >>> sign_test(5, 5), round(sign_test(10, 0), 4)
    (1.0, 0.002)
    """
    count, fewer = one + other, min(one, other)
    return min(1.0, 2 * sum(math.comb(count, k) for k in range(fewer + 1)) / 2**count)


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
