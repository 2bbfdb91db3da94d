"""advise(): options, exactness and the sentence."""

import dataclasses

import numpy as np
import pytest

import lowbit
from lowbit.api import advise as module
from lowbit.api.advise import Option, recommend
from lowbit.errors import LowbitError
from tests.support.own_networks import PTQ, TwoInputs, build


@pytest.fixture
def quick(monkeypatch):
    """Seconds by form and engine, instead of the clock's."""
    seconds = {}

    def instead(sides, **_options):
        for run in sides.values():
            run()
        return {name: [seconds.get(name, 0.004)] * 3 for name in sides}

    monkeypatch.setattr(module, "time_in_turns", instead)
    return seconds


def option(engine, form, ms, **changes):
    values = {"name": f"{engine} 1", "format": "onnx", "bits": "fp32" if form == "fp32" else "W8A8"}
    values |= {"size": 400 if form == "fp32" else 100, "ms": ms, "faster": 2.0 / ms, "agreement": 1.0}
    return Option(engine=engine, form=form, **(values | {"top1": 0.7, "exact": True} | changes))


FP32 = option("openvino", "fp32", 2.0)


def test_all_engines_and_forms_are_measured(quick, images, labels):
    quick["int8/openvino"] = 0.001
    net = lowbit.quantize(build(), PTQ, data=images)
    found = lowbit.advise(net, (images, labels), baseline=build(), threads=1)
    keys = {(one.form, one.engine) for one in found.options}
    assert keys >= {(form, key) for form in ("fp32", "int8") for key in ("onnxruntime", "openvino")}
    assert ("simulated", "paddle") in keys and ("fp32", "paddle") in keys
    assert found.samples == 40 and found.threads == 1
    best = found.options[0]
    assert (best.form, best.engine, best.bits, best.faster) == ("int8", "openvino", "W8A8", 4.0)
    assert best.exact and best.agreement == 1 and best.top1 is not None
    assert found.recommendation.startswith("deploy onnx (W8A8) in OpenVINO")
    assert "Recommendation: deploy onnx" in str(found) and found.to_dict()["options"][0]["ms"] == 1.0


def test_without_labels_there_is_no_accuracy(quick, images):
    found = lowbit.advise(lowbit.quantize(build(), PTQ, data=images), images)
    assert all(one.top1 is None for one in found.options)
    assert "top-1" not in found.recommendation


def test_networks_that_it_is_not_for(images):
    with pytest.raises(LowbitError, match="not quantized"):
        lowbit.advise(build(), images)
    net = TwoInputs()
    data = [(np.zeros((4, 6), np.float32), np.zeros((4, 4), np.float32))]
    with pytest.raises(LowbitError, match="from images"):
        lowbit.advise(net, data)


def test_a_faster_form_is_recommended_with_what_it_costs():
    words = recommend([option("onnxruntime", "int8", 1.0, top1=0.69), FP32])
    assert words == (
        "deploy onnx (W8A8) in onnxruntime 1: 2.00x as fast as the fastest fp32 (openvino 1), 4.00x smaller, "
        "top-1 -1.00 points."
    )


def test_where_nothing_is_faster_fp32_is_recommended():
    words = recommend([option("onnxruntime", "int8", 3.0), FP32])
    assert words.startswith("nothing quantized is faster here than fp32 in openvino 1")
    assert "--form fp32" in words and "4.00x smaller" in words


def test_a_form_that_computes_something_else_is_never_recommended():
    wrong = option("onnxruntime", "int8", 0.5, exact=False)
    right = option("openvino", "int8", 1.5)
    assert recommend([wrong, right, FP32]).startswith("deploy onnx (W8A8) in openvino 1")
    assert "none of the quantized forms" in recommend([wrong, FP32])


def test_a_destroyed_model_is_not_recommended():
    words = recommend([option("onnxruntime", "int8", 0.5, top1=0.001), FP32])
    assert words.startswith("do not deploy this quantization") and "70.00 % to 0.10 %" in words


def test_options_hold_plain_values():
    assert set(dataclasses.asdict(FP32)) >= {"engine", "form", "bits", "ms", "faster", "size", "top1"}
