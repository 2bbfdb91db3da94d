"""lowbit trains neural networks in few bits on PaddlePaddle and carries them, verified, to deployment."""

from __future__ import annotations

from typing import Any

from lowbit.errors import LowbitError
from lowbit.version import __version__

__all__ = ["PACT", "QAT", "LowbitError", "__version__"]


def __getattr__(name: str) -> Any:
    # Not above: importing lowbit stays fast, Paddle comes with the first use.
    if name in ("PACT", "QAT"):
        from lowbit.compat import paddleslim

        return getattr(paddleslim, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
