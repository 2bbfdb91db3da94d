"""What this machine is and can do: `cpu` (processor, instructions, memory), `device` (CPU or GPU)."""

from lowbit.machine.cpu import CpuInfo, cpu_info, hardware_info
from lowbit.machine.device import Device, PaddleBuild, paddle_build, resolve_device

__all__ = [
    "CpuInfo",
    "Device",
    "PaddleBuild",
    "cpu_info",
    "hardware_info",
    "paddle_build",
    "resolve_device",
]
