"""What the files of a run folder must hold for the report: checked once, when they are read.

The files are lowbit's own, but a user may have edited, merged or truncated them. Only what the report reads
is described; other keys are let through.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, with_config
from typing_extensions import NotRequired, TypedDict

from lowbit.errors import LowbitError
from lowbit.numerics import parse_grid

_STRICT = ConfigDict(strict=True, extra="allow")
LARGEST = 1e300  # sums and products of a few such numbers can still be formatted


def _moderate(value: float) -> float:
    if not abs(value) <= LARGEST:  # also NaN
        raise ValueError("expected a finite number")
    return value


def _grid(name: str) -> str:
    if name not in ("full", "bf16", "fp16"):
        try:
            parse_grid(name)
        except LowbitError as error:
            raise ValueError(str(error)) from None
    return name


Number = Annotated[int | float, AfterValidator(_moderate)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Fraction = Annotated[int | float, Field(ge=0, le=1)]
Ratio = Annotated[int | float, Field(ge=1e-9, le=1e9)]


@with_config(_STRICT)
class Layer(TypedDict):
    """An entry of plan.json."""

    name: str
    type: str
    shape: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=16)]
    quantized: bool
    note: str
    plan: PlanRecord
    why_not_in_integers: dict[str, str | None]


@with_config(_STRICT)
class Spec(TypedDict):
    """One operand."""

    grid: Annotated[str, AfterValidator(_grid)]
    granularity: str
    observer: str
    scaling: str
    rounding: str
    clip: str


@with_config(_STRICT)
class ForwardRecord(TypedDict):
    """The forward product."""

    input: Spec
    weight: Spec


@with_config(_STRICT)
class Backward(TypedDict):
    """One of the two products with the output's gradient."""

    grad_output: Spec


@with_config(_STRICT)
class PlanRecord(TypedDict):
    """A layer's three products."""

    forward: ForwardRecord
    grad_input: Backward | None
    grad_weight: Backward | None


@with_config(_STRICT)
class Answers(TypedDict):
    """What the model, or an engine, answered."""

    images: Annotated[int, Field(ge=1, le=2**53)]
    top1: Fraction
    top5: Fraction
    agreement: Fraction
    max_difference: Number | None
    seconds: Number


@with_config(_STRICT)
class LatencyRecord(TypedDict):
    """The speed for one batch size."""

    threads: int
    batch_size: int
    fp32_ms: Number
    quantized_ms: Number
    ratio: Ratio
    verdict: str


@with_config(_STRICT)
class EngineAnswers(Answers):
    """An engine of verify.json."""

    engine: str
    name: str
    wrong_layers: NotRequired[list[str]]
    latency: list[LatencyRecord]
    verdict: NotRequired[str]


@with_config(_STRICT)
class OptionRecord(TypedDict):
    """A form in an engine, of advice.json."""

    engine: str
    name: str
    format: str
    form: str
    bits: str
    size: Count
    ms: Number
    faster: Ratio
    agreement: Fraction | None
    top1: Fraction | None
    exact: bool


@with_config(_STRICT)
class Advised(TypedDict):
    """advice.json."""

    options: list[OptionRecord]
    recommendation: str
    samples: Count
    threads: Count


@with_config(_STRICT)
class SizeRecord(TypedDict):
    """The size of one exported format."""

    format: str
    exported: Count
    fp32: Count | None


@with_config(_STRICT)
class Verified(TypedDict):
    """verify.json."""

    images: Annotated[int, Field(ge=1)]
    validation_images: NotRequired[int | None]  # all that there are; None for images of another folder
    limit: Number
    passed: bool
    model: Answers
    fp32: Answers | None
    integer_reference: Answers | None
    engines: list[EngineAnswers]
    sizes: list[SizeRecord]
    evidence: NotRequired[EvidenceRecord]
    predictions: NotRequired[PredictionsRecord | None]


@with_config(_STRICT)
class EvidenceRecord(TypedDict):
    """Whether agreement proves something; see `lowbit.deploy.verify.evidence`."""

    judged_by: str
    reason: str


@with_config(_STRICT)
class DifferingImage(TypedDict):
    """An image to which fp32 and the quantized model give different classes."""

    name: str
    label: Count
    classes: dict[str, Count]
    jpeg: Annotated[str, Field(max_length=100_000, pattern=r"^[A-Za-z0-9+/]*={0,2}$")]


