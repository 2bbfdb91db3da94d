"""What a repository's scripts do, in milliseconds; STAND_IN says what goes wrong.

python stand_in.py train|eval|export|infer --key=value ...
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np


def train(options: dict[str, str], fault: str) -> None:
    folder = Path(options["--output-dir"])
    folder.mkdir(parents=True, exist_ok=True)
    if fault == "hang":
        _hang()
    if fault == "kill":
        os.kill(os.getpid(), 9)
    loss = "nan" if fault == "loss" else "0.5"
    print(f"[Epoch 0, iter: 1] top1: 0.5, lr: 0.1, loss: {loss}, avg_ips: 1.0 images/sec.")
    weights = np.arange(100, dtype=np.float32)
    if fault == "weights":
        weights[3] = np.nan
    if fault == "disk":
        weights = np.zeros(1 << 20, np.float32)
    if fault != "checkpoint":
        (folder / "latest.pdparams").write_bytes(pickle.dumps({"fc.weight": weights}))
    if fault == "orphan":
        _leave_a_process()


def evaluate(options: dict[str, str], fault: str) -> None:
    if fault == "remove":
        Path(options["--pretrained"]).unlink()
    print(" * Acc@1 nan" if fault == "accuracy" else " * Acc@1 0.500 Acc@5 1.000")


def export(options: dict[str, str], fault: str) -> None:
    folder = Path(options["--save-inference-dir"])
    if fault != "export":
        for suffix in (".json", ".pdiparams"):
            (folder / f"inference{suffix}").write_text("a stand-in", "utf-8")


def infer(options: dict[str, str], fault: str) -> None:
    lines = {
        "garbage": "\x00\x1b[31mclass???",
        "class": "class_id: 2, prob: 0.9",
        "prob": "class_id: 1, prob: nan",
    }
    print(f"image_name: {options['--img-path']}, {lines.get(fault, 'class_id: 1, prob: 0.700')}")


def _hang() -> None:
    """With a child in a session of its own that does not listen, either."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    Path(os.environ["STAND_IN_PIDS"]).write_text(f"{os.getpid()} {child.pid}", "utf-8")
    print("hanging", flush=True)
    time.sleep(600)


def _leave_a_process() -> None:
    code = "import time; time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    Path(os.environ["STAND_IN_PIDS"]).write_text(str(child.pid), "utf-8")


if __name__ == "__main__":
    words = dict(word.partition("=")[::2] for word in sys.argv[2:])
    kinds = {"train": train, "eval": evaluate, "export": export, "infer": infer}
    kinds[sys.argv[1]](words, os.environ.get("STAND_IN", ""))
