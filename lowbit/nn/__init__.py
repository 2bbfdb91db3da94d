"""Quantized layers, their conversion and calibration. Start with `convert.prepare`, then `quant_layers`.

One convolution of W4A4G4: `quant_layers` → `qt_autograd` → `quantizer` → `qtensor` → `int_matmul` →
`lowbit.kernels.gemm`. Fused blocks are in `fused_blocks`, batch norm in `batch_norm` and `bn_folding`,
calibration in `calibration`, what is deployed in `deployed_form`.
"""

from __future__ import annotations

from lowbit.nn.activation_matmul import Matmul, QuantizedMatmul
from lowbit.nn.batch_norm import convert_sync_batch_norm, refresh_batch_norm, refreshed_batch_norm
from lowbit.nn.bn_folding import Folded, fold_batch_norm
from lowbit.nn.calibration import calibrate, find_quantizers
from lowbit.nn.convert import Preparation, preparation_of, prepare
from lowbit.nn.deployed_form import (
    DeployedOperand,
    deployed_edges,
    deployed_input,
    deployed_weight,
    fix_inputs,
    fixed_copy,
    fixed_recipe,
    frozen,
    weights_in_bits,
)
from lowbit.nn.edge_quantizers import edge_name, edge_quantizers
from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.inspect import quantization_mode
from lowbit.nn.int_forward import integer_reference
from lowbit.nn.oscillation import OscillationControl
from lowbit.nn.quant_layers import has_quantized_layers, is_quantized, quantize_layer
from lowbit.nn.quantizer import Quantizer

__all__ = [
    "DeployedOperand",
    "Folded",
    "Matmul",
    "OscillationControl",
    "Preparation",
    "QuantizedMatmul",
    "Quantizer",
    "calibrate",
    "convert_sync_batch_norm",
    "deployed_edges",
    "deployed_input",
    "deployed_weight",
    "edge_name",
    "edge_quantizers",
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
    "quantization_mode",
    "quantize_layer",
    "refresh_batch_norm",
    "refreshed_batch_norm",
    "weights_in_bits",
]
