from __future__ import annotations

import pytest

from lowbit.tipc import TRAIN_MODES, Machine, StepKind, make_plan, read_config
from lowbit.tipc.chains import CHAINS, Scripts, config_text, training_command

SCRIPTS = Scripts(model="net", train="train.py --net=a", evaluate="e.py", export="x.py", infer="i.py")


@pytest.mark.parametrize("name", CHAINS)
def test_every_config_can_be_planned_in_every_mode(name, tmp_path):
    file = tmp_path / CHAINS[name].config
    file.write_text(config_text(SCRIPTS, name), "utf-8")
    assert len(file.read_text("utf-8").splitlines()) == 32
    config = read_config(file)
    for mode in (*TRAIN_MODES, "whole_infer"):
        plan = make_plan(config, mode, machine=Machine(on_cpu=True))
        assert plan.notes == ()
        kinds = [step.kind for step in plan.steps]
        assert kinds.count(StepKind.EXPORT) == (2 if mode != "whole_infer" and name != "fleet" else 1)
        quantized = {step.quantized for step in plan.steps if step.kind is StepKind.EXPORT}
        must = name in ("pact", "qt", "ptq") if mode != "whole_infer" else name == "ptq"
        assert quantized == {must}


def test_no_two_chains_share_a_folder():
    trainers = [chain.trainer for chain in CHAINS.values()]
    assert len(set(trainers)) == len({chain.page for chain in CHAINS.values()}) == len(trainers)


def test_training_commands():
    assert training_command(SCRIPTS, CHAINS["pact"]) == "train.py --net=a --pact_quant"
    low = training_command(SCRIPTS, CHAINS["qt"])
    assert low.startswith("tools/train_qt.py --net=a -c configs/lite.yaml --recipe recipes/qt_W4")
