from __future__ import annotations

import pytest

from lowbit.errors import LowbitError
from lowbit.tipc.fields import DeviceChoice, Field
from lowbit.tipc.steps import Builder, Machine, Step, StepKind

CPU, ONE, TWO = DeviceChoice(()), DeviceChoice((0,)), DeviceChoice((0, 1))
MACHINES = DeviceChoice((0, 1), ("10.0.0.1", "10.0.0.2"))
LAUNCH = ("-m", "paddle.distributed.launch")


@pytest.mark.parametrize(
    ("machine", "choice", "reason"),
    [
        (Machine(cards=0), CPU, None),
        (Machine(cards=0), ONE, "needs card 0; Paddle sees no card here"),
        (Machine(cards=1), ONE, None),
        (Machine(cards=1), TWO, "needs cards 0,1; Paddle sees one card, number 0 here"),
        (Machine(cards=2), TWO, None),
        (Machine(cards=2), DeviceChoice((2,)), "needs card 2; Paddle sees 2 cards, 0 to 1 here"),
        (Machine(), TWO, None),
        (Machine(cards=0, on_cpu=True), TWO, None),
    ],
)
def test_why_a_device_is_not_to_be_had(machine, choice, reason):
    advice = ". --device cpu runs it on the CPU"
    assert machine.missing(choice) == (reason and reason + advice)


def test_launcher_and_environment():
    assert Machine().launcher(CPU) == Machine().launcher(ONE) == ()
    assert Machine().launcher(TWO) == (*LAUNCH, "--gpus=0,1")
    assert Machine().launcher(MACHINES) == (*LAUNCH, "--ips=10.0.0.1,10.0.0.2", "--gpus=0,1")
    on_cpu = Machine(on_cpu=True)
    assert on_cpu.launcher(ONE) == ()
    assert on_cpu.launcher(TWO) == on_cpu.launcher(MACHINES) == (*LAUNCH, "--nproc_per_node=2")
    assert Machine().visible(DeviceChoice((3, 1))) == {"CUDA_VISIBLE_DEVICES": "3"}
    assert Machine().visible(CPU) == on_cpu.visible(TWO) == {"CUDA_VISIBLE_DEVICES": ""}


def _builder() -> Builder:
    return Builder(Machine(), ("python",), "./out")


def _step(name: str, **more) -> Step:
    return Step(name=name, kind=StepKind.EVAL, arguments=("x",), log="x.log", folder=".", **more)


def test_names_are_unique_and_fit_in_a_path():
    build = _builder()
    assert [build.unique(name) for name in ("a/../b c", "x", "x", "x")] == ["a_.._b_c", "x", "x_2", "x_3"]
    assert len(build.unique("y" * 999)) == 230


def test_what_needs_a_skipped_step_is_skipped():
    build, field = _builder(), Field("c.txt", 4, "gpu_list", "0")
    build.add(_step("a", skipped="no card"), field)
    build.add(_step("b", needs=("a",)), field)
    build.add(_step("c", needs=("b",)), field)
    build.add(_step("d", needs=()), field)
    assert [step.skipped for step in build.steps] == [
        "no card",
        "needs a, which is skipped",
        "needs b, which is skipped",
        None,
    ]


def test_a_plan_does_not_grow_without_end():
    build, field = _builder(), Field("c.txt", 28, "--use-gpu", "0")
    with pytest.raises(
        LowbitError, match=r"c\.txt, line 28: expected alternatives that come to at most 2000"
    ):
        for number in range(3000):
            build.add(_step(str(number)), field)


def test_a_note_is_kept_once_with_its_line():
    build, field = _builder(), Field("c.txt", 8, "--batch-size", "0")
    build.note(field, "left out")
    build.note(field, "left out")
    assert build.notes == ["line 8: left out"]
