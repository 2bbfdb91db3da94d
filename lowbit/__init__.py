"""lowbit trains neural networks in few bits on PaddlePaddle and carries them, verified, to deployment."""

from lowbit.errors import LowbitError
from lowbit.version import __version__

__all__ = ["LowbitError", "__version__"]
