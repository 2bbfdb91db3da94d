"""A server on the loopback with an engine whose answers are easy to check."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from lowbit.deploy.engines import EngineOptions, Signature, TensorInfo
from lowbit.errors import LowbitError
from lowbit.serve import Limits, ServedModel, make_app

uvicorn = pytest.importorskip("uvicorn", reason="lowbit[serve] is not installed")


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


@contextmanager
def running(model: ServedModel, limits: Limits | None = None) -> Iterator[str]:
    """The model's URL, while the server runs in a thread."""
    config = uvicorn.Config(
        make_app(model, limits), port=0, log_level="error", lifespan="on", timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        for _ in range(500):
            if server.started:
                break
            time.sleep(0.02)
        assert server.started
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
