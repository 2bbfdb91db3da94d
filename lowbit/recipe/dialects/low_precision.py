"""The dialect of low-precision training: `quantization_manager` and blocks, translated into rules.

A block is an operand's keys, with filters that change them by layer.
"""

from __future__ import annotations

import glob
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, create_model, model_validator

from lowbit.config.base import Integer, Positive
from lowbit.config.yaml_file import KeyPath, check_section
from lowbit.errors import LowbitError
from lowbit.numerics import Grid
from lowbit.recipe.recipe import Recipe, Sources, needs_calibration
from lowbit.recipe.rules import Rule
from lowbit.recipe.spec import FrozenSection, SpecSettings, TensorSpec

# The keys of a TensorSpec that this dialect has its own words for; the others keep their names.
_OWN_WORDS = ("grid", "rounding")
_SHARED = {key: field for key, field in SpecSettings.model_fields.items() if key not in _OWN_WORDS}


def _check_qtype(grid: Grid) -> Grid:
    if not grid.signed:
        raise ValueError(
            f'write "int{grid.bits}": where an input is never negative, it is put on {grid} by itself'
        )
    return grid


_Grid = SpecSettings.model_fields["grid"].rebuild_annotation()
Qtype = Annotated[_Grid, AfterValidator(_check_qtype)]

_Keys = create_model(
    "_Keys",
    __base__=FrozenSection,
    qtype=(Qtype, None),
    stochastic=(bool, None),
    **{key: (field.rebuild_annotation(), None) for key, field in _SHARED.items()},
)


class BlockKeys(_Keys):
    """What a block and its filters can set."""

    def settings(self) -> dict[str, Any]:
        """The keys that are set, as those of a TensorSpec.

        >>> BlockKeys(granularity="N", stochastic=True).settings()
        {'granularity': Granularity(letters='N'), 'rounding': 'stochastic'}
        """
        found = {} if self.qtype is None else {"grid": self.qtype}
        found |= {key: getattr(self, key) for key in _SHARED if key in self.model_fields_set}
        if self.stochastic is not None:
            found["rounding"] = "stochastic" if self.stochastic else "nearest"
        return found


class Filter(BlockKeys):
    """Other keys for some layers: that with the number `id`, or those whose dotted name contains `name`."""

    id: Integer | None = None
    name: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> Filter:
        if self.id is None and self.name is None:
            raise ValueError("give id or name: which layers does it change?")
        if not self.settings():
            raise ValueError(f"sets nothing; give at least one of {', '.join(BlockKeys.model_fields)}")
        return self

    def match(self) -> dict[str, Any]:
        """The same layers in lowbit's words.

        >>> Filter(name="fc", qtype="full").match()
        {'name': '*fc*'}
        """
        found: dict[str, Any] = {} if self.id is None else {"index": self.id}
        return found if self.name is None else found | {"name": f"*{glob.escape(self.name)}*"}


def _none_as_empty(value: Any) -> Any:
    return [] if value is None else value  # `filters:` with nothing below it


class OperandBlock(BlockKeys):
    """How one operand is quantized: in all layers, and differently in those that filters name."""

    qtype: Qtype
    filters: Annotated[list[Filter], BeforeValidator(_none_as_empty)] = []

    def base_settings(self, *, is_input: bool) -> dict[str, Any]:
        """What holds where no filter does; an input is unsigned where it is never negative.

        >>> OperandBlock(qtype="int4").base_settings(is_input=True)["sign"]
        'auto'
        """
        return ({"sign": "auto"} if is_input else {}) | self.settings()


_QT, _QAT = "qt_quantization_manager", "qat_quantization_manager"
# Which operands of which products a block is about.
OPERANDS: dict[str, dict[str, tuple[str, ...]]] = {
    _QT: {
        "weight_config": ("forward.weight", "grad_input.weight"),
        "weight_forward_config": ("forward.weight",),
        "weight_backward_config": ("grad_input.weight",),
        "input_config": ("forward.input", "grad_weight.input"),
        "input_forward_config": ("forward.input",),
        "input_backward_config": ("grad_weight.input",),
        "grad_config": ("grad_input.grad_output", "grad_weight.grad_output"),
        "grad_input_config": ("grad_input.grad_output",),
        "grad_weight_config": ("grad_weight.grad_output",),
    },
    _QAT: {"weight_config": ("forward.weight",), "activation_config": ("forward.input",)},
}
# A short form and the two blocks that it stands for.
_LONG_FORMS = {
    "weight_config": ("weight_forward_config", "weight_backward_config"),
    "input_config": ("input_forward_config", "input_backward_config"),
    "grad_config": ("grad_input_config", "grad_weight_config"),
}
_FULL = "`qtype: full` is full precision"


class CalibrationConfig(FrozenSection):
    """The number of calibration batches."""

    steps: Positive


class LowPrecisionConfig(FrozenSection):
    """All keys of both managers; which of them go together is checked by `read_recipe`."""

    quantization_manager: Literal["qt_quantization_manager", "qat_quantization_manager"]
    weight_config: OperandBlock | None = None
    weight_forward_config: OperandBlock | None = None
    weight_backward_config: OperandBlock | None = None
    input_config: OperandBlock | None = None
    input_forward_config: OperandBlock | None = None
    input_backward_config: OperandBlock | None = None
    activation_config: OperandBlock | None = None
    grad_config: OperandBlock | None = None
    grad_input_config: OperandBlock | None = None
    grad_weight_config: OperandBlock | None = None
    calibration_config: CalibrationConfig | None = None

    def blocks(self) -> dict[str, OperandBlock]:
        """The blocks that are given."""
        return {key: value for key, value in self if isinstance(value, OperandBlock)}


