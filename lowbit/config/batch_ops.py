"""The operations on whole batches that a config may list under `batch_transform_ops`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_serializer, model_validator

from lowbit.config.base import Number, Positive, Section
from lowbit.config.transform_ops import Probability, dump_op, parse_named

_Alpha = Annotated[Number, Field(gt=0)]


class BatchOp(Section):
    """Mixes the images of a batch and their labels; the class's name is its name in the config."""


class MixupOperator(BatchOp):
    """λ of each image and 1 - λ of another one, λ from Beta(alpha, alpha) (Zhang et al., 2018)."""

    alpha: _Alpha = 1.0


class CutmixOperator(BatchOp):
    """A box of each image comes from another one (Yun et al., 2019)."""

    alpha: _Alpha = 0.2


class FmixOperator(BatchOp):
    """Regions of low-frequency noise of each image come from another one (Harris et al., 2020)."""

    alpha: _Alpha = 1.0
    decay_power: _Alpha = 3.0


MIXERS: dict[str, type[BatchOp]] = {op.__name__: op for op in BatchOp.__subclasses__()}


def _parse_mixer(entry: Any) -> BatchOp:
    return parse_named(entry, MIXERS)


class OpSampler(BatchOp):
    """One of several operations for each batch, by their `prob`; what they leave of 1 is for none."""

    ops: list[tuple[Annotated[BatchOp, BeforeValidator(_parse_mixer)], Probability]] = []

    @model_validator(mode="before")
    @classmethod
    def _from_names(cls, values: Any) -> Any:
        """`{MixupOperator: {alpha: 0.8, prob: 0.5}, …}`, as it is in a file."""
        if not isinstance(values, dict) or "ops" in values:
            return values
        ops = []
        for name, arguments in values.items():
            arguments = dict(arguments or {})
            probability = arguments.pop("prob", None)
            if probability is None:
                raise ValueError(f"{name} needs a prob: how often it is taken")
            ops.append(({name: arguments}, probability))
        return {"ops": ops}

    @model_validator(mode="after")
    def _at_most_one(self) -> OpSampler:
        total = sum(probability for _, probability in self.ops)
        if total > 1 + 1e-9:
            raise ValueError(f"the probabilities of its operations add up to {total:g}, more than 1")
        return self

    @model_serializer
    def _by_name(self) -> dict[str, Any]:
        return {type(op).__name__: op.model_dump(mode="json") | {"prob": prob} for op, prob in self.ops}


class MixupCutmixHybrid(BatchOp):
    """timm's: Mixup or Cutmix, drawn for each batch, and smoothed labels."""

    mixup_alpha: Annotated[Number, Field(ge=0)] = 1.0
    cutmix_alpha: Annotated[Number, Field(ge=0)] = 0.0
    prob: Probability = 1.0
    switch_prob: Probability = 0.5  # that it is Cutmix, where both have an alpha
    mode: Literal["batch"] = "batch"
    correct_lam: Literal[True] = True
    cutmix_minmax: None = None
    label_smoothing: Annotated[Number, Field(ge=0, lt=1)] = 0.1
    num_classes: Positive | None = None  # the data's count

    @model_validator(mode="after")
    def _mixes(self) -> MixupCutmixHybrid:
        if not self.mixup_alpha and not self.cutmix_alpha:
            raise ValueError("mixup_alpha and cutmix_alpha are both 0: give one of them")
        return self


BATCH_OPS: dict[str, type[BatchOp]] = {
    **MIXERS,
    "OpSampler": OpSampler,
    "MixupCutmixHybrid": MixupCutmixHybrid,
}


def _parse_batch_op(entry: Any) -> BatchOp:
    return parse_named(entry, BATCH_OPS)


BatchTransform = Annotated[BatchOp, BeforeValidator(_parse_batch_op), PlainSerializer(dump_op)]
