"""The chain test (TIPC): training, evaluation, export and inference of a repository, tested as one chain.

| module | has |
|---|---|
| `fields`, `config`, `dialects` | a config: its lines, its two layouts, generic and PaddleClas's |
| `chain_plan`, `inference_steps`, `steps` | a config's commands as steps |
| `prepare` | data, images and weights that a chain needs |
| `run`, `process` | runs the steps; one program without a shell |
| `judge`, `step_outputs`, `model_check` | what a step must have done: files, log, exported model |
| `result`, `display` | the result and its files; tables and progress |
| `original` | the commands of the original runners, for comparison |
| `init` | writes a `test_tipc` folder |
"""

from lowbit.tipc.chain_plan import check_mode, find_root, make_plan, output_folder
from lowbit.tipc.config import ChainConfig, read_config
from lowbit.tipc.display import Display, open_display, plan_values, print_plan, print_result
from lowbit.tipc.fields import MODES, TRAIN_MODES
from lowbit.tipc.original import OriginalCommand, original_commands, original_steps
from lowbit.tipc.prepare import prepare_chain
from lowbit.tipc.result import (
    ChainResult,
    ChainStepResult,
    Check,
    Status,
    junit_xml,
    read_result,
    results_folder,
)
from lowbit.tipc.run import ChainLimits, run_plan
from lowbit.tipc.steps import ChainPlan, Machine, Step, StepKind

__all__ = [
    "MODES",
    "TRAIN_MODES",
    "ChainConfig",
    "ChainLimits",
    "ChainPlan",
    "ChainResult",
    "ChainStepResult",
    "Check",
    "Display",
    "Machine",
    "OriginalCommand",
    "Status",
    "Step",
    "StepKind",
    "check_mode",
    "find_root",
    "junit_xml",
    "make_plan",
    "open_display",
    "original_commands",
    "original_steps",
    "output_folder",
    "plan_values",
    "prepare_chain",
    "print_plan",
    "print_result",
    "read_config",
    "read_result",
    "results_folder",
    "run_plan",
]
