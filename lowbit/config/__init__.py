"""Configs with PaddleClas's sections: read, overridden, validated."""

from lowbit.config.load import (
    ConfigEntry,
    dump_config,
    list_configs,
    load_config,
    override_config,
    validate,
    with_data_path,
)
from lowbit.config.schema import Config

__all__ = [
    "Config",
    "ConfigEntry",
    "dump_config",
    "list_configs",
    "load_config",
    "override_config",
    "validate",
    "with_data_path",
]