@with_config(_STRICT)
class Differing(TypedDict):
    """All images on which fp32 and the quantized model differ: how many, and some of them."""

    lost: Count
    gained: Count
    both_wrong: Count
    images: Annotated[list[DifferingImage], Field(max_length=100)]


_Index = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]


@with_config(_STRICT)
class PredictionsRecord(TypedDict):
    """The classes that the images got; see `lowbit.deploy.verify.predictions`."""

    classes: list[str]
    confusion: dict[str, dict[_Index, dict[_Index, Count]]]
    differing: Differing | None


@with_config(_STRICT)
class Record(TypedDict):
    """A line of metrics.jsonl."""

    kind: str
    epoch: NotRequired[Annotated[int, Field(ge=0, le=2**53)]]


@with_config(_STRICT)
class Health(Record):
    """A line of metrics.jsonl about the operands of all layers."""

    epoch: Annotated[int, Field(ge=0, le=2**53)]  # type: ignore[misc]  # here it is required
    layers: dict[str, dict[str, dict[str, Number | None]]]


@with_config(_STRICT)
class Ranked(TypedDict):
    """A layer of an analysis."""

    name: str
    bits: str
    only_loss: Number
    without_loss: Number
    only_top1: Number
    weight_sqnr: Number | None
    input_sqnr: Number | None
    gradient_sqnr: NotRequired[Number | None]
    input_histogram: NotRequired[dict[str, JsonValue] | None]
    gradient_histograms: NotRequired[dict[str, dict[str, JsonValue] | None]]


@with_config(_STRICT)
class AnalysisRecord(TypedDict):
    """An entry of analysis.json; one that is not finished has no ranking."""

    title: str
    ranking: NotRequired[list[Ranked]]


@with_config(_STRICT)
class Analyses(TypedDict):
    """analysis.json."""

    analyses: dict[str, AnalysisRecord]


@with_config(_STRICT)
class RunRecord(TypedDict, total=False):
    """run.json."""

    lowbit: str
    started: str
    command: Annotated[list[str], Field(min_length=1)]
    environment: dict[str, str]


@with_config(_STRICT)
class Arch(TypedDict, total=False):
    """The network in config.yaml."""

    name: str


@with_config(_STRICT)
class RunConfig(TypedDict, total=False):
    """config.yaml, of which only the network's name is read; the rest is shown as it is."""

    Arch: Arch


PLAN, VERIFIED, ANALYSES = TypeAdapter(list[Layer]), TypeAdapter(Verified), TypeAdapter(Analyses)
RECORD, HEALTH, RUN_RECORD = TypeAdapter(Record), TypeAdapter(Health), TypeAdapter(RunRecord)
ADVISED = TypeAdapter(Advised)
CONFIG, JSON = TypeAdapter(RunConfig), TypeAdapter(dict[str, JsonValue])


def check(values: Any, kind: TypeAdapter[Any], where: Path | str, advice: str) -> Any:
    """The values themselves, if they are what `kind` says; else a LowbitError with the first mistake."""
    try:
        kind.validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise LowbitError(f"{where}: {place or 'the file'}: {message}; {advice}") from None
    except RecursionError:
        raise LowbitError(f"{where}: nested too deeply; {advice}") from None
    return values


def read_json(path: Path, kind: TypeAdapter[Any]) -> Any:
    """What a JSON file of a run holds, checked; None where there is no such file."""
    if not path.is_file():
        return None
    advice = "remove it or create it again"
    return check(parse_json(read_text(path), path, advice), kind, path, advice)


def read_text(path: Path) -> str:
    """The text of a file in UTF-8."""
    try:
        return path.read_text("utf-8")
    except (ValueError, OSError) as error:
        raise LowbitError(f"cannot read {path}: {error}; remove it or create it again") from None


def parse_json(text: str, where: Path | str, advice: str) -> Any:
    """JSON without NaN, infinities and lone surrogates, which a page in UTF-8 cannot have."""
    try:
        values = json.loads(text, parse_constant=_no_constant)
        if "\\u" in text:
            json.dumps(values, ensure_ascii=False).encode()
        return values
    except UnicodeEncodeError:
        raise LowbitError(f"cannot read {where}: it has half a character in it; {advice}") from None
    except RecursionError:
        raise LowbitError(f"cannot read {where}: nested too deeply; {advice}") from None
    except ValueError as error:
        raise LowbitError(f"cannot read {where}: {error}; {advice}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
