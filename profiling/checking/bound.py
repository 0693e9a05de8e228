"""How far a right result may be from its reference, element by element.

|c - ref| <= u_c |ref| + L (u g(K) + e) (|A| |B|), with

- u_c the unit roundoff of C's type. Rounding is monotone, so c is held to more than that: it lies between what ref less
  the other terms is rounded to, and ref plus them (`rounded_range`);
- u that of the accumulator: 2^-23 for float32, of which matrix units truncate rather than round, and 2^-13 where about
  14 bits are kept of sums of fp8 products (gpus.yaml says where: fp8_sum_bits); of full sums (accumulate) 2^-13 with
  g(128), for what matrix units add up, plus 2^-23 with g(K), for what is added up of that;
- g(K) = 1 + sqrt(K): the growth of rounding errors whose mean is zero (Higham and Mary, "A new approach to
  probabilistic rounding error analysis", SIAM J. Sci. Comput. 41, 2019), in place of gamma_K = K u / (1 - K u) (Higham,
  "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1), which grows beyond the result itself.
  Truncation errs to one side, by u of the partial sum in each of the K / 16 steps of a matrix unit; of deviates with
  mean zero partial sums are of the order of sqrt(K): K / 16 sqrt(K) is below sqrt(K) (|A| |B|) = 0.64 K sqrt(K);
- where float32 is multiplied as tf32, 2 x 2^-10 for the bits that both operands lose, which are dropped (PTX ISA,
  "wgmma.mma_async": .tf32), whatever K is;
- e what comes after the sum: scales and a bias (two roundings each), and the activation's own formula;
- |A| |B| the reference of the operands' magnitudes, bias and scales included;
- L the largest slope of the activation (1.129 for gelu, 1.100 for silu), twice that since activation(x) >= x / 2 there.

On an H200 (Triton 3.6.0; tiled and tiled_semaphore, split 1 to 16; K of 64, 1000, 4096, 28672 and 262144) results in
float32 were off by at most 0.12 of `sum_error` for bf16 and fp16 (0.04 from K = 1000 on, the same for every K), by 0.17
for fp8 and 0.04 for fp32.
"""

from __future__ import annotations

import math
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpu import FLOAT32_BITS
from genkern.gemm.gpus import capabilities_of

FLOAT32 = 2.0 ** (1 - FLOAT32_BITS)
# Of a product of two operands that lose less than 2^-10 of their size each.
_TF32_PRODUCT = 2.0**-9
# Of the reference, of scales and bias, and of an activation's exponential or erf in float32.
_AFTER_THE_SUM = 4 * FLOAT32
_OF_ACTIVATION = 2.0**-20
_SLOPES = {"none": 1.0, "relu": 1.0, "gelu": 2 * 1.129, "silu": 2 * 1.1}


def kept_bits(dtype_a: str, arch: str) -> int:
    """Significant bits that the matrix units of `arch` keep of a sum of products of this type, in float32."""
    return capabilities_of(arch).fp8_sum_bits if DTYPES[dtype_a].is_float8 else FLOAT32_BITS


def keeps_few_bits(dtype_a: str, arch: str) -> bool:
    """Whether sums of products of this type keep fewer bits than float32 has."""
    return kept_bits(dtype_a, arch) < FLOAT32_BITS


def accumulator_roundoff(accumulator: str, dtype_a: str, arch: str) -> float:
    """u: the unit roundoff of the sum over K in an accumulator of this type; zero for integers."""
    if accumulator == "int32":
        return 0.0
    return 2.0 ** (1 - kept_bits(dtype_a, arch))


def sum_error(magnitude: Any, roundoff: float, products: int, activation: str, as_tf32: bool = False) -> Any:
    """How far a result may be from its reference before it is rounded to C's type, float32 [M, N].

    `magnitude` is the reference of the operands' magnitudes, float32 [M, N], `roundoff` the accumulator's, and
    `products` counts those of one result that are no zero. `as_tf32`: operands in float32 lose their last bits.
    """
    # The reference is a float32 sum as well.
    relative = (roundoff + FLOAT32) * (1 + math.sqrt(products)) + _AFTER_THE_SUM + _TF32_PRODUCT * as_tf32
    return magnitude * (_SLOPES[activation] * relative) + activation_error(magnitude, activation)


def activation_error(expected: Any, activation: str, gain: float = 1.0) -> Any:
    """How far gelu and silu of an exact sum may be from float32 `expected`; no other activation errs.

    Far below zero few of their bits are left, of 1 + erf(x) say: that error is multiplied by what they let through,
    `gain` at most. Elsewhere it is relative.
    """
    if activation in ("none", "relu"):
        return 0.0
    return (expected.abs() + gain) * _OF_ACTIVATION


def rounded_range(expected: Any, error: Any, dtype_c: Any) -> tuple[Any, Any]:
    """The least and the largest number of PyTorch's type `dtype_c` that something within `error` is rounded to."""
    return (expected - error).to(dtype_c), (expected + error).to(dtype_c)
