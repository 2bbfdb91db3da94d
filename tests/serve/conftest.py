"""A server on the loopback with an engine whose answers are easy to check."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from lowbit.serve import Limits, ServedModel, make_app

uvicorn = pytest.importorskip("uvicorn", reason="lowbit[serve] is not installed")


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


@pytest.fixture
def serving() -> Callable[..., object]:
    return running
