"""Packages that only some users need: the extra of lowbit that installs each, and what to type without it."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from types import ModuleType

from lowbit.errors import LowbitError

# Module to the extra in pyproject.toml that installs it.
EXTRAS = {
    "openvino": "openvino",
    "sklearn": "demo",
    "visualdl": "curves",
    "starlette": "serve",
    "uvicorn": "serve",
    "prometheus_client": "serve",
}


def install_command(module: str) -> str:
    """What installs a package in the version range that was tried.

    >>> install_command("sklearn")
    "pip install 'lowbit[demo]'"
    >>> install_command("onnxruntime")
    'pip install onnxruntime'
    """
    package = module.partition(".")[0]
    return f"pip install 'lowbit[{EXTRAS[package]}]'" if package in EXTRAS else f"pip install {package}"


def is_installed(module: str) -> bool:
    """Whether a package is there, without importing it.

    >>> is_installed("paddle")
    True
    """
    return find_spec(module) is not None


def import_package(module: str, program: str) -> ModuleType:
    """Import a package, or raise the LowbitError that names the command to install it.

    >>> import_package("json", "JSON").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise LowbitError(f"{program} cannot be used ({error}): {install_command(module)}") from error
