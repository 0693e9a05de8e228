"""What the dense kernels in CuTe DSL are compiled for: operands of any size, and types by the names of families."""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.cute import runtime

from genkern.gemm.dtypes import DTYPES

TYPES = {name: getattr(cutlass, row.cutlass) for name, row in DTYPES.items() if row.cutlass}


def arguments_of(kernel):
    """What `cute.compile` takes beside a dense kernel: A, B, C, what its finish reads, sizes, programs and a stream.

    `kernel` says `dtype_a`, `dtype_b` and `dtype_c`, whether A and B run along K (`k_major_a`, `k_major_b`), `scales`
    and `bias` of its finish, and whether C goes out by TMA (`tma_store`); else C is a pointer with a leading dimension.
    Where K is `split` SPLIT_K follows. Of a batch (`batched`) C is a pointer besides, and each pointer has a step from
    one product to the next.
    """
    a, b = _matrix(kernel.dtype_a, kernel.k_major_a), _matrix(kernel.dtype_b, kernel.k_major_b)
    c = _matrix(kernel.dtype_c, True) if kernel.tma_store else _pointer(kernel.dtype_c)
    # In the order of parameters.
    extra_types = [Float32, Float32] * (kernel.scales != "none") + [kernel.dtype_c] * kernel.bias
    extras = tuple(_pointer(dtype) for dtype in extra_types) or None
    sizes = (Int32(1),) * (4 if kernel.tma_store else 6 if kernel.split else 5)
    if kernel.batched:
        extras = (*([_pointer(kernel.dtype_c)] if kernel.tma_store else ()), *(extras or ())) or None
        # Leading dimension, products, and the steps of C and of what its finish reads.
        sizes = (Int32(1),) * (7 + len(extra_types))
    return a, b, c, extras, sizes, Int32(1), runtime.make_fake_stream()


def _matrix(dtype, along_columns):
    """A matrix of any size whose rows are 16 bytes apart, or a multiple of it."""
    pitch = cute.sym_int64(divisibility=128 // dtype.width)
    strides = (pitch, 1) if along_columns else (1, pitch)
    return runtime.make_fake_tensor(dtype, (cute.sym_int(), cute.sym_int()), strides, assumed_align=16)


def _pointer(dtype):
    return runtime.make_ptr(dtype, 16, cute.AddressSpace.gmem, assumed_align=16)
