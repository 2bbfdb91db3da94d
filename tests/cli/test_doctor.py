from __future__ import annotations

import io
import json

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from lowbit.cli.checkup import Finding
from lowbit.cli.doctor import doctor, print_findings


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(doctor)
    return app


def test_the_table(app):
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0, result.output
    for name in ("Python", "processor", "C++ compiler", "Paddle", "matrix library", "OpenVINO", "VisualDL"):
        assert name in result.output


def test_json_is_json_and_nothing_else(app):
    result = CliRunner().invoke(app, ["--json"])
    findings = json.loads(result.stdout)
    assert {"name", "value", "status", "advice"} == set(findings[0])
    assert {finding["status"] for finding in findings} <= {"ok", "missing", "broken"}


def test_advice_stands_under_its_finding_and_brackets_are_kept():
    out = io.StringIO()
    findings = [
        Finding("C++ compiler", "g++ [Debian 12.2]", "broken", "it cannot compile"),
        Finding("OpenVINO", "not installed", "missing", "pip install openvino"),
        Finding("Paddle", "3.3.1"),
    ]
    print_findings(findings, Console(file=out, width=80))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert lines == [
        "! C++ compiler g++ [Debian 12.2]",
        "it cannot compile",
        "- OpenVINO not installed",
        "pip install openvino",
        "ok Paddle 3.3.1",
        "needs repair: C++ compiler",
    ]
