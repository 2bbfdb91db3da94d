"""The chain test (TIPC): reads a config, plans its commands."""

from lowbit.tipc.builder import Machine
from lowbit.tipc.config import ChainConfig
from lowbit.tipc.layout import read_config
from lowbit.tipc.original import original_commands
from lowbit.tipc.plan import check_mode, find_root, make_plan
from lowbit.tipc.show import plan_values, print_plan
from lowbit.tipc.step import ChainPlan, Step, StepKind
from lowbit.tipc.values import MODES, TRAIN_MODES

__all__ = [
    "MODES",
    "TRAIN_MODES",
    "ChainConfig",
    "ChainPlan",
    "Machine",
    "Step",
    "StepKind",
    "check_mode",
    "find_root",
    "make_plan",
    "original_commands",
    "plan_values",
    "print_plan",
    "read_config",
]
