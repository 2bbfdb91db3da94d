"""Training, all engines and signals in one process, one that ends as it should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPT = """
import gc, os, signal, sys
from pathlib import Path

import numpy as np
from lowbit.cli.app import main
from lowbit.config import validate
from lowbit.deploy import OpenVinoEngine
from lowbit.training.loop import train
from tests.support.small_onnx import SHAPE, small_onnx
from tests.support.runs import tiny_values

folder = Path(sys.argv[1])
received = []
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background is started without
signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))


def send_signals():
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGUSR1)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("SIGINT was not handled")
        except KeyboardInterrupt:
            received.append(signal.SIGINT)


def train_and_verify(name):
    values = tiny_values(folder / name, image_shape=[3, 32, 32], epochs=1)
    values["Recipe"] = {"weight_bits": 7}
    train(validate(values, {}, "tiny"))
    send_signals()
    sys.argv = ["lowbit", "verify", str(folder / name), *"--no-latency --images 64 --limit 0".split()]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, ended.code
    gc.collect()
    send_signals()


train_and_verify("first")
# Two engines that are freed in the order they were made
images = np.zeros((1, *SHAPE), np.float32)
engines = [OpenVinoEngine(small_onnx(folder / f"{number}.onnx")) for number in range(2)]
for engine in engines:
    engine.run(images)
while engines:
    del engines[0]
    gc.collect()
    send_signals()
train_and_verify("second")
assert len(received) == 6 * 6, received
print("ended well")
"""


def test_train_verify_signals_train(tmp_path):
    """Each openvino.Core that is freed puts back a signal stack: with several, signals ended the process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.returncode} {signal.strsignal(abs(done.returncode))}\n{done.stderr}"
    assert done.stdout.endswith("ended well\n")
