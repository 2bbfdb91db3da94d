"""The Optimizer section: which rule updates the weights, and the learning rate over time."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from lowbit.config.base import Count, Number, Positive, Section

Rate = Annotated[Number, Field(ge=0)]


class Schedule(Section):
    """The learning rate, by epoch. Which keys count depends on `name`."""

    name: Literal["Constant", "ConstLR", "Linear", "Piecewise", "MultiStepDecay", "Step", "Cosine"] = "Step"
    learning_rate: Rate = 0.1
    # Piecewise: values[i] until decay_epochs[i]
    decay_epochs: list[Count] | None = None
    values: list[Rate] | None = None
    # Step: times gamma every step_size epochs; MultiStepDecay: at each of the milestones
    step_size: Annotated[Number, Field(gt=0)] = 30.0
    gamma: Rate = 0.1
    milestones: list[Count] | None = None
    # Cosine: down to eta_min; Linear: down to end_lr, by (1 - progress) ** power
    eta_min: Rate = 0.0
    end_lr: Rate = 0.0
    power: Annotated[Number, Field(gt=0)] = 1.0
    # Any: from warmup_start_lr up to learning_rate, in warmup_epoch epochs
    warmup_epoch: Annotated[Number, Field(ge=0)] = 0.0
    warmup_start_lr: Rate = 0.0
    by_epoch: bool = False  # change the rate once an epoch instead of once a step
    step_each_epoch: Positive | None = None  # PaddleClas replaces it by the data's, and so does lowbit

    @model_validator(mode="after")
    def _pieces_fit(self) -> Schedule:
        if self.name == "Piecewise":
            if self.decay_epochs is None or self.values is None:
                raise ValueError("Piecewise needs decay_epochs and values")
            if len(self.values) != len(self.decay_epochs) + 1:
                raise ValueError(
                    f"Piecewise needs one more value than decay_epochs, got {len(self.values)} values "
                    f"for {len(self.decay_epochs)} decay_epochs"
                )
            if sorted(self.decay_epochs) != self.decay_epochs:
                raise ValueError("decay_epochs must ascend")
        if self.name == "MultiStepDecay":
            if not self.milestones:
                raise ValueError("MultiStepDecay needs milestones, the epochs at which the rate falls")
            if sorted(set(self.milestones)) != self.milestones:
                raise ValueError("milestones must ascend")
        return self


class Regularizer(Section):
    """Weight decay, added to the gradient (AdamW: decoupled)."""

    name: Literal["L2"] = "L2"
    coeff: Rate = 1e-4


class OptimizerSection(Section):
    """SGD with or without momentum, RMSProp, Adam or AdamW."""

    name: Literal["Momentum", "SGD", "RMSProp", "Adam", "AdamW"] = "Momentum"
    momentum: Annotated[Number, Field(ge=0, lt=1)] = 0.9
    use_nesterov: bool = False
    rho: Annotated[Number, Field(gt=0, lt=1)] = 0.9
    epsilon: Annotated[Number, Field(gt=0)] | None = None
    beta1: Annotated[Number, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[Number, Field(ge=0, lt=1)] = 0.999
    weight_decay: Rate | None = None  # AdamW's name for the regularizer
    lr: Schedule = Schedule()
    regularizer: Regularizer | None = None
    multi_precision: bool = False
    one_dim_param_no_weight_decay: bool = False  # spare biases and batch norm
    no_weight_decay_name: str | None = None  # spare parameters with one of these words in their name
    clip_norm: Annotated[Number, Field(gt=0)] | None = None  # of the whole gradient
    clip_grad: Annotated[Number, Field(gt=0)] | None = None  # another name for it

    @field_validator("clip_norm", "clip_grad", mode="before")
    @classmethod
    def _none_as_text(cls, value: Any) -> Any:
        return None if value == "None" else value  # Python's word, which YAML reads as text

    @property
    def decay(self) -> float:
        """The coefficient of the weight decay, 0 when there is none."""
        if self.weight_decay is not None:
            return self.weight_decay
        return self.regularizer.coeff if self.regularizer else 0.0

    @property
    def largest_norm(self) -> float | None:
        """The limit of the gradient's norm; None without one."""
        return self.clip_norm if self.clip_norm is not None else self.clip_grad

    @property
    def spared_words(self) -> list[str]:
        """Parts of names of parameters that have no weight decay."""
        return (self.no_weight_decay_name or "").split()

    @model_validator(mode="after")
    def _one_decay(self) -> OptimizerSection:
        if self.weight_decay is not None and self.regularizer is not None:
            raise ValueError("weight_decay and regularizer are two names of one thing; give one")
        if self.clip_norm is not None and self.clip_grad is not None:
            raise ValueError("clip_norm and clip_grad are two names of one thing; give one")
        return self
