"""A chain test's config in typed parts, the same for both layouts."""

from __future__ import annotations

from dataclasses import dataclass

from lowbit.tipc.lines import ConfigFile, Field


@dataclass(frozen=True)
class Trainer:
    """A way to train, and how what it leaves is exported."""

    name: str
    train: Field
    export: Field
    quantized: bool


@dataclass(frozen=True, kw_only=True)
class Training:
    """The train_params section. `order` and `order_on_machines` say how the layout orders the arguments."""

    gpu_list: Field
    use_gpu: Field
    autocast: Field | None
    epochs: Field
    output_dir: Field
    batch_size: Field
    pretrained: Field
    weights_name: Field
    extra: Field
    chosen: Field
    trainers: tuple[Trainer, ...]
    order: tuple[str, ...]
    order_on_machines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The eval_params section: the command, and what it gets beside the weights."""

    command: Field
    extra: Field


@dataclass(frozen=True, kw_only=True)
class Export:
    """The keys of the export command; `subfolder` says where below its folder the model ends up."""

    save: Field
    weights: Field
    subfolder: Field | None


@dataclass(frozen=True, kw_only=True)
class Released:
    """The model that `whole_infer` starts from; where `folder` is None, the weights' place is the folder."""

    weights: Field
    export: Field
    folder: Field | None
    quantized: Field | None


@dataclass(frozen=True, kw_only=True)
class Inference:
    """The inference script and its settings, each with alternatives; None: the layout has no such line."""

    script: Field
    use_gpu: Field
    batch_size: Field
    model_dir: Field
    image: Field
    train_image: Field
    benchmark: Field
    mkldnn: Field | None = None
    threads: Field | None = None
    tensorrt: Field | None = None
    precision: Field | None = None
    extra: Field | None = None


@dataclass(frozen=True, kw_only=True)
class ChainConfig:
    """What a config says, with the line of every value. `layout` is 32 or 51."""

    file: ConfigFile
    layout: int
    model_name: Field
    python: Field
    training: Training
    evaluation: Evaluation
    export: Export
    released: Released
    inference: Inference
