"""benchmarks/avx2_only.py: a patched library finds AVX2 alone, and gives up nothing else."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys

import pytest

from benchmarks.avx2_only import _patch, main
from lowbit.machine.cpu import hardware_info

_ASKING = """
#include <cpuid.h>
int bit(int leaf, int part, int which, int number) {
  unsigned words[4];
  __cpuid_count(leaf, part, words[0], words[1], words[2], words[3]);
  return (words[which] >> number) & 1;
}
"""
AVX2, AVX512F, VNNI = (7, 0, 1, 5), (7, 0, 1, 16), (7, 0, 2, 11)

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not all(map(shutil.which, ("cc", "objdump", "readelf"))),
    reason="needs x86-64 with a C compiler and binutils",
)


@pytest.fixture
def libraries(tmp_path):
    """A library that executes CPUID, and its patched copy."""
    source, library, patched = (tmp_path / name for name in ("asking.c", "asking.so", "patched.so"))
    source.write_text(_ASKING)
    subprocess.run(["cc", "-O1", "-fPIC", "-shared", str(source), "-o", str(library)], check=True)
    _patch(library, patched)
    return library, patched


def test_a_patched_library_finds_avx2_and_nothing_newer(libraries, tmp_path, monkeypatch):
    library, patched = libraries
    real = ctypes.CDLL(str(library))
    monkeypatch.setattr("benchmarks.avx2_only.PACKAGES", ())  # copying the engines takes minutes
    monkeypatch.setenv("AVX2_ONLY_FOLDER", str(tmp_path / "held"))
    # faulthandler, which pytest uses too, must not take the signal away.
    code = f"""
import ctypes, faulthandler
faulthandler.enable()
asking = ctypes.CDLL({str(patched)!r})
assert asking.bit(*{AVX2}) == {real.bit(*AVX2)}
assert asking.bit(*{AVX512F}) == asking.bit(*{VNNI}) == 0
"""
    assert main(["-c", code]) == 0
    assert real.bit(*AVX512F) == hardware_info().has("avx512f")


def test_without_the_preloaded_library_a_patched_one_stops(libraries):
    code = f"import ctypes; ctypes.CDLL({str(libraries[1])!r}).bit(7, 0, 1, 5)"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False, capture_output=True)
    assert done.returncode < 0
