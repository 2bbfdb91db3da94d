from __future__ import annotations

import paddle
from paddle import _C_ops
from paddle.amp import amp_lists

from lowbit.training.amp_autocast import O2_METHODS, O2_ROUNDED, OPAQUE, PRODUCT_METHODS, PRODUCTS, STAYS_FP32

# paddle.amp names operators as an older generation did.
RENAMED = {
    "matmul_v2": "matmul",
    "mul": "matmul_with_flatten",
    "reduce_sum": "sum",
    "reduce_mean": "mean",
    "reduce_prod": "prod",
    "pnorm": "p_norm",
    "softmax_with_cross_entropy": "cross_entropy_with_softmax",
    "cross_entropy": "cross_entropy_with_softmax",
    "cross_entropy2": "cross_entropy_with_softmax",
    "lookup_table": "embedding",
    "lookup_table_v2": "embedding",
}


def renamed(words: set[str]) -> set[str]:
    return {RENAMED.get(word, word).removesuffix("_v2") for word in words}


def test_every_name_is_one_of_paddles():
    for name in {*PRODUCTS, *O2_ROUNDED, *STAYS_FP32, *OPAQUE}:
        assert hasattr(_C_ops, name), name
    for name in (*PRODUCT_METHODS, *O2_METHODS):
        assert hasattr(paddle.Tensor, name), name


def test_lists_are_disjoint():
    assert not set(PRODUCTS) & O2_ROUNDED
    assert not set(PRODUCTS) & STAYS_FP32
    assert not O2_ROUNDED & STAYS_FP32


def test_products_cover_paddles_white_list():
    # A selection of values, which makes none; and kernels that exist on GPUs alone.
    elsewhere = {
        "max_pool2d_with_index",
        "fused_gemm_epilogue",
        "fused_rotary_position_embedding",
        "flash_attn",
    }
    assert renamed(amp_lists.WHITE_LIST) - elsewhere <= renamed(set(PRODUCTS))


def test_paddles_black_list_stays_fp32():
    # Norms are rounded in O2 as on a GPU there (their statistics are not); the others have no operator.
    norms = {"group_norm", "layer_norm"}
    composed = {"softmin", "triplet_margin_loss"}
    black = renamed(amp_lists.FP16_BLACK_LIST | amp_lists.EXTRA_BLACK_LIST)
    assert black - norms - composed <= STAYS_FP32
    assert norms <= O2_ROUNDED
