from __future__ import annotations

import paddle
import pytest
from paddle.base import core
from threadpoolctl import threadpool_info

from lowbit.errors import LowbitError
from lowbit.machine.device import (
    Device,
    PaddleBuild,
    math_threads,
    math_threads_kept,
    paddle_build,
    resolve_device,
)

CPU_BUILD = PaddleBuild(version="3.3.1", commit="abc", cuda=None, cudnn=None, cards=0)
NO_CARD = PaddleBuild(version="3.3.1", commit="abc", cuda="12.6", cudnn="9.5", cards=0)
TWO_CARDS = PaddleBuild(version="3.3.1", commit="abc", cuda="12.6", cudnn="9.5", cards=2)


@pytest.mark.parametrize(
    ("name", "build", "expected"),
    [
        (None, CPU_BUILD, "cpu"),
        (None, NO_CARD, "cpu"),
        (None, TWO_CARDS, "gpu"),
        ("cpu", TWO_CARDS, "cpu"),
        ("CPU", CPU_BUILD, "cpu"),
        ("gpu", TWO_CARDS, "gpu"),
        ("gpu:1", TWO_CARDS, "gpu:1"),
    ],
)
def test_what_is_there_is_given(name, build, expected):
    device = resolve_device(name, build=build)
    assert device == Device(expected)
    assert str(device) == expected and device.is_gpu == expected.startswith("gpu")


def test_index():
    assert [Device(name).index for name in ("cpu", "gpu", "gpu:1")] == [None, None, 1]


def test_a_gpu_on_a_cpu_build_is_a_clear_error():
    with pytest.raises(
        LowbitError, match=r"gpu:0.*Paddle 3\.3\.1 is a CPU build.*--device cpu.*paddlepaddle-gpu"
    ):
        resolve_device("gpu:0", build=CPU_BUILD)


def test_a_gpu_build_without_a_card_names_cuda_and_no_other_package():
    with pytest.raises(LowbitError, match=r"CUDA 12\.6.*sees no card.*--device cpu") as error:
        resolve_device("gpu", build=NO_CARD)
    assert "paddlepaddle-gpu" not in str(error.value)


def test_a_card_too_many():
    with pytest.raises(LowbitError, match=r"gpu:2.*sees 2 cards.*gpu:0 to gpu:1"):
        resolve_device("gpu:2", build=TWO_CARDS)


@pytest.mark.parametrize("name", ["gpu", "gpu:7"])
def test_a_config_files_gpu_becomes_cpu_with_a_line(name):
    device = resolve_device(name, insist=False, build=CPU_BUILD)
    assert device.name == "cpu"
    assert device.note is not None and name in device.note and "CPU build" in device.note
    assert "\n" not in device.note


@pytest.mark.parametrize("insist", [True, False])
@pytest.mark.parametrize("name", ["gpuu", "gpu:", "gpu:-1", "cuda", "", "gpu:0,1"])
def test_unknown_names_are_errors_either_way(name, insist):
    with pytest.raises(LowbitError, match="unknown device"):
        resolve_device(name, insist=insist, build=TWO_CARDS)


def test_the_installed_build():
    build = paddle_build()
    assert build.version == paddle.__version__
    assert (build.cuda is not None) == paddle.device.is_compiled_with_cuda()
    assert resolve_device(None).name == ("gpu" if build.cards else "cpu")


def threads_now() -> int:
    return next(pool["num_threads"] for pool in threadpool_info() if "iomp" in pool["prefix"])


@pytest.fixture
def two_threads(monkeypatch):
    before = math_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    core.set_num_threads(2)
    yield
    core.set_num_threads(before)


def test_restored_after_a_change(two_threads):
    with math_threads_kept():
        core.set_num_threads(1)
        assert threads_now() == 1
    assert threads_now() == 2 == math_threads()


def test_restored_after_an_error(two_threads):
    with pytest.raises(ZeroDivisionError), math_threads_kept():
        core.set_num_threads(1)
        raise ZeroDivisionError
    assert threads_now() == 2
