"""The Optimizer section: which rule updates the weights, and the learning rate over time."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from lowbit.config.base import Count, Number, Positive, Section

Rate = Annotated[Number, Field(ge=0)]


class Schedule(Section):
    """The learning rate, by epoch. Which keys count depends on `name`."""

    name: Literal[
        "Constant",
        "ConstLR",
        "Linear",
        "Piecewise",
        "MultiStepDecay",
        "Step",
        "Cosine",
        "Cyclic",
        "OneCycleLR",
    ] = "Step"
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
    # Cyclic: from base_learning_rate up to max_learning_rate in step_size_up steps, down in step_size_down;
    # the height of a cycle stays (triangular), halves each time (triangular2), or is exp_gamma ** step of it
    base_learning_rate: Rate | None = None
    max_learning_rate: Annotated[Number, Field(gt=0)] | None = None
    step_size_up: Positive | None = None
    step_size_down: Positive | None = None
    mode: Literal["triangular", "triangular2", "exp_range"] = "triangular"
    exp_gamma: Annotated[Number, Field(gt=0)] = 1.0
    # OneCycleLR: from max_learning_rate / divide_factor up to it in phase_pct of the run, and down to
    # end_learning_rate; with three_phase first down to where it began
    divide_factor: Annotated[Number, Field(gt=0)] = 25.0
    end_learning_rate: Rate = 1e-10
    phase_pct: Annotated[Number, Field(gt=0, lt=1)] = 0.3
    anneal_strategy: Literal["cos", "linear"] = "cos"
    three_phase: bool = False
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

    @model_validator(mode="after")
    def _cycle_is_given(self) -> Schedule:
        if self.name == "Cyclic":
            for key in ("base_learning_rate", "max_learning_rate", "step_size_up"):
                if getattr(self, key) is None:
                    raise ValueError(f"Cyclic needs {key}")
        if self.name == "OneCycleLR":
            if self.max_learning_rate is None:
                raise ValueError("OneCycleLR needs max_learning_rate")
            if self.three_phase and self.phase_pct >= 0.5:
                raise ValueError("three_phase needs a phase_pct below 0.5: up, down, and a rest")
        return self

    @property
    def warmup_target(self) -> float:
        """The rate that a warm-up rises to."""
        if self.name == "Piecewise" and self.values:
            return self.values[0]
        targets = {"Cyclic": self.base_learning_rate, "OneCycleLR": self.max_learning_rate}
        found = targets.get(self.name)
        return self.learning_rate if found is None else found


class Regularizer(Section):
    """Weight decay, added to the gradient (AdamW: decoupled)."""

    name: Literal["L2"] = "L2"
    coeff: Rate = 1e-4


class OptimizerSection(Section):
    """SGD with or without momentum, RMSProp, Adam or AdamW; AdamWDL is AdamW with layer-wise decay."""

    name: Literal["Momentum", "SGD", "RMSProp", "Adam", "AdamW", "AdamWDL"] = "Momentum"
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
    # AdamWDL: the learning rate of a transformer's block is this many times the next one's
    layerwise_decay: Annotated[Number, Field(gt=0, le=1)] | None = None
    filter_bias_and_bn: bool = True  # AdamWDL's word for one_dim_param_no_weight_decay
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

    @property
    def spares_one_dimension(self) -> bool:
        """Whether biases, norms and other parameters of one dimension have no weight decay."""
        return self.one_dim_param_no_weight_decay or (self.name == "AdamWDL" and self.filter_bias_and_bn)

    @model_validator(mode="after")
    def _layers_decay(self) -> OptimizerSection:
        if self.layerwise_decay is not None and self.name != "AdamWDL":
            raise ValueError(f"layerwise_decay is a key of AdamWDL, not of {self.name}")
        return self

    @model_validator(mode="after")
    def _one_decay(self) -> OptimizerSection:
        if self.weight_decay is not None and self.regularizer is not None:
            raise ValueError("weight_decay and regularizer are two names of one thing; give one")
        if self.clip_norm is not None and self.clip_grad is not None:
            raise ValueError("clip_norm and clip_grad are two names of one thing; give one")
        return self
