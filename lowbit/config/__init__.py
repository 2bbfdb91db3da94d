"""Configs with PaddleClas's sections: read, overridden, validated. Start with `load.load_config`.

| module | has |
|---|---|
| `load` | finding a config by name or path, overrides, validation |
| `schema` | the sections, their keys, types and limits |
| `data`, `optimizer` | the sections DataLoader and Optimizer |
| `transform_ops`, `batch_ops` | the operations on images and on batches that a config may list |
| `yaml_file` | reading YAML; error messages with the line and the nearest key |
| `base` | what all sections share: unknown keys are errors, fractions are numbers |
"""

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
