"""`lowbit bench`: how fast training is on this machine, as ratios."""

from __future__ import annotations

import json
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.options import AsJson, Quiet
from lowbit.errors import LowbitError, did_you_mean


def bench(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]…",
            help="Training steps of these only; `layers`: single layers; `runtime`: exported models.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Number of threads.")] = 1,
    processor_time: Annotated[
        bool,
        typer.Option("--processor-time", help="Measure processor time, for a busy machine."),
    ] = False,
    instructions: Annotated[
        str | None,
        typer.Option(metavar="SET", help="Restrict all libraries to `avx2` or `avx512vnni`."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="The batch size.")] = None,
    own_loop: Annotated[
        bool,
        typer.Option(
            "--own-loop",
            help="Your own loop under `lowbit.accelerate()` against `lowbit train`, fp32 and W4A4G4.",
        ),
    ] = False,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the figures as JSON.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure training steps and inference on this machine: fp32, QAT, 8 and 4 bits, interleaved, as ratios.

    A ratio is the median over the rounds, with minimum and maximum; above 1 is faster than the first row.
    Rounds are interleaved, so that other load on the machine affects all alike.

    **Examples**

    - `lowbit bench` layers, four models and exported ones, about ten minutes
    - `lowbit bench resnet20 --rounds 9`
    - `lowbit bench layers --threads 2`
    - `lowbit bench resnet18 --instructions avx2`
    - `lowbit bench resnet20 --own-loop`
    - `lowbit bench runtime --rounds 15` exported models in lowbit's runtime, ONNX Runtime and OpenVINO
    """
    # Read when Paddle is loaded, and never again.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if instructions:
        hold_back(instructions)

    from lowbit.accel.process_settings import apply_amd_fix
    from lowbit.bench.run import CASES, LAYERS_WORD, RUNTIME_WORD, run_bench

    known = [*CASES] if own_loop else [LAYERS_WORD, *CASES, RUNTIME_WORD]
    for name in models or ():
        if name not in known:
            raise LowbitError(f'nothing called "{name}" to measure, {did_you_mean(name, known)}')
    if processor_time and threads > 1:
        raise LowbitError("--processor-time adds up what all threads take: use it with --threads 1")
    if RUNTIME_WORD in (models or known) and (instructions or processor_time):
        if models:
            raise LowbitError(
                "`runtime` knows neither --instructions nor --processor-time: ONNX Runtime and OpenVINO "
                "cannot be held back by a setting (benchmarks/avx2_only.py holds back their libraries)"
            )
        known.remove(RUNTIME_WORD)
    fix = apply_amd_fix()
    if not (quiet or as_json):
        print(fix.message)
    figures = run_bench(
        models or known,
        rounds=rounds,
        threads=threads,
        batch=batch_size,
        processor_time=processor_time,
        instructions=instructions,
        own_loop=own_loop,
        quiet=quiet,
        silent=as_json,
    )
    if as_json:
        print(json.dumps(figures, indent=2))
    if output:
        output.write_text(json.dumps(figures, indent=2), "utf-8")


# What oneDNN (in Paddle and in PyTorch), MKL and PyTorch's own loops call the instruction set.
_SETTINGS = {
    "avx512vnni": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"},
    "avx2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
    },
}


def hold_back(instructions: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Have the libraries of all sides use no newer instructions; lowbit's kernels are told by `run_bench`.

    >>> environ = {}
    >>> hold_back("avx2", environ)
    >>> environ["ONEDNN_MAX_CPU_ISA"]
    'AVX2'
    """
    if instructions not in _SETTINGS:
        hint = did_you_mean(instructions, list(_SETTINGS))
        raise LowbitError(f'nothing can be held back to "{instructions}", {hint}')
    environ.update(_SETTINGS[instructions])
