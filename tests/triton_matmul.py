"""A small Triton matmul, compiled ahead of time for any target; used by tests that need real binaries."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, K, stride_a, stride_b, stride_c, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    a = a_ptr + rows[:, None] * stride_a + depth[None, :]
    b = b_ptr + depth[:, None] * stride_b + columns[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        total = tl.dot(tl.load(a), tl.load(b), total)
        a += BK
        b += BK * stride_b
    tl.store(c_ptr + rows[:, None] * stride_c + columns[None, :], total.to(tl.bfloat16))


def compile_matmul(
    target: tuple[str, str | int, int], block: tuple[int, int, int], num_warps: int = 4, **options: int
) -> Any:
    """Return Triton's compiled kernel for `target` (backend, arch, warp size) and block (BM, BN, BK)."""
    pointers = dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), "*bf16")
    integers = dict.fromkeys(("K", "stride_a", "stride_b", "stride_c"), "i32")
    constants = dict.fromkeys(("BM", "BN", "BK"), "constexpr")
    source = ASTSource(
        fn=matmul,
        signature=pointers | integers | constants,
        constexprs={(7 + index,): value for index, value in enumerate(block)},
        attrs={(index,): [["tt.divisibility", 16]] for index in range(7)},
    )
    return triton.compile(
        source, target=GPUTarget(*target), options={"num_warps": num_warps, "num_stages": 2, **options}
    )
