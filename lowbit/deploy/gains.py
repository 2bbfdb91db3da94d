"""What an exported form gains over fp32 in each engine that reads it; forms slower than fp32 are named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowbit.deploy.verify.candidates import Candidate, installed_engines, open_candidates
from lowbit.deploy.verify.latency import as_latency, time_in_turns
from lowbit.errors import LowbitError, did_you_mean

# The engines that read a format.
READ_BY = {
    "paddle": ("paddle",),
    "paddle-int8": ("paddle-int8",),
    "onnx": ("onnxruntime", "openvino", "lowbit"),
}
# The words of `--form`: integers as trained; floats on the trained grids (Paddle only); nothing quantized.
FORMS = ("int8", "simulated", "fp32")
FP32_FOLDER = "fp32"
_SECONDS = 1.0  # for an engine
_ROUNDS = 9
_AGREES = 0.9  # of the samples: a form below it is not recommended
_SLOWER = 0.97  # of fp32's speed: below it, a form is called slower


@dataclass(frozen=True)
class EngineGain:
    """One engine with the exported form: agreement with the network, and speed against fp32 in turns."""

    engine: str  # "onnxruntime", …
    name: str  # with its version
    same_class: float | None  # fraction of the samples; None where the outputs are not logits [N, C]
    relative_difference: float  # largest of any output, divided by the largest output
    ms: float | None = None  # a batch of 1; None where it was not measured
    fp32_ms: float | None = None
    faster: float | None = None  # fp32's time divided by this form's, in the same engine
    threads: int | None = None

    @property
    def agrees(self) -> bool:
        """Whether it gives the network's class often enough to be recommended."""
        return self.same_class is None or self.same_class >= _AGREES

    @property
    def is_slower(self) -> bool:
        """Whether fp32 in the same engine is faster."""
        return self.faster is not None and self.faster < _SLOWER


def check_form(word: str | None) -> None:
    """An error for a misspelt form; None leaves the choice to lowbit."""
    if word is not None and word not in FORMS:
        raise LowbitError(f'no form "{word}"; {did_you_mean(word, FORMS)}')


def measure_gains(
    format_: str,
    exported: Path,
    inputs: Sequence[np.ndarray[Any, Any]],
    own: Sequence[np.ndarray[Any, Any]],
    *,
    classifier: bool,
    fp32: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[EngineGain, ...]:
    """The format's file in every installed engine that reads it: agreement on the inputs, and latency.

    Without the folder of the `fp32` form, latency is left out. An engine that cannot run the file is left out
    with a line to `tell`.
    """
    gains = []
    for key in installed_engines(READ_BY[format_])[0]:
        try:
            (candidate,) = open_candidates([key], exported, fp32)
            gains.append(_gain(candidate, inputs, own, classifier))
        except LowbitError as error:
            tell(f"{key} cannot run the {format_} file: {error}")
    return tuple(gains)


def _gain(
    candidate: Candidate,
    inputs: Sequence[np.ndarray[Any, Any]],
    own: Sequence[np.ndarray[Any, Any]],
    classifier: bool,
) -> EngineGain:
    engine = candidate.engine
    answers = engine.run_all(list(inputs))
    same = float((answers[0].argmax(axis=1) == own[0].argmax(axis=1)).mean()) if classifier else None
    _, relative = differences(answers, own)
    gain = EngineGain(candidate.key, engine.name, same, relative)
    if candidate.fp32 is None:
        return gain
    one, fp32 = [array[:1] for array in inputs], candidate.fp32
    times = time_in_turns(
        {"fp32": lambda: fp32.run_all(one), "quantized": lambda: engine.run_all(one)},
        rounds=_ROUNDS,
        seconds=_SECONDS,
    )
    found = as_latency(times["fp32"], times["quantized"], 1, engine.options.threads)
    return EngineGain(
        *(candidate.key, engine.name, same, relative),
        ms=found.quantized_ms,
        fp32_ms=found.fp32_ms,
        faster=found.ratio,
        threads=found.threads,
    )


def differences(
    answers: Sequence[np.ndarray[Any, Any]], own: Sequence[np.ndarray[Any, Any]]
) -> tuple[float, float]:
    """The largest difference of any output; and the same divided by that output's largest number."""
    absolute, relative = 0.0, 0.0
    for answer, expected in zip(answers, own, strict=True):
        wanted = expected.astype(np.float64)
        one = float(np.abs(answer.astype(np.float64) - wanted).max(initial=0))
        if not np.isfinite(one):  # max(0.0, nan) would be 0.0
            return np.inf, np.inf
        absolute = max(absolute, one)
        relative = max(relative, one / max(float(np.abs(wanted).max(initial=0)), 1e-30))
    return absolute, relative


def slower_lines(gains: Iterable[tuple[str, EngineGain]]) -> list[str]:
    """A line on every (format, gain) that is slower than fp32 in its engine, and what to do instead."""
    pairs = list(gains)
    slow = [(word, gain) for word, gain in pairs if gain.is_slower]
    if not slow:
        return []
    # An engine's int8 may beat its own fp32 and still be slower than fp32 in another engine.
    fastest_fp32 = min(gain.fp32_ms for _, gain in pairs if gain.fp32_ms is not None)
    faster = [
        (word, gain) for word, gain in pairs if gain.ms is not None and gain.ms < fastest_fp32 and gain.agrees
    ]
    lines = [f"SLOWER THAN FP32: {word} in {gain.name}, {gain.faster:.2f}x of fp32" for word, gain in slow]
    if faster:
        word, gain = min(faster, key=lambda pair: pair[1].ms or 0.0)
        lines.append(f"Deploy {word} in {gain.name} instead: {gain.faster:.2f}x, {gain.ms:.3g} ms a sample.")
    else:
        lines.append(
            "No form here is faster than fp32 on this machine: deploy fp32 (--form fp32) unless size decides."
        )
    return lines
