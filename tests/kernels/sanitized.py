"""`make test-sanitized`: the kernels' tests under AddressSanitizer and UndefinedBehaviorSanitizer.

The kernels are compiled once more, into a folder of their own, and the tests that call them run with that
library. Before, a call that reads beyond its tensor must be caught: one that sees nothing says nothing.

    python -m tests.kernels.sanitized            # tests/kernels, and the quantizing that numerics calls
    python -m tests.kernels.sanitized tests/nn/test_qt_autograd.py -k groups
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import paddle

from lowbit.kernels.build import compile_library
from tests.support.sanitizer_tests import wanted_tests

OPTIONS = (
    *("-O1", "-g", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
)
_OVERRUN = """
import sys, numpy as np
from pathlib import Path
from lowbit.kernels import library
from lowbit.kernels.quantization import Layout, Levels, quantize_kernels
library.LIBRARY = Path(sys.argv[1])
x, y, scale = np.zeros(64, "f4"), np.zeros(64, "f4"), np.ones(1, "f4")
layout, levels = Layout(1, 1, int(sys.argv[2])), Levels(-8, 7, True)
quantize_kernels().quantize(x.ctypes.data, y.ctypes.data, scale.ctypes.data, None, layout, levels)
"""


def main(arguments: list[str]) -> int:
    """Build, prove that overruns are seen, test; the exit code is pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        print("compiling with sanitizers: a minute or two", flush=True)
        library = compile_library(Path(folder) / "liblowbit_kernels.so", extra=OPTIONS)
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(_runtime(name) for name in ("libasan.so", "libubsan.so")),
            # Python and Paddle keep memory until the end, Paddle frees some in another way than it got it,
            # and tests ask for more memory than there is
            "ASAN_OPTIONS": "detect_leaks=0:alloc_dealloc_mismatch=0:allocator_may_return_null=1",
            # Under the sanitizer, a library that Paddle opens by name is not looked for beside Paddle
            "LD_LIBRARY_PATH": str(Path(paddle.__file__).parent / "libs"),
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        for length, caught in ((64, False), (65, True)):
            probe = [sys.executable, "-c", _OVERRUN, str(library), str(length)]
            done = subprocess.run(probe, env=environment, capture_output=True, text=True, check=False)
            if ("heap-buffer-overflow" in done.stderr) != caught or (done.returncode != 0) != caught:
                print(f"the sanitizer does not work here:\n{done.stderr}", file=sys.stderr)
                return 1
        print("an overrun of one value is caught; testing", flush=True)
        wanted = wanted_tests(arguments, "tests/kernels", "tests/runtime", "tests/numerics/test_fused.py")
        command = [sys.executable, "-m", "pytest", f"--kernels={library}", "-p", "no:cacheprovider", *wanted]
        return subprocess.run(command, env=environment, check=False).returncode


def _runtime(name: str) -> str:
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
