"""`lowbit report`: one or more runs become one HTML page that needs no network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.options import AsJson, Quiet, TrustCode
from lowbit.formatting import bytes_text


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, to be overlaid.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="The page; left out: report.html in the last run."),
    ] = None,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write a self-contained HTML report: verdict, curves, predictions, layers, plan, verification, sizes.

    **Examples**

    - `lowbit report runs/w4a4` writes `runs/w4a4/report.html`
    - `lowbit report runs/fp32 runs/w8a8 runs/w4a4 --output compare.html` overlays three runs
    """
    from lowbit.report import write_report

    page = output or runs[-1] / "report.html"
    for line in write_report(runs, page, trust=trust_code):
        if not (quiet or as_json):
            print(line, file=sys.stderr)
    if as_json:
        print(json.dumps({"report": str(page), "size": page.stat().st_size}))
    else:
        print(f"Report: {page} ({bytes_text(page.stat().st_size)})")
