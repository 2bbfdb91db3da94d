"""The config: PaddleClas's sections and keys, and a few of our own, with their types and limits."""

from __future__ import annotations

import difflib
import re
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from lowbit.config.base import Count, Integer, Number, Positive, Section, unknown_key
from lowbit.config.batch_ops import MixupCutmixHybrid
from lowbit.config.data import DataLoaders
from lowbit.config.optimizer import OptimizerSection
from lowbit.config.transform_ops import Op
from lowbit.errors import did_you_mean

AmpLevel = Literal["O0", "O1", "O2"]
AmpDtype = Literal["bf16", "fp16"]
_ONE = Field(min_length=1, max_length=1)


class GlobalSection(Section):
    """What concerns the run as a whole."""

    checkpoints: str | None = None  # resume from this checkpoint, or `auto`
    pretrained_model: str | None = None
    output_dir: str = "./output/"
    device: str | None = None
    class_num: Positive | None = None  # older PaddleClas files have it here, newer ones under Arch
    save_interval: Positive = 1
    eval_during_train: bool = True
    eval_interval: Positive = 1
    start_eval_epoch: Count = 0
    epochs: Positive = 90
    start_epoch: Count = 0
    print_batch_step: Positive = 10
    use_visualdl: bool | None = None  # default: when VisualDL is installed
    image_shape: tuple[Literal[3], Positive, Positive] = (3, 224, 224)  # images are RGB
    save_inference_dir: str = "./inference"
    task: Literal["classification"] = "classification"
    eval_mode: Literal["classification"] = "classification"
    to_static: bool = False  # true: a line says that training is in dynamic mode
    use_dali: bool = False  # true: a line says that lowbit's own loader reads the images
    update_freq: Positive = 1  # batches whose gradients are added up for one update
    image_channel: Literal[3] = 3
    train_mode: str | None = None
    log_ranks: int | str = "0"  # the first process writes, whatever this says
    print_mem_info: bool = False
    iter_per_epoch: None = None
    # Ours from here on.
    seed: Annotated[Integer, Field(ge=0, lt=2**63)] = 0
    save_steps: Count = 0  # also save a checkpoint every N steps; 0: only after epochs
    max_bad_images: Count = 100  # unreadable training images before the run stops
    max_bad_steps: Count = 20  # NaN/Inf steps in a row before the run stops
    reset_classifier: bool = False  # take pretrained weights although the number of classes differs
    sync_bn: bool = False
    fast_convolutions: bool = True  # on a CPU, in oneDNN instead of Paddle's own kernels
    fast_norm_ops: bool = True  # on a CPU, batch norm, ReLU and max-pool of training in lowbit's kernels
    executor: Literal["auto", "integer", "simulate"] = "auto"  # of products of quantized operands
    ema: Annotated[Number, Field(gt=0, lt=1)] | None = None  # decay of the average of weights; see EMA
    early_stop: Count = 0  # stop when top-1 has not improved for N epochs; 0: never
    finetune_epochs: Count = 0  # of low-precision training, the last ones with gradients in full precision
    health_interval: Count = 100  # low precision: measure operands every N steps; 0: never
    checkpoint_dir: str = "checkpoints"  # inside output_dir

    @model_validator(mode="before")
    @classmethod
    def _earlier_name(cls, values: Any) -> Any:
        """Configs of runs of version 0.2 have `fast_neighbours`."""
        if not isinstance(values, dict) or "fast_neighbours" not in values:
            return values
        if "fast_norm_ops" in values:
            raise ValueError("fast_neighbours is the earlier name of fast_norm_ops: give one of them")
        renamed = {"fast_neighbours": "fast_norm_ops"}
        return {renamed.get(key, key): value for key, value in values.items()}

    @field_validator("train_mode")
    @classmethod
    def _one_way_to_train(cls, value: str | None) -> None:
        if value is not None:
            raise ValueError(
                f"{value!r} is not supported; leave it out and train on images of one size (for progressive "
                "training, also progress_size and progress_magnitude)"
            )

    @field_validator("checkpoint_dir")
    @classmethod
    def _inside(cls, value: str) -> str:
        if PurePath(value).is_absolute() or ".." in PurePath(value).parts:
            raise ValueError(f"expected a folder inside of output_dir, such as checkpoints, got {value!r}")
        return value

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"cpu|gpu(:\d+)?", value.strip().lower()):
            raise ValueError(f'unknown device "{value}", {did_you_mean(value, ["cpu", "gpu", "gpu:0"])}')
        return value


