"""`make test-avx2`: tests of engines, kernels and targets with AVX2 alone, on a processor that qemu imitates.

Engines that ask the processor find no VNNI, AVX-512 or AMX; lowbit is told by LOWBIT_CPU, since /proc/cpuinfo
stays the host's. On Debian: apt-get install qemu-user. Processes that a test starts run on the host.

    python -m tests.kernels.avx2_only            # what is in GROUPS, side by side
    python -m tests.kernels.avx2_only tests/deploy/onnx -k linear
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.sanitizer_tests import wanted_tests

EMULATOR = "qemu-x86_64"
# Without what qemu cannot imitate: it would say so for every thread.
PROCESSOR = "Haswell,-hle,-rtm,-invpcid,-pcid,-x2apic,-tsc-deadline"
# Two processes: xdist's workers would run on the host. Not all kernels: every machine tests their variants
# for AVX2, and only the choice of the variant is another one here.
GROUPS = (
    ("tests/deploy/onnx",),
    (
        *("tests/machine", "tests/kernels/test_library.py", "tests/kernels/test_gemm.py"),
        *("tests/deploy/engines/test_onnx_engines.py", "tests/deploy/engines/test_onnxruntime_engine.py"),
        *("tests/deploy/engines/test_openvino_engine.py", "tests/deploy/paddle_int8"),
        *("tests/deploy/verify", "tests/cli/test_verify.py"),
    ),
)


def main(arguments: list[str]) -> int:
    """Test; the exit code is the first of pytest's that is not 0."""
    if platform.machine() not in ("x86_64", "AMD64") or not shutil.which(EMULATOR):
        print(f"this needs an x86-64 machine with {EMULATOR}: apt-get install qemu-user", file=sys.stderr)
        return 2
    site = sysconfig.get_paths()["purelib"]  # a link to the interpreter would not find it under qemu
    environment = os.environ | {
        "PYTHONPATH": f"{Path.cwd()}:{site}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "LOWBIT_CPU": "intel-avx2",
        "CI": "true",  # OpenVINO's telemetry would fork, which qemu does not survive
    }
    python = [EMULATOR, "-cpu", PROCESSOR, str(Path(sys.executable).resolve())]
    command = [*python, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", "-rs"]
    calls = {tuple(wanted_tests(arguments, *group)) for group in GROUPS}  # one, where tests are named
    running = [subprocess.Popen([*command, *tests], env=environment) for tests in calls]
    return max(process.wait() for process in running)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
