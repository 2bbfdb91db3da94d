from __future__ import annotations

import numpy as np
import pytest
from paddle import inference
from paddle.base import core

from lowbit.deploy.model_files import is_complete
from lowbit.deploy.paddle_int8.program import Program, ProgramOp, write_program


def program_of(op: ProgramOp, **values: np.ndarray) -> Program:
    program = Program([op], {}, {}, "x", "y", core.ProgramDesc())
    for name in ("x", "y"):
        program.new_variable(name, [-1, 2])
    for name, value in values.items():
        program.new_parameter(name, value)
    return program


def run(prefix, x: np.ndarray) -> np.ndarray:
    config = inference.Config(f"{prefix}.pdmodel", f"{prefix}.pdiparams")
    config.disable_glog_info()
    config.enable_new_ir(False)
    predictor = inference.create_predictor(config)
    predictor.get_input_handle("x").copy_from_cpu(x)
    predictor.run()
    return predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()


@pytest.mark.parametrize("size", [1, 127, 128, 300])
def test_paddle_reads_what_is_written(tmp_path, size):
    weight = np.arange(size, dtype=np.float32)
    op = ProgramOp("elementwise_mul", {"X": ["x"], "Y": ["weight"]}, {"Out": ["y"]}, {"axis": -1})
    write_program(program_of(op, weight=weight, unused=np.zeros(1000, np.float32)), tmp_path / "inference")
    assert is_complete(tmp_path / "inference.pdiparams")
    assert (tmp_path / "inference.pdiparams").stat().st_size < 4 * size + 100  # only what is read
    x = np.full((3, size), 2, np.float32)
    np.testing.assert_array_equal(run(tmp_path / "inference", x), 2 * weight * np.ones((3, 1)))


def test_names_are_never_taken_twice():
    program = program_of(ProgramOp("relu", {"X": ["x"]}, {"Out": ["y"]}))
    first, second = (program.new_parameter("conv.weight", np.full(2, i, np.int8)) for i in (1, 2))
    assert first != second and program.values[first][0] == 1 and program.values[second][0] == 2