def read_recipe(values: dict[str, Any], sources: Sources, origin: str) -> Recipe:
    """The recipe of a low-precision-training YAML; each rule remembers its block or filter.

    >>> blocks = dict.fromkeys(["weight_config", "input_config", "grad_config"], {"qtype": "int8"})
    >>> recipe = read_recipe({"quantization_manager": "qt_quantization_manager", **blocks}, {}, "here")
    >>> [name for name, _ in recipe.rules[1].given()]
    ['forward.input', 'grad_weight.input']
    """
    config = check_section(LowPrecisionConfig, values, sources, origin)
    reading = _Reading(config, sources, origin)
    reading.check()
    steps = config.calibration_config.steps if config.calibration_config else 0
    return Recipe(rules=reading.rules(), calibration={"steps": steps})


class _Reading:
    """A config on its way to rules, with what messages about it need."""

    def __init__(self, config: LowPrecisionConfig, sources: Sources, origin: str) -> None:
        self._config, self._sources, self._origin = config, sources, origin
        self._manager, self._blocks = config.quantization_manager, config.blocks()
        self._operands = OPERANDS[self._manager]

    def check(self) -> None:
        for key in self._blocks:
            if key not in self._operands:
                raise self._mistake(self._why_not_here(key), key)
        if self._manager == _QAT:
            self._check_qat()
        else:
            self._check_forms()
        for key, block in self._blocks.items():
            self._check_block(key, block)

    def rules(self) -> list[Rule]:
        rules: list[Rule] = []
        for key, block in self._blocks.items():
            rules += self._rules((key,), {}, self._base_settings(key, block))
            for index, filter_ in enumerate(block.filters):
                rules += self._rules((key, "filters", index), filter_.match(), filter_.settings())
        return rules

    def _why_not_here(self, key: str) -> str:
        if self._manager == _QT:
            return f"belongs to {_QAT}; here it is input_config"
        if key.startswith("grad"):
            return f"{_QAT} quantizes no gradients; remove it, or use {_QT}"
        here = "weight_config" if key.startswith("weight") else "activation_config"
        return f"belongs to {_QT}; here it is {here}"

    def _check_qat(self) -> None:
        for key in self._operands:
            if key not in self._blocks:
                raise self._mistake(f"missing; {_FULL}", key)
        for key, block in self._blocks.items():
            places = [(key,), *((key, "filters", index) for index in range(len(block.filters)))]
            for at, keys in zip(places, (block, *block.filters), strict=True):
                if keys.stochastic:
                    why = f"is for {_QT}: QAT rounds to nearest, as the deployed model does"
                    raise self._mistake(why, *at, "stochastic")

    def _check_forms(self) -> None:
        for short, long_forms in _LONG_FORMS.items():
            given = [key for key in long_forms if key in self._blocks]
            both = " and ".join(long_forms)
            if short in self._blocks and given:
                raise self._mistake(
                    f"stands for {both}: give it alone, or those two (here is {given[0]})", short
                )
            if short not in self._blocks and not given:
                raise self._mistake(f"missing (or {both}); {_FULL}", short)
            if len(given) == 1:
                (missing,) = set(long_forms) - set(given)
                raise self._mistake(
                    f"missing, while {given[0]} is given; {_FULL}, and {short} is for both", missing
                )

    def _check_block(self, key: str, block: OperandBlock) -> None:
        if not block.qtype.is_integer:
            return
        try:
            spec = TensorSpec(**self._base_settings(key, block))
        except LowbitError as error:
            raise self._mistake(str(error), key) from None
        if self._config.calibration_config or key.startswith("weight"):
            return
        if what := needs_calibration(spec, straight_through=self._manager == _QAT):
            why = f"{key} has {what}, which calibration finds out"
            raise self._mistake(
                f"missing: {why}; add calibration_config: {{steps: 50}}", "calibration_config"
            )

    def _base_settings(self, key: str, block: OperandBlock) -> dict[str, Any]:
        return block.base_settings(is_input=self._operands[key][0].endswith(".input"))

    def _rules(self, at: KeyPath, match: dict[str, Any], settings: dict[str, Any]) -> list[Rule]:
        """The rule that sets these keys; two for `full` and the like, which allow no other key.

        Those keys are for the layers that a filter puts on an integer grid.
        """
        parts = [settings]
        if "grid" in settings and not settings["grid"].is_integer:
            others = {key: value for key, value in settings.items() if key != "grid"}
            parts = [others, {"grid": settings["grid"]}]
        return [
            Rule(match=match, **self._products(at[0], part)).at(self._place(at, ""), ".".join(map(str, at)))
            for part in parts
            if part
        ]

    def _products(self, block: str, settings: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
        names = (name.split(".") for name in self._operands[block])
        return {product: {operand: settings} for product, operand in names}

    def _place(self, at: KeyPath, otherwise: str) -> str:
        within = (at[:depth] for depth in range(len(at), 0, -1))
        return next((self._sources[part] for part in within if part in self._sources), otherwise)

    def _mistake(self, message: str, *at: str | int) -> LowbitError:
        return LowbitError(f"{self._place(at, self._origin)}: {'.'.join(map(str, at))}: {message}")
