"""Builds the C++ kernels with the package; everything else about it is in pyproject.toml.

Without a compiler the installation succeeds all the same: lowbit then computes with Paddle's own operators,
and says so in `lowbit doctor` and at the start of a run. LOWBIT_REQUIRE_KERNELS=1, which
`make wheel` sets, makes it an error.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

_BUILD = Path(__file__).parent / "lowbit" / "kernels" / "build.py"


def _load_build() -> ModuleType:
    """lowbit/kernels/build.py by its path: importing lowbit would need Paddle, which a build lacks."""
    spec = importlib.util.spec_from_file_location("lowbit_kernels_build", _BUILD)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = _load_build()


class BuildKernels(build_ext):
    """A plain shared library in the place of an extension module: it is called through ctypes."""

    def build_extension(self, ext: Extension) -> None:
        try:
            build.compile_library(Path(self.get_ext_fullpath(ext.name)))
        except build.BuildError as error:
            if os.environ.get("LOWBIT_REQUIRE_KERNELS") == "1":
                raise SystemExit(f"lowbit: the C++ kernels cannot be built ({error})") from None
            print(f"lowbit: installed without its C++ kernels ({error})", file=sys.stderr)

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")[:-1]) / build.LIBRARY.name)


class Wheel(bdist_wheel):
    """One wheel for every Python: the library does not use Python's C interface."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def _sources(suffix: str) -> list[str]:
    """Named here so that they are part of a source distribution."""
    return [str(path.relative_to(Path(__file__).parent)) for path in build.sources(suffix)]


setup(
    ext_modules=[
        Extension(
            "lowbit.kernels.liblowbit_kernels",
            sources=_sources(".cpp"),
            depends=_sources(".h"),
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel},
)
