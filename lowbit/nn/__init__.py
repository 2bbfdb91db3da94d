"""Quantized layers, their conversion and calibration. Start with `convert.prepare`, then `quant_layers`.

| module | has |
|---|---|
| `convert` | a recipe's plans, put into the layers of a model |
| `quant_layers` | Conv2D, Conv2DTranspose and Linear that carry out a plan |
| `quantizer`, `training_quantizer` | one operand onto its grid; as integers, in low precision |
| `scale_state`, `scale_schedule`, `oscillation` | scales that live longer than a call; fixed late; damped |
| `qt_autograd` | quantized forward, grad_input and grad_weight as one autograd node |
| `qtensor`, `linear_ops`, `int_matmul` | integers with a scale; what a layer multiplies; by which kernel |
| `int_forward`, `float_gradients` | forward in integers, in QAT and in evaluation; QAT's gradients in fp32 |
| `activation_matmul` | products of two activations, as in attention |
| `calibration`, `fidelity`, `inspect` | scales from batches; damage by quantization; statistics, modes |
| `batch_norm`, `bn_folding` | batch norm; folded into a layer |
| `fused_blocks`, `fused_block_registry`, `fused_steps` | conversion to fused blocks; known classes; steps |
| `chain_forward` | forwards that only call layers one after the other, read from their source |
| `plain_layers`, `qat_steps`, `excitation` | layers without hooks; QAT in chains; squeeze-and-excitation |
| `edges`, `edge_trace`, `edge_quantizers`, `exact_rounding` | tensors between layers (`outputs: quantized`) |
| `reparameterize` | branches of a block merged into one convolution, as they are deployed |
| `deployed_form` | integers and scales of a layer as it is deployed |
| `eval_mode` | evaluation mode for a while |
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
from lowbit.nn.reparameterize import reparameterize, reparameterized

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
    "reparameterize",
    "reparameterized",
    "weights_in_bits",
]
