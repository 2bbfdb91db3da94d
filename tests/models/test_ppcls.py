"""PaddleClas's models by name. Skipped where its package ppcls is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import paddle
import pytest

from lowbit.errors import LowbitError
from lowbit.models import (
    build_model,
    check_name,
    check_trusted,
    list_ppcls_models,
    load_weights,
    ppcls,
    ppcls_is_installed,
    ppcls_names,
)

needs_ppcls = pytest.mark.skipif(not ppcls_is_installed(), reason=f"no ppcls: {ppcls.HOW_TO_INSTALL}")


@needs_ppcls
def test_names():
    names = ppcls_names()
    assert len(names) > 350 and names == sorted(names)
    assert {"PPLCNet_x1_0", "SwinTransformer_tiny_patch4_window7_224", "ResNet50_vd"} <= set(names)
    assert "get_apis" not in names and "AdaFace_IR_18" not in names  # no classifiers
    assert [entry.name for entry in list_ppcls_models()] == names


@needs_ppcls
@pytest.mark.parametrize("name", ["PPLCNet_x0_25", "MobileNetV1_x0_25", "ppcls:ResNet18"])
def test_a_model_by_name(name):
    model = build_model(name, num_classes=7)
    model.eval()
    assert type(model).__module__.startswith("ppcls.")
    assert list(model(paddle.rand([2, 3, 32, 32])).shape) == [2, 7]


@needs_ppcls
def test_lowbit_s_own_models_come_first():
    assert type(build_model("ResNet18", num_classes=3)).__module__.startswith("paddle.vision")


@needs_ppcls
def test_keyword_arguments():
    model = build_model("VAN_B0", num_classes=3, drop_path_rate=0.5)
    rates = [layer.drop_prob for layer in model.sublayers() if type(layer).__name__ == "DropPath"]
    assert float(max(rates)) == pytest.approx(0.5)
    with pytest.raises(LowbitError, match=r'building "VAN_B0" failed .*unexpected keyword.*drop_raet'):
        build_model("VAN_B0", num_classes=3, drop_raet=0.5)
    with pytest.raises(
        LowbitError, match=r'"PPLCNet_x0_25" has no option "dropout_porb": did you mean "dropout'
    ):
        build_model("PPLCNet_x0_25", num_classes=3, dropout_porb=0.5)  # its class takes any keyword
    build_model("PPLCNet_x0_25", num_classes=3, dropout_prob=0.5)
    with pytest.raises(LowbitError, match="downloads no weights"):
        build_model("PPLCNet_x0_25", num_classes=3, pretrained=True)


@needs_ppcls
def test_models_whose_parameters_have_fixed_names_are_built_twice():
    first, second = (build_model("ShuffleNetV2_x0_25", num_classes=3) for _ in range(2))
    fixed = {p.name for p in first.parameters()} & {p.name for p in second.parameters()}
    assert fixed  # Paddle refuses these outside of build_model
    own = [paddle.nn.Linear(1, 1).weight.name for _ in range(2)]
    assert own[0] != own[1] and not fixed & set(own)


@needs_ppcls
def test_weights_from_a_file(tmp_path):
    first, second = (build_model("PPLCNet_x0_25", num_classes=3) for _ in range(2))
    paddle.save(first.state_dict(), str(tmp_path / "weights.pdparams"))
    assert load_weights(second, tmp_path / "weights.pdparams") == []
    x = paddle.rand([1, 3, 32, 32])
    first.eval(), second.eval()
    np.testing.assert_array_equal(first(x).numpy(), second(x).numpy())


@needs_ppcls
@pytest.mark.parametrize("name", ["PPLCNet_x1_1", "ppcls:PPLCNet_x1_1"])
def test_misspelt(name):
    with pytest.raises(LowbitError, match='did you mean "PPLCNet_x'):
        build_model(name, num_classes=3)
    with pytest.raises(LowbitError, match='did you mean "PPLCNet_x'):
        check_name(name)
    check_name("PPLCNet_x1_0")


def test_names_are_checked_without_building():
    check_name("resnet20")
    check_name("no_such_module:Net")  # the user's own is imported when it is built, and not before
    with pytest.raises(LowbitError, match='unknown model "resnt20": did you mean "resnet20"'):
        check_name("resnt20")


def test_a_file_may_name_a_model_of_paddleclas_and_no_other_module():
    check_trusted("ppcls:ResNet18", "a.lowbit")
    check_trusted("PPLCNet_x1_0", "a.lowbit")
    with pytest.raises(LowbitError, match="imports no code"):
        check_trusted("ppcls.arch.backbone.model_zoo.unknown:Net", "a.lowbit")


@pytest.mark.parametrize("name", ["PPLCNet_x1_0", "ppcls:ResNet18"])
def test_without_ppcls_the_error_says_how_to_get_it(monkeypatch, name):
    monkeypatch.setattr(ppcls, "find_spec", lambda module: None)
    monkeypatch.delitem(sys.modules, "ppcls", raising=False)
    ppcls._constructors.cache_clear()
    with pytest.raises(LowbitError, match=r"lowbit\[paddleclas\].*--no-deps paddleclas"):
        build_model(name, num_classes=3)


def test_a_checkout_on_the_path_is_taken(tmp_path):
    """A `ppcls` on PYTHONPATH wins over the wheel's; it needs no more than these files."""
    package = tmp_path / "ppcls"
    (package / "arch" / "backbone").mkdir(parents=True)
    (package / "utils").mkdir()
    for folder in ("", "arch", "utils"):
        (package / folder / "__init__.py").write_text("")
    (package / "utils" / "logger.py").write_text("_logger = None\ndef init_logger(log_level): pass\n")
    (package / "arch" / "backbone" / "__init__.py").write_text(
        "import paddle\n__all__ = ['TinyOfMine', 'helper']\ndef helper(x): pass\n"
        "def TinyOfMine(class_num=10, pretrained=False): return paddle.nn.Linear(4, class_num)\n"
    )
    code = "import json; from lowbit.models import build_model, ppcls_names; "
    code += "print(json.dumps([ppcls_names(), list(build_model('TinyOfMine', 3).weight.shape)]))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == [["TinyOfMine"], [4, 3]]
