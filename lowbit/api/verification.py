"""What `verify` returns: every engine's agreement, size and speed, printed as tables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lowbit.api.result import Result
from lowbit.deploy.verify import Size
from lowbit.deploy.verify.comparison import EngineReport, Report
from lowbit.deploy.verify.tables import report_sections
from lowbit.formatting import Section, bytes_text, number, percent


@dataclass(frozen=True)
class Speed:
    """Latency of a batch in fp32 and quantized, in the same engine, measured interleaved."""

    batch_size: int
    fp32_ms: float
    quantized_ms: float
    ratio: float  # above 1: quantized is faster


@dataclass(frozen=True)
class VerifiedEngine:
    """The result of one engine."""

    engine: str  # "paddle", "onnxruntime", …
    name: str  # with its version
    passed: bool
    samples: int  # that it was run on; fewer than `Verification.samples` if it got a sample of them
    agreement: float  # fraction of samples with the network's class; for other outputs: with close answers
    top1: float | None  # of these samples; None without labels
    max_difference: float
    mean_difference: float
    size: int  # bytes of what it reads
    fp32_size: int | None  # None where the network is not quantized
    wrong_layers: tuple[str, ...] = ()  # the first that compute something else, if it failed
    speeds: tuple[Speed, ...] = ()
    note: str | None = None


@dataclass(frozen=True)
class Verification(Result):
    """The result of `verify`."""

    directory: Path
    samples: int
    limit: float
    engines: tuple[VerifiedEngine, ...]
    top1: float | None  # of the network itself; None without labels
    fp32_top1: float | None = None  # of the baseline
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict, repr=False)  # all figures, as in verify.json
    report: Report | None = field(default=None, repr=False, compare=False)  # of classifiers
    sizes: tuple[Size, ...] = field(default=(), repr=False)

    @property
    def passed(self) -> bool:
        """Whether every engine agrees with the network on enough samples."""
        return all(engine.passed for engine in self.engines)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON-compatible values."""
        values = Result.to_dict(replace(self, report=None)) | {"passed": self.passed}
        return {name: value for name, value in values.items() if name not in ("report", "sizes")}

    def _sections(self) -> list[Section]:
        if self.report is not None:
            sections = report_sections(self.report, self.sizes)
            return [*sections, Section("", lines=self.notes)] if self.notes else sections
        rows = tuple(
            (
                one.name,
                "passed" if one.passed else "FAILED",
                percent(one.agreement),
                number(one.max_difference),
                bytes_text(one.size),
            )
            for one in self.engines
        )
        columns = ("engine", "", "agrees", "max diff.", "size")
        title = f"{self.directory} against the network on {self.samples} samples"
        title += f" (limit {percent(self.limit)})"
        return [Section(title, columns, rows, self.notes, left=2)]


def describe_engine(engine: EngineReport, report: Report, size: Size) -> VerifiedEngine:
    """What a report says about one of its engines."""
    return VerifiedEngine(
        engine=engine.key,
        name=engine.name,
        passed=engine not in report.failing,
        samples=engine.result.images,
        agreement=engine.result.agreement,
        top1=engine.result.top1,
        max_difference=engine.result.max_difference,
        mean_difference=engine.result.mean_difference,
        size=size.exported,
        fp32_size=size.fp32,
        wrong_layers=tuple(engine.wrong_layers) if engine in report.failing else (),
        speeds=tuple(
            Speed(one.batch_size, one.fp32_ms, one.quantized_ms, one.ratio) for one in engine.latency
        ),
        note=engine.note,
    )
