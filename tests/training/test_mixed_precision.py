from __future__ import annotations

import inspect
from contextlib import contextmanager

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import _C_ops, nn

from lowbit.errors import LowbitError
from lowbit.training.mixed_precision import LossScaler, MixedPrecision

MODES = [("O0", "bf16"), ("O1", "bf16"), ("O2", "bf16"), ("O1", "fp16"), ("O2", "fp16")]


def make_model() -> nn.Layer:
    paddle.seed(0)
    return nn.Sequential(
        nn.Conv2D(1, 8, 3, bias_attr=False),
        nn.BatchNorm2D(8),
        nn.Hardswish(),
        nn.Conv2D(8, 8, 3, groups=8, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2D(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


def batch() -> tuple[paddle.Tensor, paddle.Tensor]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 32)
    images = rng.normal(size=(32, 1, 8, 8)) * (0.5 + labels.reshape(-1, 1, 1, 1))
    return paddle.to_tensor(images.astype("float32")), paddle.to_tensor(labels)


def step(precision, model, optimizer, images, labels) -> tuple[float, bool]:
    """One step as the training loop makes it."""
    with precision.autocast():
        loss = F.cross_entropy(model(images), labels)
    precision.scale(loss).backward()
    finite = precision.unscale_(model.parameters())
    if finite:
        optimizer.step()
    precision.update(finite)
    optimizer.clear_grad()
    return float(loss), finite


def train(
    level: str, dtype: str, steps: int = 20, **settings
) -> tuple[list[float], MixedPrecision, nn.Layer]:
    precision = MixedPrecision(level, dtype, "cpu", **settings)
    model = make_model()
    optimizer = paddle.optimizer.Momentum(0.2, 0.9, model.parameters())
    model, optimizer = precision.prepare(model, optimizer)
    images, labels = batch()
    losses = [step(precision, model, optimizer, images, labels)[0] for _ in range(steps)]
    return losses, precision, model


@pytest.mark.parametrize(("level", "dtype"), MODES)
def test_trains(level, dtype):
    losses, _, model = train(level, dtype)
    assert losses[-1] < 0.75 * losses[0]
    # Master weights: fp32 values that lie between the grid's.
    weight = model[0].weight
    assert weight.dtype == paddle.float32
    assert not np.array_equal(weight.numpy(), weight.cast("bfloat16").cast("float32").numpy())


def test_every_mode_computes_something_else_but_nearly_the_same():
    first = {mode: train(*mode, steps=1)[0][0] for mode in MODES}
    assert len(set(first.values())) == len(MODES)
    assert max(first.values()) - min(first.values()) < 0.05


def test_scaling_does_not_change_what_is_learnt_in_fp32():
    # bf16 needs no scaler and gets none; O0 is plain fp32 whatever the type.
    for level, dtype in (("O0", "fp16"), ("O0", "bf16"), ("O1", "bf16"), ("O2", "bf16")):
        precision = MixedPrecision(level, dtype, "cpu")
        loss = paddle.to_tensor([1.5])
        assert precision.scale(loss) is loss
        assert precision.loss_scale == 1.0
        assert precision.state_dict() == {}
        precision.update(True)


def test_fp16_overflow_skips_the_step_and_halves_the_scale():
    precision = MixedPrecision("O1", "fp16", "cpu", init_loss_scaling=2.0**24)
    model = make_model()
    optimizer = paddle.optimizer.Momentum(0.2, 0.9, model.parameters())
    images, labels = batch()
    trainable = [parameter for parameter in model.parameters() if not parameter.stop_gradient]
    before = [parameter.numpy() for parameter in trainable]
    loss, finite = step(precision, model, optimizer, images, labels)
    assert np.isfinite(loss) and not finite
    assert precision.loss_scale == 2.0**23
    for parameter, kept in zip(trainable, before, strict=True):
        assert np.array_equal(parameter.numpy(), kept)
    # It backs off until the gradients fit, and then learns.
    outcomes = [step(precision, model, optimizer, images, labels) for _ in range(20)]
    skipped = [finite for _, finite in outcomes].index(True)
    assert skipped > 0 and all(finite for _, finite in outcomes[skipped:])
    assert precision.loss_scale == 2.0 ** (23 - skipped)
    assert outcomes[-1][0] < loss


def test_fp16_operand_beyond_the_grid_overflows():
    precision = MixedPrecision("O1", "fp16", "cpu")
    with precision.autocast():
        y = paddle.full([1, 1], 300.0) @ paddle.full([1, 1], 300.0)
    assert y.item() == np.inf
    with MixedPrecision("O1", "bf16", "cpu").autocast():
        assert (paddle.full([1, 1], 300.0) @ paddle.full([1, 1], 300.0)).item() == 90112.0


def test_loss_scaling_saves_small_gradients():
    def gradient(scaled: bool) -> float:
        precision = MixedPrecision("O1", "fp16", "cpu", init_loss_scaling=2.0**16 if scaled else 1.0)
        w = paddle.full([1, 1], 1.0)
        w.stop_gradient = False
        with precision.autocast():
            loss = (paddle.full([1, 1], 1.0) @ w).sum() * 1e-9
        precision.scale(loss).backward()
        assert precision.unscale_([w])
        return w.grad.item()

    assert gradient(scaled=False) == 0.0
    assert gradient(scaled=True) == pytest.approx(1e-9, rel=1e-3)


@pytest.mark.parametrize(("level", "dtype"), MODES)
def test_a_bad_gradient_is_found_at_every_level(level, dtype):
    precision = MixedPrecision(level, dtype, "cpu")
    x = paddle.ones([2])
    x.stop_gradient = False
    precision.scale((x * paddle.to_tensor([1.0, np.nan])).sum()).backward()
    assert not precision.unscale_([x])


def test_nothing_stays_patched_after_an_error_in_the_model():
    before = {name: getattr(_C_ops, name) for name in dir(_C_ops)}
    precision = MixedPrecision("O2", "bf16", "cpu")
    with pytest.raises(ValueError), precision.autocast():
        make_model()(paddle.ones([1, 7, 8, 8]))
    assert {name: getattr(_C_ops, name) for name in dir(_C_ops)} == before


def test_state_continues():
    _, first, _ = train("O1", "fp16", steps=3, init_loss_scaling=2.0**24)
    second = MixedPrecision("O1", "fp16", "cpu")
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    assert second.loss_scale < 2.0**24
    MixedPrecision("O1", "bf16", "cpu").load_state_dict({})


def test_state_of_another_precision_is_refused():
    state = MixedPrecision("O1", "fp16", "cpu").state_dict()
    with pytest.raises(LowbitError, match=r"run with loss scaling, unlike this one \(fp32\).*amp_level"):
        MixedPrecision("O0", "fp16", "cpu").load_state_dict(state)
    with pytest.raises(LowbitError, match=r"run without loss scaling, unlike this one \(O2 fp16\)"):
        MixedPrecision("O2", "fp16", "cpu").load_state_dict({})


def test_notice_on_a_cpu_only():
    assert MixedPrecision("O0", "bf16", "cpu").notice() is None
    notice = MixedPrecision("O2", "fp16", "cpu").notice()
    assert "O2" in notice and "fp16" in notice and "\n" not in notice
    assert "precision is real" in notice and "speed is not" in notice


@pytest.mark.parametrize(
    ("level", "dtype", "message"),
    [
        ("O3", "bf16", 'unknown mixed precision level "O3": valid: O0, O1, O2'),
        ("o1", "bf16", 'did you mean "O1"'),
        ("O1", "fp61", 'unknown grid "fp61": did you mean "fp16"'),
        ("O1", "full", "needs a narrow type"),
    ],
)
def test_wrong_words(level, dtype, message):
    with pytest.raises(LowbitError, match=message):
        MixedPrecision(level, dtype, "cpu")


class FakeGradScaler:
    """Stands in for paddle.amp.GradScaler, which switches itself off without a GPU."""

    def __init__(self, **settings) -> None:
        self.settings, self.calls = settings, []
        self._found_inf, self._cache_found_inf = paddle.to_tensor([False]), None

    def scale(self, loss):
        self.calls.append("scale")
        return loss * 2

    def unscale_(self, optimizer) -> None:
        self.calls.append(("unscale_", optimizer))

    def update(self) -> None:
        self.calls.append(("update", self._cache_found_inf))

    def state_dict(self):
        return {"scale": np.float32([2.0])}

    def load_state_dict(self, state) -> None:
        self.calls.append(("load", state))


@pytest.fixture
def gpu(monkeypatch):
    """What was asked of paddle.amp."""
    asked = {}

    @contextmanager
    def auto_cast(**settings):
        asked["auto_cast"] = settings
        yield

    def decorate(**settings):
        asked["decorate"] = settings
        return "model in fp16", "optimizer with master weights"

    monkeypatch.setattr(paddle.amp, "GradScaler", FakeGradScaler)
    monkeypatch.setattr(paddle.amp, "auto_cast", auto_cast)
    monkeypatch.setattr(paddle.amp, "decorate", decorate)
    return asked


def test_gpu_o2_fp16_is_paddles(gpu):
    precision = MixedPrecision("O2", "fp16", "gpu:0", init_loss_scaling=128, use_dynamic_loss_scaling=False)
    assert precision.notice() is None
    model = make_model()
    prepared = precision.prepare(model, "optimizer")
    assert prepared == ("model in fp16", "optimizer with master weights")
    decorate = gpu["decorate"]
    assert (decorate["models"], decorate["optimizers"]) == (model, "optimizer")
    assert (decorate["level"], decorate["dtype"], decorate["master_weight"]) == ("O2", "float16", True)
    before = _C_ops.conv2d
    with precision.autocast():
        assert _C_ops.conv2d is before
    assert gpu["auto_cast"] == {"level": "O2", "dtype": "float16"}

    scaler = precision._scaler
    assert scaler.settings == {"init_loss_scaling": 128, "use_dynamic_loss_scaling": False}
    assert precision.scale(paddle.ones([1])).item() == 2
    assert precision.unscale_([]) is True
    precision.update(True)
    scaler._found_inf = paddle.to_tensor([True])
    assert precision.unscale_([]) is False
    precision.update(False)
    unscale = ("unscale_", "optimizer with master weights")
    assert scaler.calls == ["scale", unscale, ("update", False), unscale, ("update", True)]
    assert precision.loss_scale == 2.0
    precision.load_state_dict(precision.state_dict())
    assert scaler.calls[-1][0] == "load"


def test_gpu_o1_bf16_has_no_scaler_and_decorates_nothing(gpu):
    precision = MixedPrecision("O1", "bf16", "gpu")
    model = make_model()
    assert precision.prepare(model, "optimizer") == (model, "optimizer")
    with precision.autocast():
        pass
    assert gpu == {"auto_cast": {"level": "O1", "dtype": "bfloat16"}}
    assert precision.state_dict() == {}
    assert precision.unscale_([paddle.ones([1])])


def test_gpu_step_before_prepare(gpu):
    with pytest.raises(RuntimeError, match="prepare"):
        MixedPrecision("O1", "fp16", "gpu").unscale_([])


def test_paddles_scaler_still_keeps_its_verdict_where_we_read_it():
    source = inspect.getsource(paddle.amp.GradScaler.__mro__[1])
    assert "self._found_inf" in source and "if self._cache_found_inf:" in source
    names = inspect.signature(paddle.amp.GradScaler).parameters
    assert set(inspect.signature(LossScaler).parameters) <= set(names)
    for function, words in (
        (paddle.amp.auto_cast, "level dtype"),
        (paddle.amp.decorate, "master_weight save_dtype"),
    ):
        assert set(words.split()) <= set(inspect.signature(function).parameters)
