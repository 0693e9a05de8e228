"""The environment variables that name AITER's tuned tables, and the number formats of the tables.

Source: ROCm/aiter, aiter/jit/core.py (AITER_CONFIG_*). The names of variables that are not listed here contain the
    format in capitals, or a type: AITER_CONFIG_GEMM_A8W8, AITER_CONFIG_GEMM_BF16.
"""

AITER_CONFIG = "AITER_CONFIG_"
# Variables whose names do not contain the name of a format; "" if genkern has no kernels for their tables.
AITER_TABLES = {
    f"{AITER_CONFIG}GEMM_A4W4": "a4w4_blockscale",
    f"{AITER_CONFIG}A8W8_BATCHED_GEMM": "batched_a8w8",
    f"{AITER_CONFIG}BF16_BATCHED_GEMM": "batched_a16w16",
    f"{AITER_CONFIG}FMOE": "fused_moe",
    f"{AITER_CONFIG}GROUPED_FMOE": "",
    f"{AITER_CONFIG}FHMOE": "",
    f"{AITER_CONFIG}BATCHED_GEMM_A8W8_BLOCKSCALE_MXSCALE": "",
    f"{AITER_CONFIG}GDN_K5_OPT": "",
}
