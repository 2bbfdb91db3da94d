from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowbit.errors import LowbitError
from lowbit.tipc import (
    MODES,
    ChainPlan,
    Machine,
    Step,
    StepKind,
    find_root,
    make_plan,
    original_commands,
    plan_values,
    read_config,
)
from lowbit.tipc.chain_plan import autocasts, batch_size, chosen_trainers, epochs, use_gpu_words
from lowbit.tipc.fields import DeviceChoice, Field
from lowbit.tipc.steps import Builder
from tests.support.chains import CONFIGS, NAMES


def test_the_head_of_a_plan(change):
    plan = make_plan(change("norm"), "whole_infer")
    assert (plan.layout, plan.model_name, plan.mode) == (32, "mobilenet_v3_small", "whole_infer")
    assert plan.output == "./test_tipc/output/mobilenet_v3_small/whole_infer"
    assert plan.results_log == f"{plan.output}/results_python.log"


def test_another_interpreter(change):
    plan = make_plan(change("norm"), "whole_infer", python="/opt/python")
    assert {step.arguments[0] for step in plan.steps} == {"/opt/python"}
    assert make_plan(change("norm", {3: "python:null"}), "whole_infer", python="python").steps
    with pytest.raises(LowbitError, match=r"line 3: expected an interpreter"):
        make_plan(change("norm", {3: "python:null"}), "whole_infer")


def test_the_root_is_the_folder_above_test_tipc(tmp_path, monkeypatch):
    assert find_root(tmp_path / "ocr/test_tipc/configs/det/c.txt") == tmp_path / "ocr"
    monkeypatch.chdir(tmp_path)
    assert find_root(Path("test_tipc/c.txt")) == tmp_path
    assert find_root(Path("elsewhere/c.txt")) == tmp_path


def test_an_unknown_mode(change):
    with pytest.raises(LowbitError, match='unknown mode "whole_infr", did you mean "whole_infer"'):
        make_plan(change("norm"), "whole_infr")


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../b", "null"])
def test_a_model_name_stays_below_the_output_folder(change, name):
    with pytest.raises(LowbitError, match=r"line 2: expected a"):
        make_plan(change("norm", {2: f"model_name:{name}"}), "whole_infer")


_TEXTS = {name: (CONFIGS / f"{name}.txt").read_text("utf-8") for name in NAMES}
_SNIPPETS = st.one_of(
    st.sampled_from(
        ["|", ":", "=", ";", ",", "null", "##", "'", '"', "$(x)", "\r", "\n", "-1", "0||", "====a===="]
    ),
    st.text(max_size=5),
)


@st.composite
def _mutated(draw) -> bytes:
    """A config with some damage: lines lost, doubled, swapped or cut, and odd text put in anywhere."""
    lines = _TEXTS[draw(st.sampled_from(NAMES))].split("\n")
    for _ in range(draw(st.integers(1, 4))):
        where = draw(st.integers(0, len(lines) - 1))
        damage = draw(st.sampled_from(["lose", "double", "swap", "cut", "insert", "end"]))
        place = draw(st.integers(0, len(lines[where])))
        if damage == "lose" and len(lines) > 1:
            del lines[where]
        elif damage == "double":
            lines.insert(where, lines[where])
        elif damage == "swap":
            lines[where], lines[-1 - where] = lines[-1 - where], lines[where]
        elif damage == "cut":
            lines[where] = lines[where][:place]
        elif damage == "insert":
            lines[where] = lines[where][:place] + draw(_SNIPPETS) + lines[where][place:]
        elif damage == "end":
            lines = lines[: where + 1]
    content = draw(st.sampled_from(["\n", "\r\n"])).join(lines).encode("utf-8", "surrogatepass")
    return content if draw(st.integers(0, 9)) else content + draw(st.binary(max_size=4))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=_mutated(), mode=st.sampled_from(MODES), on_cpu=st.booleans())
def test_a_mutated_config_gives_a_plan_or_an_error_with_a_line_number(tmp_path, content, mode, on_cpu):
    file = tmp_path / "c.txt"
    file.write_bytes(content)
    try:
        config = read_config(file)
        plan = make_plan(config, mode, machine=Machine(cards=1, on_cpu=on_cpu))
        original_commands(config, mode)
    except LowbitError as error:
        assert re.search(r"c\.txt, line \d+: expected ", str(error)), error
        return
    values = plan_values(plan)
    assert len({step["log"] for step in values["steps"]}) == len(values["steps"])
    assert all(step["arguments"] and "\0" not in "".join(step["arguments"]) for step in values["steps"])


