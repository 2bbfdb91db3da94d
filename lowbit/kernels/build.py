"""Compiling csrc/ into a plain shared library; run by `pip install`, through setup.py.

It must not import lowbit or Paddle: neither is there yet while a package is being built.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
LIBRARY = Path(__file__).parent / "liblowbit_kernels.so"

# For any processor of the family: csrc/common/cpu.h explains how newer instruction sets are added.
# No option lets the compiler round differently: multiplications and additions are not fused, and only the
# floating-point trap flags and errno, which no code here reads, are given up.
OPTIONS = (
    *("-std=c++17", "-O3", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno"),
    *("-fPIC", "-shared", "-fvisibility=hidden", "-pthread"),
)
_SECONDS = 900  # half a minute on an idle machine


class BuildError(Exception):
    """No compiler, or one that fails; the message says which."""


def sources(suffix: str = "") -> list[Path]:
    """The files of csrc/ and its folders, sorted; with a suffix, such as ".cpp", only those that have it."""
    return sorted(path for path in SOURCES.rglob(f"*{suffix}") if path.is_file())


def fingerprint() -> str:
    """A hash of the sources and options: a library with another one is out of date."""
    digest = hashlib.sha256(" ".join(OPTIONS).encode())
    for path in sources():
        digest.update(path.relative_to(SOURCES).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def compile_library(target: Path = LIBRARY, *, extra: Sequence[str] = ()) -> Path:
    """Compile the library with $CXX, g++ or clang++; raises a BuildError when that fails.

    `extra` are options that do not change results: warnings, sanitizers.

    >>> compile_library(Path("/tmp/liblowbit_kernels.so"), extra=["-Wall"])
    """
    compiler = _compiler()
    define = f'-DLOWBIT_FINGERPRINT="{fingerprint()}"'
    target.parent.mkdir(parents=True, exist_ok=True)
    # Replaced at the end: a process that has loaded the old library keeps it undisturbed.
    new = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        done = subprocess.run(
            [compiler, *OPTIONS, *extra, define, f"-I{SOURCES}", *map(str, sources(".cpp")), "-o", str(new)],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode:
            raise BuildError(f"{compiler} failed: {done.stderr.strip()}")
        os.replace(new, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{compiler} could not be run: {error}") from None
    finally:
        new.unlink(missing_ok=True)
    return target


def _compiler() -> str:
    chosen = os.environ.get("CXX")
    for name in [chosen] if chosen else ["g++", "clang++", "c++"]:
        if found := shutil.which(name):
            return found
    raise BuildError(f"no C++ compiler ({chosen or 'g++, clang++'})")