class AmpSection(Section):
    """Mixed precision. On a CPU, only bf16 by its own instructions is fast; else it is emulated."""

    use_amp: bool = True
    use_fp16_test: bool = False  # evaluation in mixed precision, too
    scale_loss: Annotated[Number, Field(gt=0)] = 2.0**15
    use_dynamic_loss_scaling: bool = True
    use_promote: Literal[False] = False
    level: AmpLevel = "O1"
    dtype: AmpDtype = "fp16"


class EmaSection(Section):
    """PaddleClas's average of the weights (exponential moving average), which is evaluated and deployed."""

    decay: Annotated[Number, Field(gt=0, lt=1)] = 0.9999


class ArchSection(Section):
    """The network: a name of ours or of PaddleClas's, or `package.module:Class`.

    Other keys go to the network's constructor, as in PaddleClas: `drop_path_rate: 0.1`.
    """

    name: str
    class_num: Positive | None = None
    pretrained: bool | str = False  # true: from the folder of Global.pretrained_model
    use_ssld: bool = False  # with it, PaddleClas's better weights
    use_sync_bn: bool = False
    kwargs: dict[str, JsonValue] = {}  # handed to the network's constructor

    @field_validator("pretrained", mode="before")
    @classmethod
    def _path_or_folder(cls, value: Any) -> Any:
        if not isinstance(value, bool | str):
            raise ValueError(
                f"expected true, false or the path of a .pdparams or .safetensors file, got {value!r}"
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _gather_kwargs(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = {key: value for key, value in values.items() if key not in _OF_A_TEACHER}
        own = {key: value for key, value in values.items() if key in cls.model_fields}
        if not isinstance(own.get("kwargs", {}), dict):
            return own
        if extra := {key: _number(value) for key, value in values.items() if key not in cls.model_fields}:
            for key in extra:
                if close := difflib.get_close_matches(str(key), cls.model_fields, n=1, cutoff=0.8):
                    raise unknown_key(str(key), close)
            own["kwargs"] = own.get("kwargs", {}) | extra
        return own


# Keys that PaddleClas's distillation leaves in the Arch section of a single network.
_OF_A_TEACHER = ("pretrained_list", "freeze_params_list", "infer_model_name")


def _number(value: Any) -> Any:
    """`1e-6` without a dot is text to YAML; PaddleClas's networks evaluate it, here it is a number."""
    if isinstance(value, dict):
        return {key: _number(item) for key, item in value.items()}
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value.strip()):
        return float(value)
    return value


class OneOf(Section):
    """An entry of a list of losses or metrics: one name, with its arguments or without any (`- CELoss:`)."""

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            raise ValueError(f"expected one of {', '.join(cls.model_fields)}, got {values!r}")
        given = {name: arguments for name, arguments in values.items() if arguments is not None}
        given = given or {name: {} for name in values}
        for name in given:
            if str(name).startswith("Distillation") or name == "AFDLoss":
                raise ValueError(f"{name} is for PaddleClas's distillation, which is not supported")
        if len(given) != 1:
            raise ValueError(f"expected one of {', '.join(cls.model_fields)}, got {len(given)} names")
        return given

    @model_serializer(mode="wrap")
    def _only_the_one(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: arguments for name, arguments in serialize(self).items() if arguments is not None}


class CrossEntropy(Section):
    """Cross entropy; `epsilon` is the label smoothing."""

    weight: Annotated[Number, Field(gt=0)] = 1.0
    epsilon: Annotated[Number, Field(ge=0, lt=1)] | None = None
    reduction: Literal["mean"] = "mean"


class AuxiliaryCrossEntropy(Section):
    """PaddleClas's other names for cross entropy: where a network has auxiliary classifiers, which always
    count, and where batches are mixed."""

    weight: Annotated[Number, Field(gt=0)] = 1.0


class LossItem(OneOf):
    """One entry of a loss list: one of the losses."""

    CELoss: CrossEntropy | None = None
    GoogLeNetLoss: AuxiliaryCrossEntropy | None = None
    SoftTargetCrossEntropy: AuxiliaryCrossEntropy | None = None  # cross entropy with mixed labels

    @property
    def cross_entropy(self) -> CrossEntropy:
        """The loss of the network's answer."""
        if self.CELoss is not None:
            return self.CELoss
        other = self.GoogLeNetLoss or self.SoftTargetCrossEntropy
        return CrossEntropy(weight=other.weight if other else 1.0)


class LossSection(Section):
    """What is minimised in training and reported in evaluation."""

    Train: Annotated[list[LossItem], _ONE] = [LossItem(CELoss=CrossEntropy())]
    Eval: Annotated[list[LossItem], _ONE] = [LossItem(CELoss=CrossEntropy())]


class DistillationSection(Section):
    """Ours: a share of the loss asks for a teacher's answers; `fp32` is what the run starts from."""

    teacher: str  # `fp32`, a run folder, a checkpoint, or a weights file
    teacher_model: str | None = None  # of a weights file; default: Arch
    teacher_kwargs: dict[str, JsonValue] = {}
    temperature: Annotated[Number, Field(gt=0)] = 4.0
    weight: Annotated[Number, Field(gt=0, le=1)] = 1.0  # the teacher's share of the loss
    # Of the errors of blocks' outputs, of a teacher with the same layers; falls to 0 by a cosine.
    feature_weight: Annotated[Number, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _one_teacher(self) -> DistillationSection:
        if self.teacher == "fp32" and self.teacher_model is not None:
            raise ValueError("teacher fp32 is the model itself: leave out teacher_model, or name a file")
        if self.teacher_kwargs and self.teacher_model is None:
            raise ValueError("teacher_kwargs go with teacher_model; the same model has Arch.kwargs")
        return self


class TopkAnswer(Section):
    """How inference answers."""

    name: Literal["Topk"] = "Topk"
    topk: Positive = 5
    class_id_map_file: str | None = None


class InferSection(Section):
    """What PaddleClas's own inference reads; `lowbit infer` takes the same from the exported model."""

    infer_imgs: str | None = None
    batch_size: Positive = 1
    transforms: list[Op] = []
    PostProcess: TopkAnswer = TopkAnswer()


class TopkAccuracy(Section):
    """Which top-k accuracies are reported."""

    topk: list[Positive] = [1, 5]

    @field_validator("topk")
    @classmethod
    def _with_top1(cls, topk: list[int]) -> list[int]:
        if 1 not in topk:
            raise ValueError(f"topk must have 1 in it: the best checkpoint is chosen by top-1; got {topk}")
        return topk


class MetricItem(OneOf):
    """One entry of a metric list: accuracies, of a network with several heads those of the first one."""

    TopkAcc: TopkAccuracy | None = None
    GoogLeNetTopkAcc: TopkAccuracy | None = None

    @property
    def topk(self) -> tuple[int, ...]:
        """The numbers of best classes among which the right one counts."""
        return tuple((self.TopkAcc or self.GoogLeNetTopkAcc or TopkAccuracy()).topk)


class MetricSection(Section):
    """Metrics of training and evaluation. An empty `Train` shows none while training."""

    Train: Annotated[list[MetricItem], Field(max_length=1)] = [MetricItem(TopkAcc=TopkAccuracy())]
    Eval: Annotated[list[MetricItem], _ONE] = [MetricItem(TopkAcc=TopkAccuracy())]

    @field_validator("Train", mode="before")
    @classmethod
    def _none_listed(cls, value: Any) -> Any:
        return [] if value is None else value


class SlimQuantSection(Section):
    """PaddleClas's quantization: PACT in 8 bits."""

    name: Literal["pact"]


class SlimSection(Section):
    """What PaddleClas compresses with."""

    quant: SlimQuantSection


class Config(Section):
    """A whole config file, validated.

    >>> Config(Arch={"name": "resnet18"}, DataLoader={"Train": {"dataset": {"name": "Digits"}}}).Global.epochs
    90
    """

    Global: GlobalSection = GlobalSection()
    AMP: AmpSection | None = None
    EMA: EmaSection | None = None
    Arch: ArchSection
    Loss: LossSection = LossSection()
    Optimizer: OptimizerSection = OptimizerSection()
    DataLoader: DataLoaders
    Infer: InferSection = InferSection()
    Metric: MetricSection = MetricSection()
    Slim: SlimSection | None = None  # PaddleClas's way to ask for PACT
    Recipe: str | dict[str, Any] | None = None  # ours: what is quantized how: a name, a file or values
    Distillation: DistillationSection | None = None

    @property
    def train_loss(self) -> CrossEntropy:
        """The loss of training; the batches' MixupCutmixHybrid may say by how much labels are smoothed."""
        loss, smoothing = self.Loss.Train[0].cross_entropy, self._batches_smooth
        return loss.model_copy(update={"epsilon": smoothing}) if smoothing else loss

    @property
    def _batches_smooth(self) -> float:
        ops = self.DataLoader.Train.dataset.batch_transform_ops if self.DataLoader.Train else []
        return sum(op.label_smoothing for op in ops if isinstance(op, MixupCutmixHybrid))

    @model_validator(mode="after")
    def _one_smoothing(self) -> Config:
        if self._batches_smooth and self.Loss.Train[0].cross_entropy.epsilon:
            raise ValueError(
                "MixupCutmixHybrid.label_smoothing and the loss's epsilon both smooth labels: give one"
            )
        return self

    @model_validator(mode="after")
    def _one_class_count(self) -> Config:
        if self.Arch.class_num and self.Global.class_num and self.Arch.class_num != self.Global.class_num:
            raise ValueError("Arch.class_num and Global.class_num differ; give it once")
        return self

    @model_validator(mode="after")
    def _one_ema(self) -> Config:
        if self.EMA and self.Global.ema not in (None, self.EMA.decay):
            raise ValueError("Global.ema and EMA.decay differ; give it once")
        return self

    @model_validator(mode="after")
    def _one_quantization(self) -> Config:
        if self.Slim and self.Recipe is not None:
            raise ValueError("Slim and Recipe both say what is quantized; give one")
        return self

    @model_validator(mode="after")
    def _a_teacher_that_knows_more(self) -> Config:
        if self.Distillation and self.Distillation.teacher == "fp32":
            if self.recipe_source is None:
                raise ValueError(
                    "teacher fp32 is the unquantized model, and without a Recipe so is the student: "
                    "give a recipe, or the file of another teacher"
                )
            if not self.pretrained:
                raise ValueError(
                    "teacher fp32 is what the run starts from, and that is nothing: give --pretrained"
                )
        return self

    @property
    def recipe_source(self) -> str | dict[str, Any] | None:
        """The recipe asked for, as a file's path or as values in one of its dialects."""
        return {"activation_preprocess_type": "PACT"} if self.Slim else self.Recipe

    @property
    def pretrained(self) -> str | None:
        """The weights to start from: a file, or a folder in which the model's have PaddleClas's name."""
        own = self.Arch.pretrained if isinstance(self.Arch.pretrained, str) else None
        return self.Global.pretrained_model or own

    @property
    def num_classes(self) -> int | None:
        """The number of classes asked for, or None: as many as the data has."""
        return self.Arch.class_num or self.Global.class_num

    @property
    def ema_decay(self) -> float | None:
        """The decay of the average of weights; None without one."""
        return self.EMA.decay if self.EMA else self.Global.ema

    @property
    def train_topk(self) -> tuple[int, ...]:
        """The accuracies that are shown while training."""
        return self.Metric.Train[0].topk if self.Metric.Train else ()

    @property
    def eval_topk(self) -> tuple[int, ...]:
        """The accuracies that are measured in evaluation."""
        return self.Metric.Eval[0].topk

    @property
    def amp_level(self) -> AmpLevel:
        """`O0` when mixed precision is off."""
        return self.AMP.level if self.AMP and self.AMP.use_amp else "O0"
