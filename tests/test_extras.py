from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lowbit import extras
from lowbit.deploy.verify import candidates
from lowbit.errors import LowbitError

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def _optional_dependencies() -> dict[str, list[str]]:
    section = PYPROJECT.read_text("utf-8").split("[project.optional-dependencies]")[1].split("\n[project")[0]
    lines = re.findall(r"^(\w+) = (\[.*?\])(?:\s*#.*)?$", section, re.MULTILINE)
    return {name: json.loads(value) for name, value in lines}


def test_every_extra_is_declared_and_installs_its_package():
    declared = _optional_dependencies()
    packages = {"sklearn": "scikit-learn", "prometheus_client": "prometheus-client"}
    for module, extra in extras.EXTRAS.items():
        installed = [re.match(r"[\w-]+", requirement)[0] for requirement in declared[extra]]
        assert packages.get(module, module) in installed
    (everything,) = declared["all"]
    assert set(re.search(r"\[(.+)\]", everything)[1].split(",")) == set(extras.EXTRAS.values())
    assert {"lowbit[all]", "lowbit[paddleclas]"} <= set(declared["dev"])


def test_a_missing_package_is_an_error_that_names_the_command():
    assert extras.import_package("json", "JSON") is json
    with pytest.raises(LowbitError, match=r"Thing cannot be used \(.*\): pip install no_such_module"):
        extras.import_package("no_such_module", "Thing")
    assert not extras.is_installed("no_such_module")


def test_verify_goes_on_without_openvino(monkeypatch):
    monkeypatch.setattr(candidates, "is_installed", lambda module: module != "openvino")
    keys, notes = candidates.installed_engines()
    assert keys == ["paddle", "onnxruntime", "lowbit"]
    assert notes == ["openvino is not installed and is skipped: pip install 'lowbit[openvino]'"]
