"""Bound the difference between a correct result and its reference, element by element.

|c - ref| <= u_c |ref| + L (u g(K) + e) (|A| |B|), with

- u_c the unit roundoff of C's type. Because rounding is monotone, the check applies a tighter condition: c lies between
  the rounded values of ref minus the other terms and ref plus them (`rounded_range`);
- u the unit roundoff of the accumulator: 2^-23 for float32, because tensor cores truncate instead of rounding, and
  2^-13 if the tensor cores keep about 14 bits of sums of fp8 products (fp8_sum_bits in gpus.yaml). With full sums
  (`accumulate`): 2^-13 with g(128) for the sums inside the tensor cores, plus 2^-23 with g(K) for adding these sums;
- g(K) = 1 + sqrt(K): the growth of rounding errors whose mean is zero (Higham and Mary, "A new approach to
  probabilistic rounding error analysis", SIAM J. Sci. Comput. 41, 2019). It replaces gamma_K = K u / (1 - K u) (Higham,
  "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1), which exceeds the result itself. Truncation errs
  to one side, by u times the partial sum in each of the K / 16 steps of a tensor core. Partial sums of deviates with
  mean zero are of the order of sqrt(K), and K / 16 sqrt(K) is below sqrt(K) (|A| |B|) = 0.64 K sqrt(K);
- an additional 2 x 2^-10 for every K if float32 is multiplied as tf32: both operands lose their low bits by truncation
  (PTX ISA, "wgmma.mma_async": .tf32);
- e the error after the sum: scales and a bias (two roundings each), and the activation's own formula;
- |A| |B| the reference computed from the operands' magnitudes, bias and scales included;
- L the largest slope of the activation (1.129 for gelu, 1.100 for silu). It is doubled because |A| |B| is taken after
  the activation, where activation(x) >= x / 2.

On an H200 (Triton 3.6.0; tiled and tiled_semaphore, split 1 to 16; K of 64, 1000, 4096, 28672 and 262144) float32
results differed by at most 0.12 of `sum_error` for bf16 and fp16 (0.04 from K = 1000 on, the same for every K), by 0.17
for fp8 and by 0.04 for fp32.
"""

from __future__ import annotations

import math
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpu import FLOAT32_BITS
from genkern.gemm.gpus import capabilities_of

FLOAT32 = 2.0 ** (1 - FLOAT32_BITS)
# Relative error of a product of two operands that each lose less than 2^-10 of their value.
_TF32_PRODUCT = 2.0**-9
# Relative error of the reference, of scales and bias. `_OF_ACTIVATION`: of an activation's exponential or erf in
# float32.
_AFTER_THE_SUM = 4 * FLOAT32
_OF_ACTIVATION = 2.0**-20
_SLOPES = {"none": 1.0, "relu": 1.0, "gelu": 2 * 1.129, "silu": 2 * 1.1}


def kept_bits(dtype_a: str, arch: str) -> int:
    """Return the significant bits that the tensor cores of `arch` keep of a float32 sum of products of this type."""
    return capabilities_of(arch).fp8_sum_bits if DTYPES[dtype_a].is_float8 else FLOAT32_BITS


def keeps_few_bits(dtype_a: str, arch: str) -> bool:
    """True if sums of products of this type keep fewer significant bits than float32 has."""
    return kept_bits(dtype_a, arch) < FLOAT32_BITS


def accumulator_roundoff(accumulator: str, dtype_a: str, arch: str) -> float:
    """Return u, the unit roundoff of the sum over K in an accumulator of this type; zero for integers."""
    if accumulator == "int32":
        return 0.0
    return 2.0 ** (1 - kept_bits(dtype_a, arch))


def sum_error(magnitude: Any, roundoff: float, products: int, activation: str, as_tf32: bool = False) -> Any:
    """Return the largest permitted error before rounding to C's type, float32 [M, N].

    magnitude: the reference computed from the operands' magnitudes, float32 [M, N]
    roundoff: unit roundoff of the accumulator
    products: number of nonzero products in one result
    as_tf32: float32 operands lose their low bits
    """
    # The reference is a float32 sum too.
    relative = (roundoff + FLOAT32) * (1 + math.sqrt(products)) + _AFTER_THE_SUM + _TF32_PRODUCT * as_tf32
    return magnitude * (_SLOPES[activation] * relative) + activation_error(magnitude, activation)


def activation_error(expected: Any, activation: str, gain: float = 1.0) -> Any:
    """Return the permitted error of an activation against float32 `expected`; 0.0 except for gelu and silu.

    Far below zero, terms such as 1 + erf(x) have few correct bits left. That error is multiplied by the value that the
    activation scales, `gain` at most. Elsewhere the error is relative.
    """
    if activation in ("none", "relu"):
        return 0.0
    return (expected.abs() + gain) * _OF_ACTIVATION


def rounded_range(expected: Any, error: Any, dtype_c: Any) -> tuple[Any, Any]:
    """Return the least and the largest value of type `dtype_c` to which a number within `error` may be rounded."""
    return (expected - error).to(dtype_c), (expected + error).to(dtype_c)
