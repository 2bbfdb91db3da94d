"""`lowbit doctor`: what this machine can do, and what each missing part costs."""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lowbit.accel.process_settings import FixStatus, decide_amd_fix
from lowbit.cli.options import AsJson
from lowbit.errors import LowbitError
from lowbit.extras import install_command, is_installed
from lowbit.kernels import kernels, why_missing
from lowbit.machine.cpu import CPU_VARIABLE, FEATURES, chosen_processor, hardware_info
from lowbit.machine.device import math_threads, paddle_build

Status = Literal["ok", "missing", "broken"]

# A header and a template: finds compilers whose standard library is not installed.
_TRY_TO_COMPILE = "#include <vector>\nint main() { return std::vector<int>{0}[0]; }\n"
_SECONDS = 20
# Where all variants of the kernels have passed their tests; the last by emulation (`make test-arm`)
_TESTED_ON = ("x86_64", "AMD64", "aarch64")


@dataclass(frozen=True)
class Finding:
    """One line of the report; `advice` says what a missing or broken thing costs and how to get it."""

    name: str
    value: str
    status: Status = "ok"
    advice: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def checkup() -> Iterator[Finding]:
    """The findings, in the order of the report."""
    yield _python()
    yield Finding("system", f"{platform.system()} {platform.release()} ({platform.machine()})")
    yield from _processor()
    yield _compiler()
    yield _kernels()
    yield from _paddle()
    yield _package("ONNX Runtime", "onnxruntime", "exported models cannot be run and verified in it")
    yield _package("OpenVINO", "openvino", "exported models cannot be run and verified in it")
    yield _digits()
    yield _package("VisualDL", "visualdl", "no curves in the browser; metrics.jsonl has the same figures")
    yield _package("simplejpeg", "simplejpeg", "JPEG files cannot be decoded")
    yield _package(
        "OpenCV", "cv2", "images cannot be resized and augmented", install="opencv-python-headless"
    )


def _python() -> Finding:
    version = platform.python_version()
    if (3, 10) <= sys.version_info[:2] <= (3, 12):
        return Finding("Python", version)
    return Finding(
        "Python", version, "broken", "lowbit is tried on Python 3.10, 3.11 and 3.12; use one of them"
    )


def _processor() -> Iterator[Finding]:
    cpu = hardware_info()
    yield Finding("processor", f"{cpu.model} ({cpu.vendor})" if cpu.vendor else cpu.model)
    if cpu.features is None:
        yield Finding("instructions", "unknown", "missing", "only Linux says which there are")
    else:
        found = [feature for feature in FEATURES if feature in cpu.features]
        yield Finding("instructions", " ".join(found) or "none of those that lowbit looks for")
    if chosen := chosen_processor():
        yield Finding("decides as", f"{chosen.name} ({CPU_VARIABLE}): {chosen.vendor}, {chosen.variant}")
    of = "" if cpu.cores == cpu.machine_cores else f" of {cpu.machine_cores}"
    yield Finding("cores", f"{cpu.cores}{of} usable")
    yield Finding("memory", f"{cpu.memory / 2**30:.1f} GiB usable")


def _compiler() -> Finding:
    cost = "The C++ kernels cannot be built here. Install g++ 10 or clang++ 11, or later"
    chosen = os.environ.get("CXX")  # it alone, as when the kernels are built
    for name in [chosen] if chosen else ["g++", "clang++", "c++"]:
        path = shutil.which(name)
        if path is None:
            continue
        version = _run([path, "--version"])
        if version is None or version.returncode:
            return Finding("C++ compiler", name, "broken", f"{name} --version fails. {cost}")
        first = version.stdout.splitlines()[0] if version.stdout else name
        trial = _run([path, "-fsyntax-only", "-x", "c++", "-"], _TRY_TO_COMPILE)
        if trial is None or trial.returncode:
            return Finding("C++ compiler", first, "broken", f"it cannot compile a small program. {cost}")
        return Finding("C++ compiler", first)
    why = f"CXX={chosen} is not there. {cost}" if chosen else cost
    return Finding("C++ compiler", "none", "missing", why)


def _kernels() -> Finding:
    cost = "products of integers are simulated in floats and quantizing takes several times as long"
    if reason := why_missing():
        return Finding("C++ kernels", "none", "missing", f"{cost}; {reason}")
    try:
        found = kernels()
    except LowbitError as error:
        return Finding("C++ kernels", "not usable", "broken", str(error))
    assert found is not None  # else why_missing has said why
    value = f"built, using {found.variant} (of {', '.join(found.variants)})"
    if platform.machine() in _TESTED_ON:
        return Finding("C++ kernels", value)
    advice = f"they are not tested on {platform.machine()} yet: run the tests in tests/kernels"
    return Finding("C++ kernels", f"{value}, untested", advice=advice)


