"""a8w8_blockscale: like a8w8, with a float32 scale for each block of A [M, K] and of B [K, N].

The defaults are DeepSeek-V3's (technical report, section 3.3.2): 1x128 blocks of activations, 128x128 blocks of
weights. The sum of each block along K is promoted to float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from genkern.gemm.columns import Refusals
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops import a8w8
from genkern.ops.fields import number, own_values
from genkern.ops.op import Op, bias_of, matrices


@dataclass(frozen=True)
class BlockScale:
    """The format's own fields: rows of A, columns of B and elements along K that share a scale."""

    block_m: int = number(1, 1, 1024, help="a8w8_blockscale: rows of A with a common scale")
    block_n: int = number(128, 1, 1024, help="a8w8_blockscale: columns of B with a common scale")
    block_k: int = number(128, 16, 4096, help="a8w8_blockscale: elements along K with a common scale")


def _operands(problem: GemmProblem) -> tuple[Operand, ...]:
    """Scales of A are column-major, so that the scales of a tile are contiguous, as in cuBLASLt and DeepGEMM."""
    block = own_values(BlockScale, problem)
    rows, columns, along_k = (
        -(-problem.M // block.block_m),
        -(-problem.N // block.block_n),
        -(-problem.K // block.block_k),
    )
    scales = (
        Operand("scale_a", "scale", (rows, along_k), "fp32", row_major=False, scales="a", in_step=True),
        Operand("scale_b", "scale", (columns, along_k), "fp32", rotates=True, scales="b", in_step=True),
    )
    return (*matrices(problem), *scales, *bias_of(problem))


def legal(problem: GemmProblem, configs: ConfigTable) -> Refusals:
    """Refuse configs of which a step would need more than one scale."""
    block_k = own_values(BlockScale, problem).block_k
    yield (
        block_k % configs.BLOCK_SIZE_K != 0,
        f"BLOCK_SIZE_K must divide the {block_k} elements along K that have a common scale",
    )


def _no_vendor(problem: GemmProblem) -> str:
    """The rules are cuBLASLt's (its documentation, "Scaling Factors Layouts") and the checks of torch._scaled_mm."""
    if problem.dtype_a == "int8":
        return "the library has no int8 product with scales of blocks"
    if problem.own:
        return "the library has scales of 1x128 and 128x128 blocks only"
    if problem.M % 4 or -(-problem.K // 128) % 4:
        return "cuBLASLt needs an M and a number of blocks along K that are multiples of 4"
    return ""


def _shared_scale(problem: GemmProblem) -> tuple[int, int, int]:
    block = own_values(BlockScale, problem)
    return block.block_m, block.block_n, block.block_k


OP = Op(
    name="a8w8_blockscale",
    folder="a8w8_blockscale",
    input_types=a8w8.OP.input_types,
    default_dtypes=a8w8.OP.default_dtypes,
    refuse=a8w8.OP.refuse,
    # The int8 sum of a block is converted to float32 before the next block's sum is added.
    accumulator=lambda problem: "fp32",
    operands=_operands,
    worst_row_limit=a8w8.OP.worst_row_limit,
    fields=BlockScale,
    no_vendor=_no_vendor,
    legal=legal,
    shared_scale=_shared_scale,
    promotes=True,
    plain_finish=True,
    by_rows=True,
)
