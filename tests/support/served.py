"""An engine whose answers are easy to check, and a server with it."""

from __future__ import annotations

import threading
import time

import numpy as np

from lowbit.deploy.engines import EngineOptions, Signature, TensorInfo
from lowbit.errors import LowbitError
from lowbit.serve import ServedModel


class Doubling:
    """Answers twice its input, and remembers the sizes of its batches."""

    name = "Doubling 1.0"
    options = EngineOptions(device="cpu", threads=1)
    image_shape = None

    def __init__(self, seconds: float = 0.0) -> None:
        self.batches: list[int] = []
        self.seconds = seconds
        self.threads: set[int] = set()

    def run_all(self, inputs):
        self.batches.append(len(inputs[0]))
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        if np.isnan(inputs[0]).any():
            raise LowbitError("it cannot compute NaN")
        return [2 * inputs[0]]

    def signature(self) -> Signature:
        return Signature((TensorInfo("x", np.dtype("float32"), (-1, 3)),), ("y",))


def doubling_model(*engines: Doubling) -> ServedModel:
    info = TensorInfo("y", np.dtype("float32"), (-1, 3))
    return ServedModel("twice", engines, engines[0].signature().inputs, (info,), joins=True)
