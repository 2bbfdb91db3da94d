"""Loops over raw memory in C++, one pass each: csrc/ holds them, library.py calls them."""

from lowbit.kernels.library import Kernels, kernels, runnable_variants, why_missing

__all__ = ["Kernels", "kernels", "runnable_variants", "why_missing"]