OUT = "./test_tipc/output/mobilenet_v3_small/lite_train_lite_infer"
CPU = Machine(on_cpu=True)


def _plan(config, machine: Machine | None = None) -> ChainPlan:
    return make_plan(config, "lite_train_lite_infer", machine=machine)


def _of(plan: ChainPlan, kind: StepKind) -> list[Step]:
    return [step for step in plan.steps if step.kind == kind]


def test_the_steps_of_one_run(change):
    train, evaluate, export, on_gpu, on_cpu = _plan(change("pact", {4: "gpu_list:0"})).steps
    run = "pact_train_gpus_0_autocast_False_nodes_1"
    assert train.arguments == (
        *("python3.7", "train.py", "--pact_quant", f"--output-dir={OUT}/{run}", "--epochs=5"),
        *("--batch-size=4", "--data-path=./lite_data", "--device=gpu"),
    )
    assert train.environment == {"CUDA_VISIBLE_DEVICES": "0"}
    assert (train.log, train.folder) == (f"{OUT}/{run}_train.log", f"{OUT}/{run}")
    assert train.leaves == f"{OUT}/{run}/latest.pdparams"
    assert evaluate.arguments == (
        *("python3.7", "train.py", "--test-only", f"--pretrained={train.leaves}"),
        *("--data-path=./lite_data", "--device=gpu"),
    )
    assert evaluate.log == f"{OUT}/{run}_eval.log"
    assert export.arguments == (
        *("python3.7", "tools/export_model.py", "--model=mobilenet_v3_small"),
        *(f"--pretrained={train.leaves}", f"--save-inference-dir={OUT}/{run}"),
    )
    assert (export.log, export.leaves) == (f"{OUT}/{run}_export.log", train.folder)
    assert on_gpu.arguments == (
        *("python3.7", "deploy/inference_python/infer.py", "--use-gpu=True", f"--model-dir={OUT}/{run}"),
        *("--batch-size=1", "--img-path=./images/demo.jpg", "--benchmark=True"),
    )
    assert evaluate.needs == export.needs == (train.name,)
    assert on_gpu.needs == on_cpu.needs == (export.name,)
    assert all(step.quantized for step in (train, evaluate, export, on_gpu, on_cpu))
    assert on_cpu.arguments == tuple(
        "--use-gpu=False" if word == "--use-gpu=True" else word for word in on_gpu.arguments
    )


@pytest.mark.parametrize(
    ("device", "launcher", "environment", "folder"),
    [
        ("-1", (), {"CUDA_VISIBLE_DEVICES": ""}, "gpus_-1_autocast_False_nodes_1"),
        ("10", (), {"CUDA_VISIBLE_DEVICES": "10"}, "gpus_10_autocast_False_nodes_1"),
        ("2,3", ("--gpus=2,3",), {}, "gpus_2,3_autocast_False_nodes_1"),
        (
            "0,1,2,3,4,5,6,7,8",
            ("--gpus=0,1,2,3,4,5,6,7,8",),
            {},
            "gpus_0,1,2,3,4,5,6,7,8_autocast_False_nodes_1",
        ),
        ("a,b;0,1", ("--ips=a,b", "--gpus=0,1"), {}, "gpus_0,1_autocast_False_nodes_2"),
        ("10.0.0.1,10.0.0.2;0", ("--ips=10.0.0.1,10.0.0.2", "--gpus=0"), {}, "gpus_0_autocast_False_nodes_2"),
    ],
)
def test_devices(change, device, launcher, environment, folder):
    train, evaluate, *_ = _plan(change("norm", {4: f"gpu_list:{device}"})).steps
    words = ("-m", "paddle.distributed.launch", *launcher) if launcher else ()
    assert train.arguments[: len(words) + 2] == ("python3.7", *words, "train.py")
    assert train.environment == environment
    assert train.folder == f"{OUT}/norm_train_{folder}"
    first = device.rpartition(";")[2].split(",")[0]
    assert evaluate.environment == {"CUDA_VISIBLE_DEVICES": "" if device == "-1" else first}
    assert train.arguments[-1] == ("--device=cpu" if device == "-1" else "--device=gpu")


