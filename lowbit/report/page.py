"""The report: one HTML file that needs no network, made of runs' folders."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from lowbit.files import write_atomically
from lowbit.report import deployment, sections
from lowbit.report.charts import curves, layer_series, weight_histograms
from lowbit.report.elements import chart, choice, json_block, paragraph, section
from lowbit.report.run_files import Run, open_runs
from lowbit.version import __version__

# Nothing may be loaded or sent: what the page shows is in the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_ANALYZED = "as lowbit analyze saw them"
_LAYER_CHARTS = (
    ("glance", "All layers", "SQNR in dB, last epoch; choose a point to see its layer"),
    ("sqnr", "SQNR", "dB, by epoch"),
    ("scale", "Scale", "mean step of the grid, by epoch"),
    ("lost", "Lost values", "fraction clipped or rounded to 0, by epoch"),
    ("oscillation", "Oscillating weights", "fraction of the weights, by epoch"),
    ("gain", "Gain of the gradients", "1: nothing is lost on average"),
    ("weights", "Weights", ""),
    ("inputs", "Inputs", _ANALYZED),
    ("grad_input", "Gradients in grad_input", _ANALYZED),
    ("grad_weight", "Gradients in grad_weight", _ANALYZED),
)


def write_report(
    paths: Sequence[str | Path], output: str | Path | None = None, *, trust: bool = False
) -> list[str]:
    """Writes the report of the runs and returns lines that the user should see.

    `output` is the file (default: report.html in the last run's folder). `trust`: also import networks of the
    user's own that only the checkpoints name.

    write_report(["runs/fp32", "runs/w4a4"])
    """
    folders = [Path(path) for path in paths]
    runs = open_runs(folders)
    looked = [weight_histograms(run.path, trust=trust) for run in runs]
    text = make_page(runs, [found for found, _ in looked])
    page = folders[-1] / "report.html" if output is None else Path(output)
    write_atomically(page, lambda file: file.write_text(text, "utf-8"))
    return [f"{run.name}: {line}" for run, (_, line) in zip(runs, looked, strict=True) if line]


def make_page(runs: list[Run], histograms: list[dict[str, Any]]) -> str:
    """The page's text; `histograms` are the weights' by layer, one dictionary for each run."""
    data = {
        "curves": curves(runs),
        "layers": [_layers(run, found) for run, found in zip(runs, histograms, strict=True)],
    }
    parts = [
        deployment.verdict(runs),
        deployment.advice(runs),
        _curves(data["curves"], sections.throughput_note(runs)),
        deployment.predictions(runs),
        _layer_section(runs, data["layers"]),
        sections.gradients(runs),
        sections.sensitivities(runs),
        deployment.verified(runs),
        deployment.sizes(runs),
        sections.plans(runs),
        sections.summary(runs),
        sections.environment(runs),
        sections.commands(runs),
    ]
    names = ", ".join(run.name for run in runs)
    made = time.strftime("%Y-%m-%d %H:%M")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(names)} · lowbit report</title>"
        f"<style>{_asset('uPlot.min.css')}{_asset('page.css')}</style></head>\n<body>"
        f'<a class="skip" href="#verdict">Skip to the verdict</a><header><h1>{escape(names)}</h1>'
        f"<p>lowbit {__version__} report, {made}</p>{_navigation(parts)}</header>\n<main>"
        "<noscript><p>The charts need JavaScript; tables and text do not.</p></noscript>"
        f"{chr(10).join(part for part in parts if part)}</main>\n"
        f"{json_block('data', data)}\n<!--{_asset('uPlot.LICENSE')}-->\n"
        f"<script>{_asset('uPlot.iife.min.js')}</script>\n<script>{_asset('page.js')}</script></body></html>\n"
    )


def _curves(found: list[dict[str, Any]], note: str) -> str:
    if not found:
        return section("curves", "Curves", paragraph("Nothing was trained or evaluated in these runs yet."))
    charts = "".join(chart(one["id"], one["title"], one["unit"]) for one in found)
    noted = paragraph(note, "note") if note else ""
    return section("curves", "Curves", f'<div class="charts">{charts}</div>', noted)


def _layers(run: Run, histograms: dict[str, Any]) -> dict[str, Any]:
    """All that is drawn of a run's layers, in the order of its plan or of its checkpoint."""
    found = layer_series(run)
    analyzed: dict[str, dict[str, Any]] = {"inputs": {}, "grad_input": {}, "grad_weight": {}}
    for one in (row for analysis in run.analyses() for row in analysis["ranking"]):
        seen = {"inputs": one.get("input_histogram"), **one.get("gradient_histograms", {})}
        for operand, histogram in seen.items():
            if histogram:
                analyzed[operand][one["name"]] = histogram
    names = [layer["name"] for layer in run.plan] if run.plan else list(histograms)
    return {
        "epochs": found["epochs"],
        "names": names,
        "operands": [found["layers"].get(name, {}) for name in names],
        "weights": [histograms.get(name) for name in names],
    } | {operand: [seen.get(name) for name in names] for operand, seen in analyzed.items()}


def _layer_section(runs: list[Run], layers: list[dict[str, Any]]) -> str:
    if not any(one["names"] for one in layers):
        return ""
    charts = "".join(chart(*described) for described in _LAYER_CHARTS)
    first = next(number for number, one in enumerate(layers) if one["names"])
    chosen = choice("run", "Run", [run.name for run in runs]) + choice(
        "layer", "Layer", layers[first]["names"]
    )
    return section(
        "layers", "Layers", f'<form class="choices">{chosen}</form><div class="charts">{charts}</div>'
    )


def _navigation(parts: list[str]) -> str:
    """Links to the sections that there are."""
    found = [part.split('"', 2)[1] for part in parts if part]
    links = "".join(f'<li><a href="#{key}">{escape(key.capitalize())}</a></li>' for key in found)
    return f'<nav aria-label="Sections"><ul>{links}</ul></nav>'


def _asset(name: str) -> str:
    return (files("lowbit.report") / "assets" / name).read_text("utf-8").strip()
