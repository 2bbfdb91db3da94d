"""What this machine is and can do: processor, memory, device, and the settings that change last bits."""

from lowbit.machine.allocator import keep_freed_memory, return_freed_memory
from lowbit.machine.cpu import CpuInfo, cpu_info, hardware_info
from lowbit.machine.device import Device, PaddleBuild, paddle_build, resolve_device
from lowbit.machine.matrix_library import AmdFix, FixStatus, apply_amd_fix, decide_amd_fix

__all__ = [
    "AmdFix",
    "CpuInfo",
    "Device",
    "FixStatus",
    "PaddleBuild",
    "apply_amd_fix",
    "cpu_info",
    "decide_amd_fix",
    "hardware_info",
    "keep_freed_memory",
    "paddle_build",
    "resolve_device",
    "return_freed_memory",
]
