from __future__ import annotations

import json

from lowbit.tipc import Machine, make_plan, plan_values, print_plan


def test_the_table(change, capsys):
    print_plan(make_plan(change("norm"), "whole_infer", machine=Machine(cards=0)))
    out = capsys.readouterr().out
    assert "norm.txt (32-line layout), whole_infer, in " in out
    row = next(line for line in out.splitlines() if line.startswith("3  infer"))
    assert "CUDA_VISIBLE_DEVICES='' python3.7 deploy/inference_python/infer.py --use-gpu=False" in row
    log = "./test_tipc/output/mobilenet_v3_small/whole_infer/python_infer_cpu_batchsize_1.log"
    assert row.rstrip().endswith(f"--benchmark=True > {log} 2>&1")
    assert "skipped: needs card 0; Paddle sees no card here" in out
    assert out.rstrip().endswith("3 commands, 1 of them skipped.")


def test_notes_are_shown(change, capsys):
    config = change("generic", {15: "trainer:norm_train|fpgm_train"})
    print_plan(make_plan(config, "lite_train_lite_infer", machine=Machine(on_cpu=True)))
    out = capsys.readouterr().out
    assert "generic.txt, line 18: fpgm_train has no command and is left out" in out
    assert "(2 processes on this machine's CPU)" in out


def test_values_are_json_and_complete(change):
    plan = make_plan(change("pact"), "lite_train_lite_infer")
    values = json.loads(json.dumps(plan_values(plan)))
    assert values["results_log"] == plan.results_log
    for step, found in zip(plan.steps, values["steps"], strict=True):
        assert set(found) == set(vars(step))
        assert tuple(found["arguments"]) == step.arguments
        assert found["environment"] == step.environment
