"""Multiply two matrices under Triton's interpreter with a fixed kernel, to find out whether the interpreter works.

`TRITON_INTERPRET=1 python -m genkern.profiling.checking.interpreter_trial` prints "" as JSON if it works, else a
message.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch
import triton
import triton.language as tl

# Two tiles in each dimension; masks cut off rows and columns of the second ones.
_M, _N, _K, _BLOCK = 24, 28, 40, 16


@triton.jit  # type: ignore[untyped-decorator]
def multiply(a_ptr: Any, b_ptr: Any, c_ptr: Any, M: Any, N: Any, K: Any, BLOCK: tl.constexpr) -> None:
    """Compute C[M, N] = A[M, K] @ B[K, N], all row-major, with one program per tile of C."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    sums = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, BLOCK):
        of_a, of_b = k + tl.arange(0, BLOCK)[None, :], k + tl.arange(0, BLOCK)[:, None]
        a = tl.load(a_ptr + rows * K + of_a, mask=(rows < M) & (of_a < K), other=0.0)
        b = tl.load(b_ptr + of_b * N + columns, mask=(of_b < K) & (columns < N), other=0.0)
        sums = tl.dot(a, b, sums)
    tl.store(c_ptr + rows * N + columns, sums.to(c_ptr.dtype.element_ty), mask=(rows < M) & (columns < N))


def difference() -> str:
    """Return a message if a product of small integers is wrong, or "". The product is exact in any order of sums."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-7, 8, shape, generator=generator).half() for shape in ((_M, _K), (_K, _N)))
    c = torch.full((_M, _N), float("nan"))
    multiply[(-(-_M // _BLOCK), -(-_N // _BLOCK))](a, b, c, _M, _N, _K, _BLOCK)
    wrong = int((c != a.float() @ b.float()).sum())
    return f"{wrong} of {c.numel()} elements of a product are wrong" if wrong else ""


def main() -> None:
    """Print the result of `difference` as JSON."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("set TRITON_INTERPRET=1 before Triton is imported")
    print(json.dumps(difference()))


if __name__ == "__main__":
    main()
