"""The chain test (TIPC): reads a config, plans its commands, runs them and judges what they did."""

from lowbit.tipc.builder import Machine
from lowbit.tipc.config import ChainConfig
from lowbit.tipc.display import Display, open_display
from lowbit.tipc.junit import junit_xml
from lowbit.tipc.layout import read_config
from lowbit.tipc.original import original_commands
from lowbit.tipc.plan import check_mode, find_root, make_plan, output_folder
from lowbit.tipc.prepare import prepare_chain
from lowbit.tipc.result import ChainResult, Check, Status, StepResult
from lowbit.tipc.result_files import read_result, results_folder
from lowbit.tipc.run import Limits, run_plan
from lowbit.tipc.show import plan_values, print_plan
from lowbit.tipc.step import ChainPlan, Step, StepKind
from lowbit.tipc.table import print_result
from lowbit.tipc.values import MODES, TRAIN_MODES

__all__ = [
    "MODES",
    "TRAIN_MODES",
    "ChainConfig",
    "ChainPlan",
    "ChainResult",
    "Check",
    "Display",
    "Limits",
    "Machine",
    "Status",
    "Step",
    "StepKind",
    "StepResult",
    "check_mode",
    "find_root",
    "junit_xml",
    "make_plan",
    "open_display",
    "original_commands",
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
