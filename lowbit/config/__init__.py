"""Configs with PaddleClas's sections: read, overridden, validated."""

from lowbit.config.load import dump_config, load_config, override_config, validate
from lowbit.config.schema import Config

__all__ = ["Config", "dump_config", "load_config", "override_config", "validate"]
