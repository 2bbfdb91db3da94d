from __future__ import annotations

import inspect
from contextlib import contextmanager

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paddle import _C_ops, nn

from lowbit.accel import bf16_products
from lowbit.config import Config
from lowbit.errors import LowbitError
from lowbit.training import loop
from lowbit.training.mixed_precision import LossScaler, MixedPrecision, gradients_are_finite
from tests.support.runs import tiny_values, weights_hash

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
    if bf16_products.why_not() is None:
        assert "bf16 instructions" in MixedPrecision("O1", "bf16", "cpu", native=True).notice()
    assert not MixedPrecision("O1", "fp16", "cpu", native=True).native
    assert not MixedPrecision("O0", "bf16", "cpu", native=True).native


def test_bf16_instructions_that_are_missing(monkeypatch):
    monkeypatch.setenv("LOWBIT_CPU", "amd-avx2")
    with pytest.raises(LowbitError, match="no bf16 instructions"):
        MixedPrecision("O1", "bf16", "cpu", native=True)


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


def with_gradients(*gradients: list[float]) -> list[paddle.Tensor]:
    """Parameters whose gradients are the given ones, made by backward as in training."""
    parameters = []
    for gradient in gradients:
        parameter = paddle.zeros([len(gradient)])
        parameter.stop_gradient = False
        (parameter * paddle.to_tensor(gradient)).sum().backward()
        parameters.append(parameter)
    return parameters


def test_scaling_and_unscaling_cancel_exactly():
    scaler = LossScaler(init_loss_scaling=1024)
    x = paddle.to_tensor([0.1, 1 / 3], stop_gradient=False)
    (x * x).sum().backward()
    plain = x.grad.numpy()
    x.clear_gradient()
    scaler.scale((x * x).sum()).backward()
    assert np.array_equal(x.grad.numpy(), plain * 1024)
    assert scaler.unscale_([x])
    assert np.array_equal(x.grad.numpy(), plain)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("scale", [1.0, 1024.0])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bad_value_anywhere_is_found(bad, scale, place):
    gradients = [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]
    gradients[place][-1] = bad
    assert not LossScaler(init_loss_scaling=scale).unscale_(with_gradients(*gradients))


def test_parameters_without_gradients_are_passed_over():
    frozen = paddle.zeros([2])
    for scale in (1.0, 1024.0):
        scaler = LossScaler(init_loss_scaling=scale)
        assert scaler.unscale_([frozen])
        assert scaler.unscale_([])
        assert scaler.unscale_([frozen, *with_gradients([1.0])])
        assert not scaler.unscale_([frozen, *with_gradients([np.nan])])


def test_check_leaves_gradients_alone():
    (parameter,) = with_gradients([1 / 3, 1e-30])
    before = parameter.grad.numpy()
    assert gradients_are_finite([parameter])
    assert np.array_equal(parameter.grad.numpy(), before)


def test_grows_after_good_steps_and_backs_off_at_once():
    scaler = LossScaler(init_loss_scaling=8, incr_every_n_steps=3)
    seen = []
    for finite in (True, True, True, True, True, False, True, True, True):
        scaler.update(finite)
        seen.append(scaler.value)
    assert seen == [8, 8, 16, 16, 16, 8, 8, 8, 16]


def test_back_off_after_several_bad_steps_in_a_row():
    scaler = LossScaler(init_loss_scaling=8, decr_every_n_nan_or_inf=2)
    seen = []
    for finite in (False, True, False, False):
        scaler.update(finite)
        seen.append(scaler.value)
    assert seen == [8, 8, 8, 4]


@given(st.lists(st.booleans(), max_size=300))
def test_scale_stays_a_power_of_two_within_bounds(steps):
    scaler = LossScaler(incr_every_n_steps=1)
    for finite in steps:
        scaler.update(finite)
        assert 1.0 <= scaler.value <= 2.0**31
        assert np.log2(scaler.value) == int(np.log2(scaler.value))


def test_static_scale_never_moves():
    scaler = LossScaler(init_loss_scaling=128, incr_every_n_steps=1, use_dynamic_loss_scaling=False)
    for finite in (True, False, True):
        scaler.update(finite)
    assert scaler.value == 128


@given(st.lists(st.booleans(), max_size=20), st.lists(st.booleans(), max_size=20))
def test_resumed_scaler_continues_as_if_undisturbed(before, after):
    whole = LossScaler(incr_every_n_steps=3, decr_every_n_nan_or_inf=2)
    for finite in before:
        whole.update(finite)
    resumed = LossScaler(init_loss_scaling=2)
    resumed.load_state_dict(whole.state_dict())
    for finite in after:
        whole.update(finite)
        resumed.update(finite)
    assert whole.state_dict() == resumed.state_dict()


def test_state_has_the_keys_of_paddles_scaler():
    source = inspect.getsource(paddle.amp.GradScaler.__mro__[1].state_dict)
    for key in LossScaler().state_dict():
        assert f'"{key}"' in source, key
    # Paddle saves the scale as an array.
    scaler = LossScaler()
    scaler.load_state_dict({**scaler.state_dict(), "scale": np.float32([256.0])})
    assert scaler.value == 256.0


def test_foreign_state_is_refused():
    with pytest.raises(LowbitError, match=r"lacks scale, incr_ratio.*resume it with the precision"):
        LossScaler().load_state_dict({})


@pytest.mark.parametrize(
    "settings",
    [
        {"init_loss_scaling": 0},
        {"init_loss_scaling": float("nan")},
        {"init_loss_scaling": 2.0**40},
        {"incr_ratio": 1.0},
        {"decr_ratio": 1.0},
        {"decr_ratio": 0.0},
        {"incr_every_n_steps": 0},
        {"decr_every_n_nan_or_inf": 0},
    ],
)
def test_impossible_settings(settings):
    with pytest.raises(LowbitError, match="loss scale"):
        LossScaler(**settings)


@pytest.mark.skipif(bf16_products.why_not() is not None, reason=str(bf16_products.why_not()))
def test_a_run_says_and_records_how_bf16_is_computed(tmp_path, capsys, monkeypatch):
    values = tiny_values(tmp_path / "run", epochs=1)
    values["AMP"] = {"level": "O1", "dtype": "bf16"}
    folder = loop.train(Config.model_validate(values))
    out = capsys.readouterr().out
    assert "by its bf16 instructions" in out and " in bf16: 1437 images" in out
    whole, twice = (tmp_path / name for name in ("whole", "twice"))
    for place, epochs in ((whole, (2,)), (twice, (1, 2))):
        for count in epochs:
            again = tiny_values(place, epochs=count, checkpoints="auto") | {"AMP": values["AMP"]}
            again["Optimizer"]["lr"]["name"] = "Constant"
            loop.train(Config.model_validate(again))
    hashes = {weights_hash(place / "checkpoints" / "latest.lowbit") for place in (whole, twice)}
    assert len(hashes) == 1, "resuming is not exact"
    capsys.readouterr()

    monkeypatch.setenv("LOWBIT_CPU", "amd-avx2")
    again = tiny_values(folder, epochs=2, checkpoints="auto") | {"AMP": values["AMP"]}
    loop.train(Config.model_validate(again))
    out = capsys.readouterr().out
    assert "the speed is not" in out and "not as the same run: convolutions was oneDNN" in out
