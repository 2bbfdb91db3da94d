"""Whether inference printed a class and a probability, and those that the trained model gives."""

from __future__ import annotations

import math
from pathlib import Path

from lowbit.tipc.finding import Expected, Finding
from lowbit.tipc.log_lines import Answer, answers
from lowbit.tipc.result import Check

_TOLERANCE = 0.01  # of a probability: faster kernels and three printed digits


def check_answers(log: Path, finding: Finding | None, *, must_classify: bool) -> list[Check]:
    """The checks of an inference step's log; `finding` is about the model that it ran."""
    found = answers(log)
    if not found:
        wanted = "no line like `class_id: 8, prob: 0.909` in its log"
        return [Check("class and probability", False if must_classify else None, wanted)]
    strange = next((answer for answer in found if not _is_probability(answer)), None)
    if strange:
        return [Check("class and probability", False, f"it printed prob: {strange.probability}")]
    first = found[0]
    printed = f"{len(found)} lines, the first: class {first.class_id} with {first.probability:.3f}"
    checks = [Check("class and probability", True, printed)]
    if finding is None or not finding.expected:
        why = "what the trained model answers is not known"
        return [*checks, Check("the trained model's class", None, why)]
    return [*checks, _compare(found, finding)]


def _is_probability(answer: Answer) -> bool:
    return math.isfinite(answer.probability) and 0 <= answer.probability <= 1 + 1e-6


def _compare(found: list[Answer], finding: Finding) -> Check:
    name = "the trained model's class"
    if len(found) != finding.image_count:
        return Check(name, False, f"{finding.image_count} images, but {len(found)} lines")
    for printed, expected in zip(found, finding.expected, strict=False):  # only the first are expected
        if printed.image is not None and Path(printed.image).name != Path(expected.image).name:
            return Check(name, False, f"expected {expected.image}, it printed {printed.image}")
        if not _agree(printed, expected):
            best = max(range(len(expected.probabilities)), key=expected.probabilities.__getitem__)
            return Check(
                name,
                False,
                f"{expected.image}: trained, class {best} with {expected.probabilities[best]:.3f}; printed, "
                f"class {printed.class_id} with {printed.probability:.3f}",
            )
    looked_at = min(len(finding.expected), finding.image_count)
    return Check(name, True, f"the same for all {looked_at} images that were looked at")


def _agree(printed: Answer, expected: Expected) -> bool:
    """The same class, or one that is as probable: of equals, rounding may choose another."""
    best = max(expected.probabilities)
    if printed.class_id >= len(expected.probabilities):
        return False
    own = expected.probabilities[printed.class_id]
    return best - own <= _TOLERANCE and abs(printed.probability - own) <= _TOLERANCE
