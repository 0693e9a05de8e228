"""A kernel with one store, with which a compiler proves that it works on this machine before it compiles anything
else."""

from __future__ import annotations

import triton
import triton.language as tl

from genkern.kernels.kernel import KernelSpec

# Compiles for every architecture with every supported release of Triton.
KNOWN_SPEC = KernelSpec("known_kernel", "known", (("c_ptr", "*fp32"),), (), (("c_ptr", 16),), (("num_warps", 4),))


@triton.jit
def known_kernel(c_ptr):  # type: ignore[no-untyped-def]
    tl.store(c_ptr, 1.0)
