"""`QAT` and `PACT` where `paddleslim.dygraph.quant` has them."""

from lowbit.compat.paddleslim import PACT, QAT

__all__ = ["PACT", "QAT"]
