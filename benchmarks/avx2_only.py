"""Run a Python command on this processor as on one with AVX2 alone, at full speed.

ONNX Runtime and OpenVINO ask the processor what it has by the instruction CPUID and cannot be told otherwise.
This script copies the libraries that ask, replaces CPUID in the copies by an undefined instruction, and
preloads avx2_only.c, whose signal handler answers as an AVX2 processor would. Paddle's libraries are treated
alike, lowbit is told by LOWBIT_CPU. The copies are kept in a folder and reused.

    python benchmarks/avx2_only.py benchmarks/peers.py --rounds 5
    python benchmarks/avx2_only.py -m pytest tests/deploy/onnx -k linear
    python benchmarks/avx2_only.py            # only says what the engines find

It needs x86-64 Linux, a C compiler and objdump (binutils); the first run takes minutes. `make test-avx2`
emulates the processor instead: far slower, but it also catches instructions executed without asking.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from lowbit.errors import LowbitError

PACKAGES = ("onnxruntime", "openvino", "paddle")
# Libraries that hold no code choosing kernels are linked, not copied; the largest of them would cost minutes.
_ASKING = re.compile(
    r"onnxruntime_pybind11_state|openvino_intel_cpu_plugin|libopenvino\.so|libdnnl|libphi_core|libpaddle"
)
_CPUID, _UD2 = b"\x0f\xa2", b"\x0f\x0b"
_CALL = re.compile(rb"^\s*([0-9a-f]+):\s+0f a2\s+cpuid", re.MULTILINE)
_REPORT = """
import onnxruntime, numpy as np
from lowbit.machine.cpu import cpu_info
print("lowbit:", cpu_info().model, "VNNI" if cpu_info().has_vnni else "no VNNI")
try:
    import openvino
    print("OpenVINO:", openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
except ImportError:
    pass
"""


def held_back_packages(folder: Path) -> list[str]:
    """Mirror the engines' packages under `folder`, their libraries patched; returns the names of those found.

    >>> held_back_packages(Path("/tmp/avx2"))
    ['onnxruntime', 'openvino', 'paddle']
    """
    found = []
    for package in PACKAGES:
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            continue
        source = Path(spec.submodule_search_locations[0])
        if not (folder / package / ".complete").is_file():
            _mirror(source, folder / package)
            (folder / package / ".complete").touch()
        found.append(package)
    return found


def _mirror(source: Path, target: Path) -> None:
    """The same tree of folders, its files as links, but for the libraries that ask the processor."""
    shutil.rmtree(target, ignore_errors=True)
    for path in source.rglob("*"):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        elif path.suffix != ".pyc":
            copy.parent.mkdir(parents=True, exist_ok=True)
            if _ASKING.search(path.name) and ".so" in path.name:
                _patch(path, copy)
            else:
                copy.symlink_to(path)


def _patch(library: Path, copy: Path) -> None:
    """Copy a library with UD2 in the place of every CPUID that the disassembler finds."""
    code = subprocess.run(["objdump", "-d", "-w", str(library)], capture_output=True, check=True).stdout
    addresses = [int(found, 16) for found in _CALL.findall(code)]
    data = bytearray(library.read_bytes())
    for address in addresses:
        at = address + _file_offset(library, address)
        if data[at : at + 2] != _CPUID:
            raise LowbitError(f"{library.name}: no CPUID at {address:#x}; its segments are not understood")
        data[at : at + 2] = _UD2
    copy.write_bytes(data)
    print(f"avx2_only: {library.name}: {len(addresses)} CPUID", file=sys.stderr)


def _file_offset(library: Path, address: int) -> int:
    """What to add to an address in memory to get its place in the file."""
    for offset, start, size in _segments(library):
        if start <= address < start + size:
            return offset - start
    raise LowbitError(f"{library.name}: no segment holds {address:#x}")


def _segments(library: Path) -> list[tuple[int, int, int]]:
    """The loaded segments of an ELF file: offset in the file, address, size."""
    lines = subprocess.run(
        ["readelf", "-lW", str(library)], capture_output=True, check=True, text=True
    ).stdout.splitlines()
    fields = (line.split() for line in lines)
    return [(int(f[1], 16), int(f[2], 16), int(f[4], 16)) for f in fields if f and f[0] == "LOAD"]


def environment(folder: Path) -> dict[str, str]:
    """The environment in which a command finds an AVX2 processor; makes what is missing under `folder`."""
    if platform.machine() != "x86_64" or not all(map(shutil.which, ("cc", "objdump", "readelf"))):
        raise LowbitError("avx2_only needs x86-64 Linux with a C compiler, objdump and readelf (binutils)")
    folder.mkdir(parents=True, exist_ok=True)
    preload = folder / "avx2_only.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(
        ["cc", "-O2", "-fPIC", "-shared", str(source), "-o", str(preload), "-ldl"], check=True, timeout=120
    )
    held_back_packages(folder)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", str(Path.cwd())))))
    return os.environ | {
        "PYTHONPATH": path,
        "LD_PRELOAD": str(preload),
        "LOWBIT_CPU": os.environ.get("LOWBIT_CPU", "amd-avx2"),
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
    }


def main(arguments: list[str]) -> int:
    """Run `python ARGUMENTS` held back; the exit code is the command's."""
    folder = Path(os.environ.get("AVX2_ONLY_FOLDER", Path(tempfile.gettempdir()) / "lowbit-avx2-only"))
    command = [sys.executable, *(arguments or ["-c", _REPORT])]
    return subprocess.run(command, env=environment(folder), check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LowbitError as error:
        sys.exit(f"avx2_only: {error}")
