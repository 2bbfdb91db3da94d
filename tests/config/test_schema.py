from __future__ import annotations

import pytest

from lowbit.config.transform_ops import DecodeImage, NormalizeImage, RandCropImage, RandFlipImage, ToCHWImage
from tests.support.paddleclas import MOBILENET, RESNET18, SMALL, load_text, mistake


def test_resnet18_of_paddleclas_as_it_is(tmp_path):
    config = load_text(tmp_path, RESNET18)
    assert (config.Arch.name, config.num_classes, config.amp_level) == ("ResNet18", 1000, "O0")
    assert (config.Global.epochs, config.Global.device) == (120, "gpu")
    assert config.Optimizer.lr.values == [0.1, 0.01, 0.001, 0.0001]
    assert config.Optimizer.decay == 1e-4
    train = config.DataLoader.Train
    assert train.dataset.transform_ops == [RandCropImage(size=224), RandFlipImage(), NormalizeImage()]
    assert train.dataset.transform_ops[-1].scale == 1 / 255
    assert (train.sampler.batch_size, train.sampler.shuffle, train.loader.num_workers) == (64, True, 4)
    assert config.Infer.transforms[-1] == ToCHWImage()
    assert config.Infer.PostProcess.topk == 5


def test_mobilenet_of_paddleclas_as_it_is(tmp_path):
    config = load_text(tmp_path, MOBILENET)
    assert (config.Arch.name, config.num_classes) == ("MobileNetV3_small_x1_0", 1000)
    assert config.amp_level == "O0"  # use_amp: False
    assert (config.AMP.scale_loss, config.AMP.level) == (128.0, "O1")
    assert config.Loss.Train[0].CELoss.epsilon == 0.1
    assert config.Loss.Eval[0].CELoss.epsilon is None
    assert (config.Optimizer.lr.name, config.Optimizer.lr.warmup_epoch) == ("Cosine", 5)
    assert config.Optimizer.decay == 2e-5
    assert config.DataLoader.Train.dataset.transform_ops[0] == DecodeImage()


def test_what_a_config_may_leave_out(tmp_path):
    config = load_text(tmp_path, SMALL)
    assert config.num_classes is None
    assert config.Global.output_dir == "./output/"
    assert config.Loss.Train[0].CELoss.weight == 1.0
    assert config.Metric.Eval[0].TopkAcc.topk == [1, 5]
    assert (config.AMP, config.DataLoader.Eval) == (None, None)


def test_earlier_name_of_a_setting(tmp_path):
    assert load_text(tmp_path, SMALL).Global.fast_norm_ops
    earlier = SMALL.replace("  epochs: 2\n", "  fast_neighbours: false\n")
    assert not load_text(tmp_path, earlier).Global.fast_norm_ops
    both = earlier.replace("false\n", "false\n  fast_norm_ops: true\n")
    assert "give one of them" in mistake(tmp_path, both)


@pytest.mark.parametrize(
    ("section", "level"),
    [
        ("AMP: {level: O2}\n", "O2"),  # PaddleClas's older files: the section alone turns it on
        ("AMP: {use_amp: true, level: O1}\n", "O1"),
        ("AMP: {use_amp: false, level: O2}\n", "O0"),
        ("AMP:\n", "O0"),
    ],
)
def test_amp_level(tmp_path, section, level):
    assert load_text(tmp_path, SMALL + section).amp_level == level


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("Global.epochs=0", "Global.epochs: must be greater than or equal to 1, got 0"),
        ("Global.epochs=-3", "Global.epochs: must be greater than or equal to 1, got -3"),
        ("Global.image_shape=[1, 28, 28]", "Global.image_shape.0: must be 3, got 1"),
        ("Global.image_shape=[3, 0, 28]", "Global.image_shape.1: must be greater than or equal to 1, got 0"),
        ("Global.image_shape=[3, 28]", "Global.image_shape.2: missing"),
        ("Global.device=gpuu", 'Global.device: unknown device "gpuu", did you mean "gpu"?'),
        ("Global.checkpoint_dir=/tmp", "Global.checkpoint_dir: expected a folder inside of output_dir"),
        ("Global.checkpoint_dir=a/../../b", "Global.checkpoint_dir: expected a folder inside of output_dir"),
        ("Global.task=detection", "Global.task: must be 'classification', got 'detection'"),
        ("Global.seed=-1", "Global.seed: must be greater than or equal to 0, got -1"),
        ("AMP.level=O3", """AMP.level: must be 'O0', 'O1' or 'O2', got 'O3'"""),
        ("AMP.dtype=fp8", """AMP.dtype: must be 'bf16' or 'fp16', got 'fp8'"""),
        ("AMP.scale_loss=0", "AMP.scale_loss: must be greater than 0, got 0"),
        ("Arch.class_num=0", "Arch.class_num: must be greater than or equal to 1, got 0"),
        ("Arch.class_nun=3", 'Arch.class_nun: unknown key, did you mean "class_num"?'),
        ("Arch.kwargs=3", "Arch.kwargs: "),
        ("Global.train_mode=progressive", "Global.train_mode: "),
        ("Arch.pretrained=3", "Arch.pretrained: expected true, false or the path"),
        ("Arch.kwargs=[1]", "Arch.kwargs: expected a section"),
        ("Arch.kwargs={when: !!binary aGk=}", "Arch.kwargs.when: expected text, a number"),
        ("Loss.Train=[]", "Loss.Train: too few entries"),
        ("Loss.Train=[{CELoss: {}}, {CELoss: {}}]", "Loss.Train: too many entries"),
        ("Loss.Train=[{CELoss: {epsilon: 1}}]", "Loss.Train.0.CELoss.epsilon: must be less than 1, got 1"),
        ("Loss.Train=[{MixCELoss: {}}]", 'Loss.Train.0.MixCELoss: unknown key, did you mean "CELoss"?'),
        ("Metric.Eval=[]", "Metric.Eval: too few entries"),
        ("Metric.Eval=[{TopkAcc: {topk: [5]}}]", "topk must have 1 in it"),
        ("Slim.quant.name=ptq", "Slim.quant.name: "),
    ],
)
def test_impossible_values(tmp_path, override, message):
    text = mistake(tmp_path, SMALL, override)
    assert text.startswith(f"-o {override}: ")
    assert message in text
    assert "\n" not in text


def test_class_num_in_two_places(tmp_path):
    assert load_text(tmp_path, RESNET18, "Arch.class_num=1000").num_classes == 1000
    assert "Arch.class_num and Global.class_num differ" in mistake(tmp_path, RESNET18, "Arch.class_num=10")
