"""Layers of our own, and the functions that swap them into a model."""

from lowbit.layers.calibrate import calibrate, find_quantizers
from lowbit.layers.deployed import DeployedOperand, deployed_input, deployed_weight
from lowbit.layers.eval_mode import eval_mode
from lowbit.layers.fixed_inputs import fix_inputs, fixed_copy, fixed_recipe
from lowbit.layers.fold import fold_batch_norm
from lowbit.layers.foldable import Folded
from lowbit.layers.frozen import frozen
from lowbit.layers.integer_form import integer_reference
from lowbit.layers.prepare import Preparation, preparation_of, prepare
from lowbit.layers.quantized import has_quantized_layers, is_quantized, quantize_layer
from lowbit.layers.quantizer import Quantizer
from lowbit.layers.refresh_batch_norm import refresh_batch_norm, refreshed_batch_norm
from lowbit.layers.sync_batch_norm import convert_sync_batch_norm
from lowbit.layers.tested_as import tested_as

__all__ = [
    "DeployedOperand",
    "Folded",
    "Preparation",
    "Quantizer",
    "calibrate",
    "convert_sync_batch_norm",
    "deployed_input",
    "deployed_weight",
    "eval_mode",
    "find_quantizers",
    "fix_inputs",
    "fixed_copy",
    "fixed_recipe",
    "fold_batch_norm",
    "frozen",
    "has_quantized_layers",
    "integer_reference",
    "is_quantized",
    "preparation_of",
    "prepare",
    "quantize_layer",
    "refresh_batch_norm",
    "refreshed_batch_norm",
    "tested_as",
]