def _run(command: list[str], text: str = "") -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _paddle() -> Iterator[Finding]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Paddle's import advises about tools that lowbit does not use
            build = paddle_build()
    except (ImportError, OSError) as error:
        yield Finding("Paddle", "does not load", "broken", f"nothing works without it ({error})")
        return
    kind = "CPU build" if build.cuda is None else f"CUDA {build.cuda}, cuDNN {build.cudnn}"
    yield Finding("Paddle", f"{build.version} ({kind})")
    yield _gpu(build.cuda, build.cards)
    yield Finding(
        "threads",
        f"{math_threads()} for training (OMP_NUM_THREADS), {hardware_info().cores} for inference by default",
    )
    fix = decide_amd_fix()
    slow = fix.status in (FixStatus.SWITCHED_OFF, FixStatus.IMPOSSIBLE)
    advice = "matrix products take a slow path; ResNet18 was measured 2.7 times slower" if slow else ""
    yield Finding("matrix library", fix.message, "missing" if slow else "ok", advice)
    yield _paddle_inference(build.version)
    from lowbit.deploy.onnx import resolve_target

    yield Finding("export target", f"{resolve_target(None)} (lowbit export --target names another)")


def _gpu(cuda: str | None, cards: int) -> Finding:
    if cards:
        return Finding("GPU", f"{cards} card{'s' * (cards > 1)}")
    from lowbit.accel.bf16_products import why_not

    slow = "bf16 is fast and fp16 emulated" if why_not() is None else "bf16 and fp16 are emulated, slowly"
    cost = f"training runs on the CPU, where {slow}"
    if cuda is None:
        return Finding(
            "GPU", "not in this Paddle build", "missing", f"{cost}; install paddlepaddle-gpu for a card"
        )
    return Finding("GPU", "Paddle sees no card", "missing", f"{cost}; check the driver with nvidia-smi")


def _paddle_inference(version: str) -> Finding:
    try:
        from paddle import inference  # noqa: F401
        from paddle.base import core
    except ImportError as error:
        return Finding(
            "Paddle Inference", "does not load", "broken", f"exported models cannot be run ({error})"
        )
    if core.is_compiled_with_onednn():
        return Finding("Paddle Inference", f"{version} with oneDNN")
    return Finding(
        "Paddle Inference", version, "missing", "built without oneDNN: inference on the CPU is slower"
    )


def _digits() -> Finding:
    """scikit-learn is not imported: lowbit only reads the digits inside its folder."""
    if is_installed("sklearn"):
        return Finding("scikit-learn", metadata.version("scikit-learn"))
    cost = "no handwritten digits, which `lowbit demo` and `-c digits` train on"
    return Finding("scikit-learn", "not installed", "missing", f"{cost}; {install_command('sklearn')}")


def _package(title: str, module: str, cost: str, install: str | None = None) -> Finding:
    """Imports it, since an installed package whose libraries are missing is as good as none."""
    command = install_command(install or module)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            return Finding(title, "not installed", "missing", f"{cost}; {command}")
        return Finding(title, "does not load", "broken", f"{cost}; it lacks the module {error.name}")
    except (
        ImportError,
        OSError,
        AttributeError,
    ) as error:  # what packages raise when a part of them is missing
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        again = command.replace("install", "install --force-reinstall", 1)
        return Finding(title, "does not load", "broken", f"{cost} ({reason}); {again}")
    return Finding(title, _version(loaded, install or module))


def _version(module: object, distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # installed under another name, such as onnxruntime-gpu
        return str(getattr(module, "__version__", "version unknown"))


_SIGNS = {"ok": Text("ok", "green"), "missing": Text("-", "yellow"), "broken": Text("!", "bold red")}


def doctor(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only missing or broken items.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show processor, compiler, Paddle and engines of this machine, and the effect of missing parts.

    **Examples**: `lowbit doctor`, or for a bug report `lowbit doctor --json`
    """
    findings = list(checkup())
    if as_json:
        typer.echo(json.dumps([finding.as_dict() for finding in findings], indent=2, ensure_ascii=False))
    else:
        shown = [finding for finding in findings if finding.status != "ok"] if quiet else findings
        print_findings(shown, Console())


def print_findings(findings: list[Finding], console: Console) -> None:
    """The table, with advice under the finding it belongs to."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(justify="center")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        # Text and not markup: a compiler's version may hold square brackets.
        table.add_row(_SIGNS[finding.status], finding.name, Text(finding.value))
        if finding.advice:
            table.add_row("", "", Text(finding.advice, "yellow"))
    console.print(table)
    broken = [finding.name for finding in findings if finding.status == "broken"]
    if broken:
        console.print(Text(f"needs repair: {', '.join(broken)}", "bold red"))
