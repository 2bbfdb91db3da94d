"""The sweep's bookkeeping, and a dozen families of PaddleClas on the way from fp32 to ONNX."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

import lowbit
from benchmarks import model_sweep
from lowbit.deploy import OnnxRuntimeEngine
from lowbit.models import build_model, ppcls, ppcls_is_installed, ppcls_names
from lowbit.training.losses import cross_entropy_of_outputs

GOOD = {"top1": 1.0, "onnxruntime": 1.0, "openvino": 1.0, "loss": 0.1}
RESULT = {"family": "A", "size": 32, "fp32": GOOD, "w8a8": GOOD, "w4a4g4": {"loss": 0.2}}
needs_ppcls = pytest.mark.skipif(not ppcls_is_installed(), reason=f"no ppcls: {ppcls.HOW_TO_INSTALL}")


def test_what_passes():
    assert model_sweep.problems(RESULT) == ""
    low = RESULT | {"w8a8": GOOD | {"openvino": 63 / 64, "openvino_near_ties": 1}}
    assert model_sweep.problems(low) == "w8a8 in openvino: same class on 98.4% (1 near-ties)"
    guessing = RESULT | {"fp32": GOOD | {"top1": 0.5}}
    assert model_sweep.problems(guessing) == "fp32: it learned too little, top-1 50%"
    assert model_sweep.problems(RESULT | {"failed": "fp32: no operator | of that name"}).startswith("fp32")


def test_the_table():
    failed = {"family": "B", "size": 64, "failed": "fp32: no operator | of that name"}
    lines = model_sweep.table({"a": RESULT, "b": failed}).splitlines()
    assert lines[2] == "| A | `a` | 32² | 100 % / 100 % | 100 % / 100 % | yes |  |"
    assert lines[3] == "| B | `b` | 64² | no | no | no | fp32: no operator / of that name |"


def test_results_are_of_models_in_the_sweep():
    cases = {case.name: case for case in model_sweep.CASES}
    for name, found in model_sweep.read_results().items():
        assert found["family"] == cases[name].family and found["size"] == cases[name].size
    page = model_sweep.PAGE.read_text("utf-8")
    assert model_sweep.table(model_sweep.read_results()) in page
    assert model_sweep.summary(model_sweep.read_results()) in page


@needs_ppcls
def test_every_model_of_the_sweep_has_a_name():
    known = {*ppcls_names(), *lowbit.models.model_names(), "paddle.vision.models:LeNet"}
    assert {case.name.removeprefix("ppcls:") for case in model_sweep.CASES} <= known


def test_every_model_of_paddle_vision_is_in_the_sweep():
    ours = {name for name in lowbit.models.model_names() if hasattr(paddle.vision.models, name)}
    assert len(ours) > 30
    assert ours <= {case.name for case in model_sweep.CASES}


DOZEN = [
    "DeiT_tiny_patch16_224", "ESNet_x0_25", "GhostNet_x0_5", "MobileNetV1_x0_25", "MobileNetV2_x0_25",
    "MobileNetV3_small_x0_35", "MobileViT_XXS", "PPLCNet_x0_25", "PPLCNetV2_small", "RegNetX_200MF",
    "ShuffleNetV2_x0_25", "SqueezeNet1_1",
]  # fmt: skip


@needs_ppcls
@pytest.mark.parametrize("name", DOZEN)
def test_a_family_exports_and_trains_quantized(name, tmp_path):
    """Untrained, so in fp32: rounding in random weights grows too large to compare. The sweep has both."""
    case = next(case for case in model_sweep.CASES if case.name == name)
    paddle.seed(0)
    net = build_model(name, model_sweep.CLASSES, **case.kwargs)
    images, labels = model_sweep._data(case, 0, 8)
    net.eval()
    lowbit.export(net, tmp_path, example=images[:3], formats="onnx")
    own = net(paddle.to_tensor(images)).numpy()
    found = OnnxRuntimeEngine(tmp_path / "inference.onnx", threads=1).run(images)
    # GhostNet's logits are in the thousands before training; ONNX Runtime's sums differ by 1.25e-3 of them.
    np.testing.assert_allclose(found, own, rtol=0, atol=5e-3 * np.abs(own).max())
    net = lowbit.quantize(net, "qat_w8a8", data=[images])
    net.train()
    optimizer = paddle.optimizer.SGD(1e-3, parameters=net.parameters())
    loss = cross_entropy_of_outputs(net(paddle.to_tensor(images)), paddle.to_tensor(labels))
    loss.backward()
    optimizer.step()
    assert np.isfinite(float(loss))