def test_everything_on_the_cpu(change):
    plan = _plan(change("norm"), CPU)
    # To the launcher the variable means cards, even when it is empty.
    seen = {step.name: step.environment["CUDA_VISIBLE_DEVICES"] for step in plan.steps}
    assert [name for name, value in seen.items() if value is None] == [
        "norm_train_gpus_0,1_autocast_False_nodes_1_train"
    ]
    assert set(seen.values()) == {"", None}
    assert not any(step.skipped for step in plan.steps)
    one, several = _of(plan, StepKind.TRAIN)
    assert one.arguments[1] == "train.py"
    assert several.arguments[:5] == (
        *("python3.7", "-m", "paddle.distributed.launch", "--nproc_per_node=2", "train.py"),
    )
    assert one.arguments[-1] == several.arguments[-1] == "--device=cpu"
    assert (one.note, several.note) == ("on the CPU", "2 processes on this machine's CPU")
    assert not any("gpus=" in word for step in plan.steps for word in step.arguments)
    [fleet] = _of(_plan(change("fleet"), CPU), StepKind.TRAIN)
    assert fleet.arguments[3:5] == ("--nproc_per_node=2", "train.py")
    generic = _of(_plan(change("generic"), CPU), StepKind.TRAIN)
    assert all("Global.use_gpu=False" in step.arguments for step in generic)


def test_a_machine_without_cards_skips_the_chain(change):
    plan = _plan(change("norm", {4: "gpu_list:-1|0"}), Machine(cards=0))
    skipped = [step.skipped is not None for step in plan.steps]
    assert skipped == [False, False, False, True, False, *[True] * 5]
    assert plan.steps[5].skipped.startswith("needs card 0; Paddle sees no card here")
    assert plan.steps[6].skipped == f"needs {plan.steps[5].name}, which is skipped"


def test_null_commands_are_left_out(change):
    def kinds(lines):
        return [step.kind.value for step in _plan(change("fleet", lines)).steps]

    assert kinds({}) == ["train", "eval", "export", "infer"]
    assert kinds({17: "eval:null"}) == ["train", "export", "infer"]
    assert kinds({22: "norm_export:null"}) == ["train", "eval"]
    assert kinds({27: "inference:null"}) == ["train", "eval", "export"]
    assert kinds({14: "fleet_train:null"}) == []


def test_a_use_gpu_of_null_is_not_passed_on(change):
    for step in _plan(change("norm", {5: "use-gpu:null", 11: "--data-path:null"})).steps[:2]:
        assert not any(word.startswith(("--device", "--data-path")) for word in step.arguments)


def test_one_device_twice_has_two_folders(change):
    trains = _of(_plan(change("norm", {4: "gpu_list:0|0"})), StepKind.TRAIN)
    assert len({step.folder for step in trains}) == 2


def test_autocast_names_the_folder_and_is_an_argument_of_layout_51(change):
    plan = _plan(
        change("generic", {6: "Global.auto_cast:fp32|amp", 15: "trainer:norm_train", 4: "gpu_list:0"})
    )
    fp32, amp = _of(plan, StepKind.TRAIN)
    assert "Global.auto_cast=amp" in amp.arguments
    assert fp32.folder.endswith("norm_train_gpus_0_autocast_fp32_nodes_1")


def test_the_model_may_be_in_a_folder_below(change):
    plan = _plan(change("generic", {36: "inference_dir:Student"}))
    export, infer = _of(plan, StepKind.EXPORT)[0], _of(plan, StepKind.INFER)[0]
    assert infer.folder == export.leaves == f"{export.folder}/Student"
    assert f"--rec_model_dir={export.folder}/Student" in infer.arguments


def test_what_training_leaves_must_be_said(change):
    with pytest.raises(LowbitError, match=r"line 10: expected what training leaves"):
        _plan(change("norm", {10: "train_model_name:null"}))


EPOCHS = Field("c.txt", 6, "--epochs", "lite_train_lite_infer=5|whole_train_whole_infer=90")
DEVICES = (DeviceChoice((0,)), DeviceChoice((0, 1)))


