"""Layers of our own, and the functions that swap them into a model."""

from lowbit.layers.eval_mode import eval_mode
from lowbit.layers.sync_batch_norm import convert_sync_batch_norm

__all__ = ["convert_sync_batch_norm", "eval_mode"]
