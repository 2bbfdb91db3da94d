from __future__ import annotations

import io
import json
import subprocess
import sys
from types import ModuleType

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from lowbit.cli import doctor as module
from lowbit.cli.doctor import Finding, checkup, doctor, print_findings
from lowbit.errors import LowbitError
from lowbit.kernels import kernels, why_missing
from lowbit.machine.cpu import PROCESSORS


@pytest.fixture(scope="module")
def findings() -> dict[str, Finding]:
    return {finding.name: finding for finding in checkup()}


def test_everything_the_report_promises_is_there(findings):
    assert set(findings) - {"decides as"} == {
        *(
            "Python",
            "system",
            "processor",
            "instructions",
            "cores",
            "memory",
            "C++ compiler",
            "C++ kernels",
            "Paddle",
            "GPU",
        ),
        *("threads", "matrix library", "Paddle Inference", "ONNX Runtime", "OpenVINO", "VisualDL"),
        *("scikit-learn", "simplejpeg", "OpenCV", "export target"),
    }


def test_what_is_not_ok_says_what_it_costs_and_what_is_ok_says_nothing(findings):
    for finding in findings.values():
        assert bool(finding.advice) == (finding.status != "ok"), finding
        assert finding.value and "\n" not in finding.value


def test_this_environment(findings):
    assert findings["Python"].value == sys.version.split()[0]
    assert findings["Paddle"].status == findings["OpenCV"].status == findings["simplejpeg"].status == "ok"


def test_no_compiler(monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    finding = module._compiler()
    assert finding.status == "missing" and "Install g++" in finding.advice


@pytest.mark.parametrize(
    ("codes", "advice"), [((1,), "--version fails"), ((0, 1), "cannot compile a small program")]
)
def test_a_compiler_that_does_not_work(monkeypatch, codes, advice):
    results = iter(codes)
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(
        module.subprocess,
        "run",
        lambda command, **_: subprocess.CompletedProcess(command, next(results), stdout="g++ 12\n"),
    )
    finding = module._compiler()
    assert finding.status == "broken" and advice in finding.advice


def test_a_compiler_that_cannot_be_started(monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda name: "/nowhere/g++")
    assert module._compiler().status == "broken"


def test_only_the_compiler_that_was_chosen_counts(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    finding = module._compiler()
    assert finding.status == "missing" and finding.advice.startswith("CXX=no-such-compiler is not there")


def test_kernels(monkeypatch):
    monkeypatch.setattr(module, "why_missing", lambda: "the C++ kernels were not built")
    finding = module._kernels()
    assert finding.status == "missing" and finding.advice.endswith("the C++ kernels were not built")


@pytest.mark.skipif(why_missing() is not None, reason=f"no kernels: {why_missing()}")
def test_which_kernels_are_in_use():
    assert module._kernels().value.startswith(f"built, using {kernels().variant} ")


@pytest.mark.skipif(why_missing() is not None, reason=f"no kernels: {why_missing()}")
def test_kernels_for_a_processor_that_nobody_tried(monkeypatch):
    monkeypatch.setattr(module.platform, "machine", lambda: "riscv64")
    finding = module._kernels()
    assert finding.value.endswith("untested") and "riscv64" in finding.advice


def test_a_package_that_is_missing_or_broken(monkeypatch, tmp_path):
    finding = module._package("Thing", "no_such_module_here", "no things")
    assert (finding.status, finding.advice) == ("missing", "no things; pip install no_such_module_here")

    (tmp_path / "half_installed.py").write_text("raise ImportError('libthing.so.1: cannot open')")
    (tmp_path / "needs_more.py").write_text("import no_such_module_here")
    monkeypatch.syspath_prepend(tmp_path)
    half = module._package("Thing", "half_installed", "no things")
    assert half.status == "broken" and "libthing.so.1" in half.advice
    needs = module._package("Thing", "needs_more", "no things")
    assert needs.status == "broken" and "no_such_module_here" in needs.advice


def test_a_version_from_the_module_when_the_package_has_another_name(monkeypatch):
    thing = ModuleType("thing_with_other_name")
    thing.__version__ = "7.1"
    monkeypatch.setitem(sys.modules, "thing_with_other_name", thing)
    assert module._package("Thing", "thing_with_other_name", "").value == "7.1"


def test_gpu():
    assert module._gpu("12.6", 2) == Finding("GPU", "2 cards")
    assert "nvidia-smi" in module._gpu("12.6", 0).advice
    assert "paddlepaddle-gpu" in module._gpu(None, 0).advice


@pytest.mark.parametrize(("reason", "words"), [(None, "bf16 is fast"), ("no", "bf16 and fp16 are emulated")])
def test_the_speed_of_bf16_without_a_gpu(monkeypatch, reason, words):
    monkeypatch.setattr("lowbit.accel.bf16_products.why_not", lambda: reason)
    assert f"on the CPU, where {words}" in module._gpu(None, 0).advice


@pytest.mark.parametrize("name", ["amd-avx2", "intel-vnni", "intel-amx"])
def test_another_processor(name, monkeypatch):
    monkeypatch.setenv("LOWBIT_CPU", name)
    found = {finding.name: finding for finding in checkup()}
    processor = PROCESSORS[name]
    assert found["decides as"].value == f"{name} (LOWBIT_CPU): {processor.vendor}, {processor.variant}"
    assert found["export target"].value.startswith("avx2 " if name == "amd-avx2" else "vnni ")


@pytest.mark.skipif(why_missing() is not None, reason=f"no kernels: {why_missing()}")
def test_kernels_that_cannot_run_here(monkeypatch):
    def cannot_run() -> None:
        raise LowbitError("LOWBIT_CPU=intel-amx asks for kernels with amx")

    monkeypatch.setattr(module, "kernels", cannot_run)
    finding = module._kernels()
    assert finding.status == "broken" and "intel-amx" in finding.advice


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
