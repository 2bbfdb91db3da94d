"""The dialects that recipes are written in: one file each, and all of them become a Recipe."""

from lowbit.recipe.dialects import low_precision_yaml, lowbit_yaml, paddleslim
from lowbit.recipe.dialects.dialect import Dialect

DIALECTS: tuple[Dialect, ...] = (lowbit_yaml.DIALECT, paddleslim.DIALECT, low_precision_yaml.DIALECT)

__all__ = ["DIALECTS", "Dialect"]
