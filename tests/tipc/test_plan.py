from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowbit.errors import LowbitError
from lowbit.tipc import MODES, Machine, find_root, make_plan, original_commands, plan_values, read_config
from tests.tipc.conftest import CONFIGS, NAMES


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
    except LowbitError as error:
        assert re.search(r"c\.txt, line \d+: expected ", str(error)), error
        return
    original_commands(config, mode)
    values = plan_values(plan)
    assert len({step["log"] for step in values["steps"]}) == len(values["steps"])
    assert all(step["arguments"] and "\0" not in "".join(step["arguments"]) for step in values["steps"])
