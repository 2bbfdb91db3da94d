"""`lowbit bench`: sides take turns, and the result is a table of ratios."""

from __future__ import annotations

import dataclasses
import datetime
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import paddle
from rich.console import Console

from lowbit.accel.convolutions import convolution_library
from lowbit.accel.process_settings import keep_freed_memory, without_collecting_what_is_there
from lowbit.bench import deployed
from lowbit.bench.layer_bench import FP32, LAYERS, ceilings, layer_sides
from lowbit.bench.own_loop import TRAIN, own_loop_sides
from lowbit.bench.sides import CASES, PADDLE, RECIPES, Case, step_sides
from lowbit.errors import LowbitError
from lowbit.formatting import Section, as_text, bytes_text, number
from lowbit.formatting import times as ratio_text
from lowbit.kernels import Kernels, kernels, why_missing
from lowbit.machine import hardware_info
from lowbit.recipe import load_recipe
from lowbit.version import __version__

Times = dict[str, list[float]]


def take_turns(
    sides: dict[str, Callable[[], None]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> Times:
    """Seconds of each side in each round, after one uncounted round; the order turns round every time."""
    times: Times = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name in list(sides) if turn % 2 else reversed(list(sides)):
            start = clock()
            sides[name]()
            if turn:
                times[name].append(clock() - start)
    return times


@dataclass(frozen=True)
class Ratio:
    """The median of a ratio taken round by round, and its ends.

    >>> str(Ratio(2.0, 1.9, 2.2, 9))
    '2.00 (1.90 to 2.20)'
    """

    median: float
    least: float
    most: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f} to {self.most:.2f})"


def ratio(times: Times, name: str, base: str) -> Ratio:
    """A side's time over another's.

    >>> ratio({"a": [2.0, 3.0], "b": [1.0, 1.0]}, "a", "b").median
    2.5
    """
    ratios = [one / other for one, other in zip(times[name], times[base], strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), len(ratios))


# Measuring and printing.


LAYERS_WORD = "layers"
RUNTIME_WORD = "runtime"
_LAYER_BATCH = 16

__all__ = ["CASES", "LAYERS_WORD", "RUNTIME_WORD", "run_bench"]


def run_bench(
    names: Sequence[str],
    *,
    rounds: int = 5,
    threads: int = 1,
    batch: int | None = None,
    processor_time: bool = False,
    instructions: str | None = None,
    own_loop: bool = False,
    quiet: bool = False,
    silent: bool = False,
) -> list[dict[str, Any]]:
    """The figures of everything named: `layers`, `runtime`, or a case of lowbit.bench.sides.

    Each has its rows, the processor, the instructions and the number of threads.

    With `own_loop`, your own loop against `lowbit train` instead (lowbit.bench.own_loop). With
    `instructions`, lowbit's kernels use that set; for the other libraries see lowbit.cli.bench.

    run_bench(["resnet20"], rounds=9)
    """
    keep_freed_memory()  # as in training, and for every side
    console = Console(quiet=silent)
    found = kernels()
    if found is not None and instructions:
        _select(found, instructions)
    variant = f"none ({why_missing()})" if found is None else found.variant
    library = convolution_library(wanted=True)
    if not quiet:
        console.print(
            f"Paddle {paddle.__version__}; convolutions: {library}; kernels: {variant}; threads: {threads}"
        )
    measure = partial(
        _measure, console, rounds=rounds, clock=time.process_time if processor_time else time.perf_counter
    )
    figures = []
    for name in names:
        if name == LAYERS_WORD:
            figures += _measure_layers(console, measure, batch or _LAYER_BATCH, threads)
        elif name == RUNTIME_WORD:
            figures += _measure_runtime(console, rounds, batch or 1, threads)
        else:
            case = CASES[name]
            case = dataclasses.replace(case, batch=batch or case.batch)
            if own_loop:
                figures += _measure_own_loop(measure, case)
                continue
            sides = step_sides(case, console.print)
            figure = measure(f"A training step: {case}", sides, PADDLE)
            figure["fastest"] = _fastest(figure["rows"])
            console.print(
                f"  fastest: {figure['fastest']}{_against_pytorch(figure['rows'])}", highlight=False
            )
            figure |= {"case": name, "batch": case.batch}
            if found is not None and threads > 1:
                figure["exchange_seconds"] = found.exchange_time()
                console.print(f"  {_distance(figure['exchange_seconds'])}", highlight=False)
            figures.append(figure)
    conditions = _conditions(threads, instructions)
    return [figure | conditions for figure in figures]


def _conditions(threads: int, instructions: str | None) -> dict[str, Any]:
    """Where figures were measured, so that a file of them says it."""
    return {
        "processor": hardware_info().model,
        "instructions": instructions or "all",
        "threads": threads,
        "date": datetime.date.today().isoformat(),
        "lowbit": __version__,
    }


_SHARED_CACHE = 60e-9  # seconds for a cache line from one processor to another, at most


