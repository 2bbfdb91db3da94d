"""`lowbit demo`: the whole way on embedded data, from training to a compared, served model."""
from __future__ import annotations
def demo() -> None:
    """Train, export, run and compare on embedded data."""
