"""Which of Paddle's operators mixed precision rounds, at which level, and which stay fp32.

The names are those of `paddle._C_ops`; the lists follow `paddle.amp`'s white and black lists.
"""

from __future__ import annotations

# O1 and O2: operands and results on the grid. Each with the arguments that are no factors of a product (a
# bias, an addend, sampling positions) and stay fp32, by place and by name.
PRODUCTS: dict[str, dict[int, str]] = {
    "conv2d": {},
    "conv2d_transpose": {},
    "conv3d": {},
    "conv3d_transpose": {},
    "depthwise_conv2d": {},
    "depthwise_conv2d_transpose": {},
    "deformable_conv": {1: "offset", 3: "mask"},
    "linear": {2: "bias"},
    "linear_v2": {2: "bias"},
    "matmul": {},
    "matmul_with_flatten": {},
    "bmm": {},
    "mv": {},
    "dot": {},
    "addmm": {0: "input"},
    "baddbmm": {0: "input"},
    "bilinear": {3: "bias"},
    "einsum": {},
    "multi_dot": {},
}
PRODUCT_METHODS = ("__matmul__", "__rmatmul__")

# O2 only: computed in fp32 inside, as narrow kernels do, with the result on the grid.
_ARITHMETIC = ("add", "subtract", "multiply", "divide", "scale", "add_n", "lerp", "sqrt", "dropout")
_ACTIVATIONS = (
    *("sigmoid", "hardsigmoid", "logsigmoid", "hardswish", "silu", "swish", "gelu", "mish", "tanh", "stanh"),
    *("relu6", "leaky_relu", "prelu", "rrelu", "elu", "selu", "celu", "hardtanh", "softsign"),
)
_POOLS = ("pool2d", "pool3d", "lp_pool2d")
# Their statistics, which are further results of the same operators, stay fp32.
_NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")
O2_ROUNDED = frozenset((*_ARITHMETIC, *_ACTIVATIONS, *_POOLS, *_NORMS))
O2_METHODS = (
    *("__add__", "__radd__", "__sub__", "__rsub__"),
    *("__mul__", "__rmul__", "__truediv__", "__rtruediv__"),
)

# Never rounded: where narrow numbers are dangerous. What no list names (relu, max, reshape, concat, slices)
# makes no new values, so that it stays on the grid by itself.
_STEEP = (
    *("tan", "acos", "asin", "sinh", "cosh", "atanh", "tanh_shrink", "erfinv", "exp", "expm1"),
    *("log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "pow", "elementwise_pow", "square"),
)
_REDUCTIONS = (
    *("sum", "mean", "mean_all", "prod", "cumsum", "cumprod", "logcumsumexp", "logsumexp", "var", "std"),
    *("dist", "p_norm", "frobenius_norm", "renorm", "squared_l2_norm"),
)
_PROBABILITIES = ("softmax", "log_softmax", "gumbel_softmax", "softplus", "label_smooth")
_LOSSES = (
    *(
        "cross_entropy_with_softmax",
        "sigmoid_cross_entropy_with_logits",
        "bce_loss",
        "nll_loss",
        "kldiv_loss",
    ),
    *("huber_loss", "hinge_loss", "log_loss", "hsigmoid_loss", "margin_cross_entropy"),
    *("c_softmax_with_cross_entropy", "c_softmax_with_multi_label_cross_entropy"),
)
_LOOKUPS = (
    *("linear_interp", "nearest_interp", "bilinear_interp", "bicubic_interp", "trilinear_interp"),
    *("embedding", "scatter"),
)
STAYS_FP32 = frozenset((*_STEEP, *_REDUCTIONS, *_PROBABILITIES, *_LOSSES, *_LOOKUPS))

# Whole recurrent networks in one kernel: the products inside are out of reach, so they are refused.
OPAQUE = ("rnn", "lstm", "gru", "cudnn_lstm")
