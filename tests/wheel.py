"""`make test-wheel`: installs the wheel into an empty environment and trains there, from an empty folder.

It needs a network, or a folder of wheels in PIP_FIND_LINKS. No extra is installed: `verify` must say that
OpenVINO was left out, and what needs scikit-learn must name `lowbit[demo]`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIBRARY = "lowbit/kernels/liblowbit_kernels.so"
LIMIT = 1.2e9  # bytes of the base install
PYTHON = """\
import lowbit, paddle
net = lowbit.quantize(paddle.vision.models.LeNet(), "qat_w4a4", data=[paddle.randn([4, 1, 28, 28])])
lowbit.export(net, "lenet", example=paddle.randn([4, 1, 28, 28]))
print(lowbit.verify(net, "lenet", [paddle.randn([4, 1, 28, 28])], latency=False))
"""


def check(wheel: Path, folder: Path) -> None:
    """Install the wheel into `folder`/venv and use it in `folder`/empty."""
    assert LIBRARY in zipfile.ZipFile(wheel).namelist(), f"{wheel.name} holds no {LIBRARY}"
    python = folder / "venv/bin/python"
    empty = folder / "empty"
    empty.mkdir()
    _run([sys.executable, "-m", "venv", str(folder / "venv")], empty)
    _run([str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(wheel)], empty)
    size = sum(path.lstat().st_size for path in (folder / "venv").rglob("*") if not path.is_symlink())
    print(f"environment: {size / 1e9:.2f} GB")
    assert size <= LIMIT, f"the base install takes {size / 1e9:.2f} GB, more than {LIMIT / 1e9} GB"

    lowbit = [str(python), "-m", "lowbit"]
    doctor = _run([*lowbit, "doctor"], empty)
    assert "built, using" in doctor and "lowbit[openvino]" in doctor and "lowbit[demo]" in doctor, doctor
    _run([*lowbit, "data", "lite", "my_images"], empty)
    options = ["--recipe", "qt_w4a4g4", "--epochs", "1", "-o", "Arch.name=resnet20", "--output-dir", "run"]
    _run([*lowbit, "train", "-c", "my_images", *options], empty)
    _run([*lowbit, "export", "run"], empty)
    # Agreement is not the point here: a network after one epoch on 32 images may miss the limit.
    verified = _run([*lowbit, "verify", "run", "--no-latency", "--limit", "0"], empty)
    assert "openvino is not installed and is skipped: pip install 'lowbit[openvino]'" in verified, verified
    assert "ONNX Runtime" in verified
    demo = _run([*lowbit, "demo"], empty, code=2)
    assert "pip install 'lowbit[demo]'" in demo, demo
    assert "lowbit[openvino]" in _run([str(python), "-c", PYTHON], empty)


def _run(command: list[str], folder: Path, code: int = 0) -> str:
    print("$", *command[-4:], flush=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == code, f"exit code {done.returncode}:\n{text[-3000:]}"
    return text


if __name__ == "__main__":
    newest = max(Path(sys.argv[1]).glob("lowbit-*.whl"), key=lambda path: path.stat().st_mtime)
    with tempfile.TemporaryDirectory(prefix="lowbit-wheel-") as temporary:
        check(newest.resolve(), Path(temporary))
    print(f"{newest.name}: all passed")