def _distance(seconds: float) -> str:
    """How near the threads' processors are to each other: figures of several threads depend on it.

    >>> _distance(25e-9)
    'the processors share a cache: a line takes 25 ns from one to the other'
    """
    shares = "share a cache" if seconds <= _SHARED_CACHE else "do not share a cache"
    return f"the processors {shares}: a line takes {1e9 * seconds:.0f} ns from one to the other"


def _fastest(rows: list[dict[str, Any]], prefix: str = "") -> str | None:
    """The side with the least time, of those whose name begins so.

    >>> _fastest([{"side": "a", "seconds": 2.0}, {"side": "b", "seconds": 1.0}])
    'b'
    """
    own = [row for row in rows if row["side"].startswith(prefix)]
    return min(own, key=lambda row: row["seconds"])["side"] if own else None


def _against_pytorch(rows: list[dict[str, Any]]) -> str:
    """The fastest of PyTorch's rows, if there are any; lowbit's rows are to be compared with that one."""
    fastest = _fastest(rows, "PyTorch")
    return "" if fastest is None else f"; of PyTorch's: {fastest}"


def _measure_own_loop(measure: Callable[..., dict[str, Any]], case: Case) -> list[dict[str, Any]]:
    figures = []
    for name, recipe in (("fp32", None), ("W4A4G4", load_recipe(RECIPES["W4A4G4"]))):
        with ExitStack() as undo:
            sides = own_loop_sides(case, recipe, undo)
            figures.append(measure(f"{name}, a step under lowbit.accelerate(): {case}", sides, TRAIN))
    return figures


def _select(found: Kernels, instructions: str) -> None:
    if instructions not in found.variants:
        here = ", ".join(found.variants)
        raise LowbitError(f'this processor has no "{instructions}" to be held back to; it can run {here}')
    found.select_variant(instructions)


def _measure_layers(
    console: Console, measure: Callable[..., dict[str, Any]], batch: int, threads: int
) -> list[dict[str, Any]]:
    figures = []
    for case in LAYERS:
        title = f"A layer's three products, quantizing included: {case}, batch {batch}"
        figure = measure(title, layer_sides(case, batch), FP32)
        for row in figure["rows"]:
            count = case.multiplications(batch, of_bytes=row["side"] == "W8A8G8")
            speed = count / row["seconds"] / threads
            row["share_of_ceiling"] = speed / found if (found := ceilings().get(row["side"])) else None
        _show_ceilings(console, figure)
        figures.append(figure)
    return figures


def _measure_runtime(console: Console, rounds: int, batch: int, threads: int) -> list[dict[str, Any]]:
    """lowbit's runtime, ONNX Runtime and OpenVINO with exported models; ratios to the fastest in fp32."""
    figures = []
    for model in deployed.MODELS:
        title = f"An exported model: {model}, 224², batch {batch}"
        with console.status(title), tempfile.TemporaryDirectory() as folder:
            files = deployed.write_models(model, Path(folder), console.print)
            sides, fp32, memory = deployed.engine_sides(files, batch, threads)
            times = deployed.time_sides(sides, rounds)
        fastest = min(fp32, key=lambda name: statistics.median(times[name]))
        figure = _show(console, title, times, fastest)
        figure["memory"] = {name: {"arena": a, "weights": w} for name, (a, w) in memory.items()}
        for name, (arena, weights) in memory.items():
            line = f"  {name}: activations {bytes_text(arena)}, weights {bytes_text(weights)}"
            console.print(line, highlight=False)
        figures.append(figure)
    return figures


def _measure(
    console: Console,
    title: str,
    sides: dict[str, Callable[[], None]],
    base: str,
    *,
    rounds: int,
    clock: Callable[[], float],
) -> dict[str, Any]:
    with console.status(title), without_collecting_what_is_there():  # as in training
        times = take_turns(sides, rounds, clock)
    return _show(console, title, times, base)


def _show(console: Console, title: str, times: Times, base: str) -> dict[str, Any]:
    rows = [_row(times, name, base) for name in times]
    cells = tuple(
        (
            row["side"],
            number(1e3 * row["seconds"]),
            *(ratio_text(row[key]) for key in ("faster", "least", "most")),
        )
        for row in rows
    )
    section = Section(title, ("", "ms", "faster", "from", "to"), cells)
    console.print(as_text([section], console.width), markup=False, highlight=False, soft_wrap=True)
    return {"title": title, "base": base, "rounds": len(times[base]), "rows": rows}


def _row(times: Times, name: str, base: str) -> dict[str, Any]:
    faster = ratio(times, base, name)
    return {
        "side": name,
        "seconds": statistics.median(times[name]),
        "faster": faster.median,
        "least": faster.least,
        "most": faster.most,
    }


def _show_ceilings(console: Console, figure: dict[str, Any]) -> None:
    shares = [
        f"{row['side']} {row['share_of_ceiling']:.0%}" for row in figure["rows"] if row["share_of_ceiling"]
    ]
    if shares:
        console.print(f"  of what the instructions allow: {', '.join(shares)}")
