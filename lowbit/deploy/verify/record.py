"""A report as plain values, for `verify.json` and for other programs."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from lowbit.deploy.verify.candidates import Size
from lowbit.deploy.verify.evidence import RELATIVE_ERROR
from lowbit.deploy.verify.layers import LayerDifference
from lowbit.deploy.verify.steps import Steps
from lowbit.deploy.verify.verify import EngineReport, Report

FORMAT = 1


def report_values(report: Report, sizes: list[Size], **about: Any) -> dict[str, Any]:
    """All figures; `about` comes first (which run, which versions). What is not finite becomes null.

    json.dumps(report_values(report, sizes, run="runs/digits"))
    """
    values = {
        "format": FORMAT,
        **about,
        "images": report.model.images,
        "limit": report.limit,
        "passed": not report.failing,
        "evidence": asdict(report.evidence)
        | {
            "conclusive": report.evidence.conclusive,
            "judged_by": report.evidence.judged_by,
            "relative_error_limit": RELATIVE_ERROR,
        },
        "model": asdict(report.model),
        "fp32": None if report.fp32 is None else asdict(report.fp32),
        "integer_reference": _integers(report),
        "engines": [_engine(engine, report) for engine in report.engines],
        "sizes": [asdict(size) | {"ratio": size.ratio} for size in sizes],
    }
    return _finite(values)


def _integers(report: Report) -> dict[str, Any] | None:
    if report.integers is None:
        return None
    return asdict(report.integers) | {
        "integers": report.integers_compared,
        "unequal": report.integers_unequal,
        "first_layer": report.integers_first_layer,
    }


def _engine(engine: EngineReport, report: Report) -> dict[str, Any]:
    layers = None if engine.layers is None else [_layer(row) for row in engine.layers]
    return {
        "engine": engine.key,
        "name": engine.name,
        "threads": engine.threads,
        "note": engine.note,
        **asdict(engine.result),
        "passed": engine not in report.failing,
        "verdict": report.verdict(engine),
        "guilty": engine.guilty,
        "layers": layers,
        "latency": [asdict(latency) | {"verdict": latency.verdict()} for latency in engine.latency],
    }


def _layer(row: LayerDifference) -> dict[str, Any]:
    return {
        "layer": row.name,
        "made_by": row.made_by,
        "departs": row.departs,
        "by_itself": _steps(row.by_itself),
        "altogether": _steps(row.altogether),
    }


def _steps(steps: Steps) -> dict[str, float]:
    return {
        "count": steps.count,
        "differing": steps.differing,
        "more_than_one_step": steps.far,
        "largest": steps.largest,
        "sqnr_db": steps.sqnr,
    }


def _finite(value: Any) -> Any:
    """JSON has no infinities."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
