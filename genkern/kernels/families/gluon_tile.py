"""What the tiles of the kernels in Gluon are made of: buffers of a ring, and parts that copies take to C."""

from __future__ import annotations

from genkern.gemm.problem import GemmProblem

# Bytes along K of a buffer of a Gluon kernel's ring: those that are swizzled.
_RING_BYTES = 128
# Rows or columns of one copy of an operand that runs along them: 128 bytes of 16-bit elements.
TURNED_BOX = 64


# The text of the next two is in generated modules as well, where kernels and launches ask them.
def powers_of(width: int) -> tuple[int, ...]:
    """The powers of two, largest first, that add up to a multiple of 8 up to 256."""
    return tuple(1 << bit for bit in range(8, 2, -1) if width & (1 << bit))


def parts_of(width: int, cluster: int = 1, most: int = 256) -> tuple[tuple[int, int, int], ...]:
    """(program of the cluster, first column, columns) of what each copy takes to C.

    Each program has a share of the columns, by eights, which is cut into powers of two up to `most`, largest first.
    """
    parts = []
    for owner in range(cluster):
        first, last = (8 * (width // 8 * number // cluster) for number in (owner, owner + 1))
        for size in (most,) * ((last - first) // most) + powers_of((last - first) % most):
            parts.append((owner, first, size))
            first += size
    return tuple(parts)


def ring_k(element_bytes: int) -> int:
    """Elements along K of a buffer of a Gluon kernel's ring."""
    return _RING_BYTES // element_bytes


def turned(problem: GemmProblem, swapped: bool) -> tuple[bool, bool]:
    """Whether the rows that wgmma goes along, and the columns, are an operand's that runs along them, not along K."""
    along_m, along_n = not problem.row_major_a, problem.row_major_b
    return (along_n, along_m) if swapped else (along_m, along_n)


def columns_held(width: int, turned: bool) -> int:
    """Columns in a buffer of a Gluon kernel's ring: whole blocks of 64 where their operand does not run along K."""
    return -(-width // TURNED_BOX) * TURNED_BOX if turned else width


def buffer_bytes(rows: int, width: int, turned: bool = False) -> int:
    """Of one buffer of a Gluon kernel's ring: 128 for each row and column; `turned` as in columns_held."""
    return (rows + columns_held(width, turned)) * _RING_BYTES


def landing_bytes(rows: int, width: int, cluster: int) -> int:
    """Of shared memory where a program of a cluster finds the others' sums of the columns that it stores, 4 each."""
    return (cluster - 1) * rows * 8 * -(-width // (8 * cluster)) * 4
