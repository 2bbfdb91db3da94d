"""lowbit quantizes, trains and deploys neural networks in few bits on PaddlePaddle.

import lowbit

net = lowbit.quantize(net, "qat_w4a4", data=loader)
...                                         # train as usual
lowbit.export(net, "out/", example=x)
print(lowbit.verify(net, "out/", loader))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowbit.errors import LowbitError
from lowbit.version import __version__

if TYPE_CHECKING:
    from lowbit.api.accelerate import accelerate
    from lowbit.api.advise import advise
    from lowbit.api.analysis import analyze
    from lowbit.api.deploy import export
    from lowbit.api.quantize import calibrate, quantize
    from lowbit.api.verify import verify
    from lowbit.compat.paddleslim import PACT, QAT
    from lowbit.nn.fused_blocks import fuse
    from lowbit.recipe import Recipe
    from lowbit.runtime import Engine

__all__ = [
    "PACT",
    "QAT",
    "Engine",
    "LowbitError",
    "Recipe",
    "__version__",
    "accelerate",
    "advise",
    "analyze",
    "calibrate",
    "export",
    "fuse",
    "quantize",
    "verify",
]

# Imported on first use: importing lowbit stays fast, Paddle comes with the first name that needs it.
_LAZY = {
    "Engine": "lowbit.runtime",
    "PACT": "lowbit.compat.paddleslim",
    "QAT": "lowbit.compat.paddleslim",
    "Recipe": "lowbit.recipe",
    "accelerate": "lowbit.api.accelerate",
    "advise": "lowbit.api.advise",
    "analyze": "lowbit.api.analysis",
    "calibrate": "lowbit.api.quantize",
    "export": "lowbit.api.deploy",
    "fuse": "lowbit.nn.fused_blocks",
    "quantize": "lowbit.api.quantize",
    "verify": "lowbit.api.verify",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
