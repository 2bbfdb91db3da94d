from __future__ import annotations

import paddle
from segmentation_head import CONFIG, Segmenter, logits_of, mean_iou, shapes

from lowbit import QAT
from lowbit.nn import preparation_of


def test_every_pixel_is_answered_as_trained(run_example):
    made = run_example("segmentation_head.py")
    trained = made.figure("quantized  mean IoU")
    assert trained > 0.6
    assert abs(made.figure("exported   mean IoU") - trained) <= 0.005
    assert made.figure("same class for") >= 99.5
    program = paddle.jit.load(str(made.folder / "model"))  # read by Paddle itself, without lowbit
    images, masks = shapes(64, seed=1)
    assert abs(mean_iou(logits_of(program, images), masks) - trained) <= 0.005


def test_transposed_convolutions_are_in_4_bits():
    net = QAT(config=CONFIG).quantize(Segmenter())
    grids = {found.layer.name: str(found.plan.forward.weight.grid) for found in preparation_of(net).layers}
    assert grids == dict.fromkeys(["down1", "down2", "up1", "up2"], "int4")
