"""The columns of AITER's GEMM CSV files, tuned and untuned, and how a row's cells describe a problem.

Source: ROCm/aiter, aiter/configs/*.csv. A is row-major; the weight is stored [N, K].
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from genkern.decoding import shown
from genkern.errors import InputError
from genkern.files.format_in_names import StatedFormat, format_in_kernel_name
from genkern.files.gemm_entry import refuse_unknown
from genkern.gemm.dtypes import parse_dtype
from genkern.ops.fields import fields_of
from genkern.ops.op import get_op

UNTUNED_COLUMNS = ("M", "N", "K", "bias", "dtype", "outdtype", "scaleAB", "bpreshuffle", "q_dtype_w", "B")
TUNED_A16W16_COLUMNS = (
    *("gfx", "cu_num", "M", "N", "K", "bias", "dtype", "outdtype", "scaleAB", "bpreshuffle"),
    *("libtype", "solidx", "splitK", "us", "kernelName", "err_ratio", "tflops", "bw"),
)
TUNED_A8W8_COLUMNS = (
    *("gfx", "cu_num", "M", "N", "K", "q_dtype_w"),
    *("libtype", "kernelId", "splitK", "us", "kernelName", "tflops", "bw", "errRatio"),
)
TUNED_BLOCKSCALE_COLUMNS = tuple(name for name in TUNED_A8W8_COLUMNS if name != "q_dtype_w")
TUNED_A4W4_COLUMNS = tuple(name for name in TUNED_BLOCKSCALE_COLUMNS if name != "libtype")
TUNED_BATCHED_COLUMNS = (
    *("gfx", "cu_num", "B", "M", "N", "K"),
    *("kernelId", "splitK", "us", "kernelName", "tflops", "bw", "errRatio"),
)
# Columns of AITER's tuned table, for each number format that has one.
TUNED_COLUMNS = {
    "a16w16": TUNED_A16W16_COLUMNS,
    "a4w4_blockscale": TUNED_A4W4_COLUMNS,
    "a8w8": TUNED_A8W8_COLUMNS,
    "a8w8_bpreshuffle": TUNED_A8W8_COLUMNS,
    "a8w8_blockscale": TUNED_BLOCKSCALE_COLUMNS,
    "a8w8_blockscale_bpreshuffle": TUNED_BLOCKSCALE_COLUMNS,
    "batched_a16w16": TUNED_BATCHED_COLUMNS,
    "batched_a8w8": TUNED_BATCHED_COLUMNS,
}
# Columns of AITER's untuned list for each of these formats (aiter/configs/*untuned*.csv).
UNTUNED_BY_OP = {
    "a16w16": ("M", "N", "K", "bias", "dtype", "outdtype", "scaleAB", "bpreshuffle"),
    "a8w8": ("M", "N", "K", "q_dtype_w"),
    "a8w8_bpreshuffle": ("M", "N", "K", "q_dtype_w"),
    **dict.fromkeys(("a4w4_blockscale", "a8w8_blockscale", "a8w8_blockscale_bpreshuffle"), ("M", "N", "K")),
    **dict.fromkeys(("batched_a16w16", "batched_a8w8"), ("B", "M", "N", "K")),
}
# Columns that genkern appends, named like the keys in its YAML. AITER finds columns by name and ignores others.
EXTRA_COLUMNS = (
    *("interval_low_us", "interval_high_us", "samples", "discarded"),
    *("runner_up", "runner_up_us", "margin", "vendor_us", "choice"),
    *("vendor", "torch_us", "code", "searched_share", "expected_loss", "source", "sums"),
    *("vendor_sums", "batch_invariant", "invariant_loss", "config"),
    *("predicted_low_us", "predicted_high_us"),
)
# Columns that genkern also appends to tables of formats other than said_format.PLAIN: AITER's rows in them do not name
# the format, and in some tables not the library.
SAYING_COLUMNS = ("libtype", "op", "dtype_a")
_TUNED = tuple(name for columns in TUNED_COLUMNS.values() for name in columns)
# AITER's own remark on a row, for example that another row is preferred (since 2026-03).
REMARKS = ("_tag",)
_KNOWN = tuple(dict.fromkeys((*UNTUNED_COLUMNS, *_TUNED, *EXTRA_COLUMNS, *SAYING_COLUMNS, *REMARKS)))
# Columns of AITER's other operators: batched GEMM with scales of 32, fused MoE, gated delta net.
_OTHER_OPERATORS = {
    "b": "a batched GEMM with a scale for each 32",
    **dict.fromkeys(("token", "model_dim", "inter_dim", "expert", "topk"), "a fused MoE"),
    **dict.fromkeys(("BT", "Hg", "is_varlen"), "a gated delta net"),
}
UNTYPED = "no column has the types"
# bpreshuffle is the only column that says of every row whether its weights are shuffled; it overrides names.
BY_COLUMN = "bpreshuffle = True"
# aiter/ops/gemm_op_a8w8.py: x_scale [M, 1] and w_scale [1, N]. scaleAB of the bf16 tables means one scale per tensor.
ROWWISE = "AITER's a8w8 has a scale for each row of A and column of B; a product with one scale per tensor is tuned"


def check_columns(columns: tuple[str, ...]) -> None:
    """Raise InputError (without the place) unless `columns` are the columns of a plain GEMM file of AITER."""
    other = next(((name, _OTHER_OPERATORS[name]) for name in columns if name in _OTHER_OPERATORS), None)
    expected = "expected M,N,K[,bias,dtype,outdtype,scaleAB,bpreshuffle][,q_dtype_w] or B,M,N,K"
    if other is not None:
        raise InputError(f"column {other[0]} belongs to {other[1]}, which genkern does not tune; {expected}")
    refuse_unknown(columns, _KNOWN, "column")
    if not {"M", "N", "K"} <= set(columns):
        raise InputError(f"the columns {', '.join(columns)[:80]} lack M, N or K; {expected}")


def entry_values(row: Mapping[str, str]) -> dict[str, object]:
    """Translate one row into the keys of `gemm_entry.SIZE_KEYS`.

    An 8-bit `q_dtype_w` or `dtype`, or scaleAB, means a8w8. Empty cells are ignored. Raises InputError (without the
    place) for a cell that cannot be read.
    """
    values: dict[str, object] = {key: number(row[key]) for key in ("M", "N", "K")}
    values |= {"rowMajorA": "T", "rowMajorB": "N"}
    if row.get("B"):
        values["batch_size"] = number(row["B"])
    if row.get("bias"):
        values["bias"] = flag("bias", row["bias"])
    # AITER's --indtype writes dtypes.bf16 where its own captures write torch.bfloat16.
    types = {key: row.get(key, "").removeprefix("dtypes.") for key in ("q_dtype_w", "dtype", "outdtype")}
    weight, activation = types["q_dtype_w"], types["dtype"]
    if inputs := weight or activation:
        values["dtype_a"] = values["dtype_b"] = inputs
    # Beside q_dtype_w, dtype is the type before quantisation, which is also the type of the result.
    if output := types["outdtype"] or (activation if weight else ""):
        values["dtype_c"] = output
    if row.get("scaleAB") and flag("scaleAB", row["scaleAB"]):
        values["op"] = "a8w8"
        if inputs and parse_dtype(inputs[:40], "").size_bytes != 1:
            raise InputError(f"scaleAB is True but the inputs are {inputs}; scales belong to 8-bit inputs, set dtype")
    if weight and parse_dtype(weight[:40], "").size_bytes == 1:
        values |= rowwise()
    if row.get("op"):
        values["op"] = row["op"]
    if row.get("dtype_a"):
        values["dtype_a"] = values["dtype_b"] = row["dtype_a"]
    return values


def meant_by(op: str) -> Mapping[str, str]:
    """Return the format's own fields that AITER's rows imply without stating them."""
    return rowwise() if op in ("a8w8", "a8w8_bpreshuffle") else {}


@functools.cache
def rowwise() -> Mapping[str, str]:
    """Return the field of a8w8, by name, that means a scale per row of A and column of B; empty if it has none."""
    fields = fields_of(get_op("a8w8").fields)
    return {field.name: "per_token" for field in fields if field.name == "scales" and "per_token" in field.words}


def stated_format(row: Mapping[str, str]) -> tuple[StatedFormat, str]:
    """Return what a row says about its format beyond its types, and the name of the column that says it.

    Raises InputError if bpreshuffle is invalid.
    """
    batched = StatedFormat(batched=bool(row.get("B")))
    if is_shuffled(row):
        return StatedFormat(shuffled=True) | batched, BY_COLUMN
    said = format_in_kernel_name(row.get("kernelName", ""))
    return said | batched, "column B" if batched.batched else "kernelName"


def is_shuffled(row: Mapping[str, str]) -> bool:
    """Return the value of column bpreshuffle. Raises InputError (without the place) if it is neither True nor False."""
    return bool(row.get("bpreshuffle")) and flag("bpreshuffle", row["bpreshuffle"])


def number(text: str) -> object:
    """Return a whole number, or the text itself, which the caller refuses. int() would accept `1_0` and Arabic
    digits."""
    return int(text) if re.fullmatch(r"[0-9]{1,19}", text) else text


def flag(name: str, text: str) -> bool:
    """Parse True or False, as AITER writes them, or 1 or 0. Raises InputError for anything else."""
    value = {"true": True, "false": False, "1": True, "0": False}.get(text.lower())
    if value is None:
        raise InputError(f"{name} = {shown(text)} is not True or False")
    return value
