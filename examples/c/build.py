"""Compile classify.c against lowbit's runtime, and classify some random images with an exported model.

python examples/c/build.py out/inference.onnx
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import lowbit
from lowbit.kernels.build import LIBRARY
from lowbit.runtime import HEADERS


def build(folder: Path) -> Path:
    """The program, which finds the library where it is installed."""
    program = folder / "classify"
    subprocess.run(
        [
            *("cc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(Path(__file__).parent / "classify.c")),
            *(f"-I{HEADERS}", str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}"),
        ],
        check=True,
    )
    return program


def main(model: str) -> None:
    """The same classes in C and in Python."""
    engine = lowbit.Engine(model)
    shape = [size or 2 for size in engine.input_shapes[0]]
    images = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images.tofile(folder / "images.f32")
        command = [build(folder), model, folder / "images.f32", *shape]
        print(
            subprocess.run(list(map(str, command)), check=True, text=True, capture_output=True).stdout, end=""
        )
    for number, row in enumerate(engine(images)):
        print(f"Python, image {number}: class {row.argmax()}, {row.max():.9g}")


if __name__ == "__main__":
    main(sys.argv[1])
