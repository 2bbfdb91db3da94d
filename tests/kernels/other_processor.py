"""`make test-arm`: the kernels' tests on a 64-bit ARM processor, which qemu imitates; on Debian.

Debian's Python for ARM and the last Paddle with wheels for it are unpacked into build/aarch64, once, and the
kernels are compiled with Debian's cross compiler: apt-get install qemu-user g++-aarch64-linux-gnu

    python -m tests.kernels.other_processor            # tests/kernels
    python -m tests.kernels.other_processor tests/nn/test_qt_autograd.py -k groups
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lowbit.kernels.build import compile_library
from tests.support.sanitizer_tests import wanted_tests

FOLDER = Path("build/aarch64")
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
TOOLS = "on Debian: apt-get install qemu-user g++-aarch64-linux-gnu"
DEBIAN_PACKAGES = ("python3", "libstdc++6", "libgomp1")
# Paddle 3.3, which lowbit asks for, has no wheels for ARM; and what the tests import, the engines left out.
WHEELS = (
    *("paddlepaddle==3.2.2", "setuptools", "numpy>=2.1,<2.4", "psutil", "pydantic", "pyyaml", "rich"),
    *("safetensors", "typer", "hypothesis>=6.100", "pytest>=8"),
)
STRICT = ("-Wall", "-Wextra", "-Werror")


def main(arguments: list[str]) -> int:
    """Unpack, compile, test; the exit code is pytest's."""
    for tool in (COMPILER, EMULATOR, "apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            print(f"there is no {tool}; {TOOLS}", file=sys.stderr)
            return 2
    root, site = FOLDER.absolute() / "root", FOLDER.absolute() / "site"
    if not (FOLDER / "ready").is_file():
        print("fetching Python and Paddle for ARM: a minute or two", flush=True)
        _unpack_debian(root)
        _unpack_wheels(root, site)
        (FOLDER / "ready").touch()
    python = [EMULATOR, "-L", str(root), str(_python(root))]
    environment = {**os.environ, "PYTHONPATH": f"{Path.cwd()}:{site}", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        print("compiling", flush=True)
        os.environ["CXX"] = COMPILER
        library = compile_library(Path(folder) / "liblowbit_kernels.so", extra=STRICT)
        # How they are compiled is not the kernels' matter, and the compilers here are for the host.
        wanted = wanted_tests(arguments, "tests/kernels", "--ignore=tests/kernels/test_build.py")
        command = [*python, "-m", "pytest", f"--kernels={library}", "-p", "no:cacheprovider", *wanted]
        print("testing on", subprocess.check_output([*python, "-m", "platform"], text=True), flush=True)
        return subprocess.run(command, env=environment, check=False).returncode


def _unpack_debian(root: Path) -> None:
    """The packages and all that they need, of the host's release; the host's own are left alone."""
    state = FOLDER.absolute() / "apt"
    for folder in (root, state / "lists/partial", state / "cache/archives/partial"):
        folder.mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    (state / "apt.conf").write_text(
        f'APT::Architecture "arm64"; APT::Architectures {{"arm64";}}; APT::Install-Recommends "false";\n'
        f'Dir::State "{state}"; Dir::State::status "{state}/status"; Dir::Cache "{state}/cache";\n'
    )
    environment = {**os.environ, "APT_CONFIG": str(state / "apt.conf")}
    for command in (["update"], ["install", "--yes", "--download-only", *DEBIAN_PACKAGES]):
        subprocess.run(["apt-get", "--quiet", "--quiet", *command], env=environment, check=True)
    for package in sorted((state / "cache/archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", str(package), str(root)], check=True)


def _unpack_wheels(root: Path, site: Path) -> None:
    newest = int(platform.libc_ver()[1].split(".")[1])
    tags = ["manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in range(17, newest + 1))]
    version = _python(root).name.removeprefix("python")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-warn-conflicts"]
    command += ["--only-binary=:all:", "--no-compile", *(f"--platform={tag}" for tag in tags)]
    subprocess.run([*command, f"--python-version={version}", f"--target={site}", *WHEELS], check=True)


def _python(root: Path) -> Path:
    return (root / "usr/bin/python3").resolve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
