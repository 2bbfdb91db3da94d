"""PaddleSlim's dialect: the `quant_config` of its `QAT`, every key of it, translated into rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from lowbit.config.base import Integer, Number, Positive
from lowbit.config.yaml_file import check_section
from lowbit.numerics.grid import FEWEST_BITS, MOST_BITS
from lowbit.recipe.model_layers import QUANTIZABLE
from lowbit.recipe.recipe import Recipe, Sources
from lowbit.recipe.spec import FrozenSection


class PACT:
    """Stands for the word 'PACT', since PaddleSlim takes its class of that name as well."""


def _check_bits(value: Any) -> Any:
    if type(value) is int and not FEWEST_BITS <= value <= MOST_BITS:
        raise ValueError(
            f"lowbit has grids of {FEWEST_BITS} to {MOST_BITS} bits (PaddleSlim takes 1 to 16), got {value}"
        )
    return value


def _as_word(value: Any) -> Any:
    if not isinstance(value, type):
        return value
    # PaddleSlim's own class, too: who imports it means the same.
    if issubclass(value, PACT) or (value.__name__ == "PACT" and value.__module__.startswith("paddleslim")):
        return "PACT"
    raise ValueError(
        f"{value.__name__} is a class of your own, which a recipe cannot describe; "
        "here the choice is None, 'PACT' or the class PACT of lowbit"
    )


Preprocess = Annotated[Literal["PACT"] | None, BeforeValidator(_as_word)]
Bits = Annotated[Integer, BeforeValidator(_check_bits)]
LayerTypes = Annotated[list[Literal[tuple(QUANTIZABLE)]], Field(min_length=1)]


class PaddleSlimConfig(FrozenSection):
    """PaddleSlim's `quant_config`, with its keys and defaults."""

    weight_preprocess_type: Preprocess = None
    activation_preprocess_type: Preprocess = None
    weight_quantize_type: Literal[
        "abs_max",
        "channel_wise_abs_max",
        "range_abs_max",
        "moving_average_abs_max",
        "lsq_weight",
        "channel_wise_lsq_weight",
    ] = "channel_wise_abs_max"
    activation_quantize_type: Literal["abs_max", "range_abs_max", "moving_average_abs_max", "lsq_act"] = (
        "moving_average_abs_max"
    )
    weight_bits: Bits = 8
    activation_bits: Bits = 8
    dtype: Literal["int8"] = "int8"
    window_size: Positive = 10_000
    moving_rate: Annotated[Number, Field(ge=0, lt=1)] = 0.9
    quantizable_layer_type: LayerTypes = ["Conv2D", "Linear"]
    fuse_conv_bn: bool = False
    onnx_format: bool = True  # concerns the export alone; nothing in a recipe depends on it

    def recipe(self) -> Recipe:
        """The same as a recipe.

        >>> "grid: int4-narrow" in dump_recipe(PaddleSlimConfig(activation_bits=4).recipe())
        True
        """
        weight = self._settings(self.weight_quantize_type, self.weight_bits, self.weight_preprocess_type)
        input_ = self._settings(
            self.activation_quantize_type, self.activation_bits, self.activation_preprocess_type
        )
        rule = {
            "match": {"type": self.quantizable_layer_type},
            "forward": {"input": input_, "weight": weight},
        }
        return Recipe(rules=[rule], batch_norm={"fold": "training" if self.fuse_conv_bn else "export"})

    def _settings(self, kind: str, bits: int, preprocess: str | None) -> dict[str, str]:
        method = kind.removeprefix("channel_wise_")
        scaling = {
            "abs_max": "dynamic",
            "range_abs_max": f"window({self.window_size})",
            "moving_average_abs_max": f"moving_average({self.moving_rate!r})",
        }.get(method, "learned")
        return {
            # Its LSQ uses the lowest integer, too; the others are symmetric, with 2^(b-1)-1 on both sides.
            "grid": f"int{bits}" if scaling == "learned" else f"int{bits}-narrow",
            "granularity": "N" if kind.startswith("channel_wise_") else "per-tensor",
            "scaling": scaling,
            "clip": "pact" if preprocess else "none",
        }


def parse_quant_config(
    config: Mapping[str, Any] | None, sources: Sources | None = None, origin: str = "quant_config"
) -> PaddleSlimConfig:
    """A `quant_config`, checked: unknown keys, wrong types and impossible values are errors.

    >>> parse_quant_config({"weight_bits": 4}).activation_bits
    8
    """
    return check_section(PaddleSlimConfig, {} if config is None else dict(config), sources or {}, origin)


def read_recipe(values: dict[str, Any], sources: Sources, origin: str) -> Recipe:
    """The recipe of a `quant_config` that was written into a file."""
    return parse_quant_config(values, sources, origin).recipe()