@pytest.fixture
def build() -> Builder:
    return Builder(Machine(), ("python",), "./out")


def test_epochs_of_a_mode(build):
    assert epochs(build, EPOCHS, "whole_train_whole_infer") == ("--epochs=90",)
    assert epochs(build, Field("c.txt", 6, "--epochs", "3"), "lite_train_whole_infer") == ("--epochs=3",)
    assert epochs(build, Field("c.txt", 6, "--epochs", "null"), "lite_train_whole_infer") == ()
    assert epochs(build, Field("c.txt", 6, "null", "null"), "lite_train_whole_infer") == ()


def test_a_mode_without_epochs_is_an_error_with_a_suggestion(build):
    with pytest.raises(LowbitError, match=r"c\.txt, line 6: .*Add \|lite_train_whole_infer=5 \(as"):
        epochs(build, EPOCHS, "lite_train_whole_infer")
    misspelt = Field("c.txt", 6, "--epochs", "lite_train_lite_infr=5")
    with pytest.raises(
        LowbitError, match=r"line 6: expected an entry for mode lite_train_lite_infer, found lite_t"
    ):
        epochs(build, misspelt, "lite_train_lite_infer")


def test_a_mode_without_a_batch_size_is_noted(build):
    field = Field("c.txt", 8, "--batch-size", "lite_train_lite_infer=4")
    assert batch_size(build, field, "lite_train_lite_infer") == ("--batch-size=4",)
    assert build.notes == []
    assert batch_size(build, field, "lite_train_whole_infer") == ()
    assert build.notes == [
        "line 8: --batch-size has no entry for lite_train_whole_infer; the script's own default holds"
    ]


def test_a_word_for_each_device():
    def words(value: str) -> tuple[str, ...]:
        return use_gpu_words(Field("c.txt", 5, "use_gpu", value), DEVICES)

    assert words("True|False") == ("True", "False")
    assert words("True") == ("True", "True")
    assert words("gpu|null") == ("gpu", "null")
    assert words("null") == ("", "")
    assert words("True|True|False") == ("True", "True")
    with pytest.raises(LowbitError, match=r'line 5: .*did you mean "True"'):
        words("True|Ture")
    with pytest.raises(LowbitError, match=r"line 5: .* for each of the 3 of gpu_list, found 2"):
        use_gpu_words(Field("c.txt", 5, "use_gpu", "True|True"), (*DEVICES, DeviceChoice(())))


def test_autocasts():
    assert autocasts(None) == (None,)
    assert autocasts(Field("c.txt", 6, "auto_cast", "null")) == ("null",)
    assert autocasts(Field("c.txt", 6, "auto_cast", "fp32|amp")) == ("fp32", "amp")


def test_trainers_of_layout_51(build, change):
    assert [one.train.number for one in chosen_trainers(build, change("generic"))] == [16, 17]
    with pytest.raises(LowbitError, match=r'line 15: .*found "pact_trian"; did you mean "pact_train"'):
        chosen_trainers(build, change("generic", {15: "trainer:pact_trian"}))
    assert build.notes == []
    found = chosen_trainers(build, change("generic", {15: "trainer:norm_train|fpgm_train"}))
    assert [one.name for one in found] == ["norm_train"]
    assert build.notes == ["line 18: fpgm_train has no command and is left out"]


def test_trainers_of_layout_32(build, change):
    found = chosen_trainers(build, change("norm", {13: "trainer:norm_train|amp_train"}))
    assert [(one.name, one.train.value) for one in found] == [
        ("norm_train", "train.py"),
        ("amp_train", "train.py"),
    ]
    assert build.notes == ["line 13: amp_train runs the command of norm_train, the only one that there is"]
    with pytest.raises(
        LowbitError, match=r'line 13: .*line 14, found "norm_trian"; did you mean "norm_train"'
    ):
        chosen_trainers(build, change("norm", {13: "trainer:norm_trian"}))
    with pytest.raises(LowbitError, match=r"line 13: .*there is none"):
        chosen_trainers(build, change("norm", {14: "##"}))
    with pytest.raises(LowbitError, match=r"line 13: expected a trainer"):
        chosen_trainers(build, change("norm", {13: "trainer:null"}))
