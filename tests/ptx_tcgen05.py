"""Products of sm_100 in ptx_machine: issued by one thread, for a CTA or a pair of them, with sums in tensor memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from ptx_tensor import Operand, Product
from ptx_text import operands_of
from ptx_warp import LANES, OFFSET, RANK, Warp

if TYPE_CHECKING:
    from ptx_machine import Machine

# Of the descriptors that sm_100 reads.
_VERSION = 1


def multiply(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    assert active.sum() == 1, "one thread issues a product"
    ctas, kind = int(opcode.split("cta_group::")[1][0]), opcode.split("kind::")[1].split(".")[0]
    address = int(warp.address(given[0])[active][0])
    a, b, bits = (warp.uniform(each, active) for each in given[1:4])
    keep = bool(warp.get(given[5], np.bool_)[active][0]) if given[5][0] == "%" else bool(int(given[5]))
    product = Product.of(bits, kind)
    machine.products[warp.rank].append(lambda: _product(machine, warp.rank, ctas, product, address, a, b, keep))


def _product(
    machine: Machine, leader: int, ctas: int, product: Product, address: int, a: int, b: int, keep: bool
) -> None:
    """One tcgen05.mma, by the pair that `leader` leads."""
    size = 2 if product.of_k == 16 else 1
    ranks = [leader + other for other in range(ctas)]
    of_a, of_b = Operand.of(a, _VERSION), Operand.of(b, _VERSION)
    shared = [machine.ctas[rank].shared for rank in ranks]
    take = product.of_k, size, product.k_major_b, product.dtype_b
    columns = np.concatenate([of_b.read(one, product.n // ctas, *take) for one in shared])
    for rank in ranks:
        cta = machine.ctas[rank]
        rows = of_a.read(cta.shared, product.m // ctas, product.of_k, size, product.k_major_a, product.dtype_a)
        lanes = cta.tensor_memory.lanes_of(product, ctas, address)
        cta.tensor_memory.add(*lanes, rows @ columns.T, keep)


def commit(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    assert active.sum() == 1, "one thread commits"
    address = int(warp.address(given[0])[active][0])
    ranks = [address >> RANK]
    if "multicast" in opcode:
        mask = warp.uniform(given[1], active, np.uint16)
        ranks = [each for each in range(16) if mask >> each & 1]

    # Complete once all before it is; each signal then takes its own time.
    machine.products[warp.rank].append(
        lambda: machine.events.extend(
            ("signal", machine.signal(rank << RANK | address & OFFSET, 1, 0)) for rank in ranks
        )
    )


def load(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    """Of a warp's own quarter of the lanes: 32 lanes, or 16 and a second run of columns of them."""
    assert active.all()
    cells = machine.cta_of(warp).tensor_memory.cells
    address = int(warp.address(given[1])[0])
    lane, column = address >> 16, address & 0xFFFF
    quarter = warp.number % 4
    assert lane // 32 == quarter, "lanes of another warp"
    registers = operands_of(given[0][1:-1])
    lanes, columns = lane + np.arange(LANES), np.full(LANES, column)
    if ".16x32bx2." in opcode:
        lanes, columns = lane + np.arange(LANES) % 16, column + np.arange(LANES) // 16 * int(given[2])
    else:
        assert lane % 32 == 0
    for number, register in enumerate(registers):
        warp.put(register, cells[lanes, columns + number], active)
    warp.on_the_way.update(registers)


def allocate(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    assert active.all()
    cta, columns = machine.cta_of(warp), warp.uniform(given[1], active)
    assert columns in (32, 64, 128, 256, 512)
    assert not cta.tensor_memory.taken
    cta.tensor_memory.taken = columns
    place = int(warp.address(given[0])[0]) & OFFSET
    cta.shared[place : place + 4] = 0


def free(machine: Machine, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
    assert active.all()
    cta = machine.cta_of(warp)
    assert cta.tensor_memory.taken == warp.uniform(given[1], active)
    assert not any(machine.products.values()), "products on their way"
    cta.tensor_memory.taken = 0


TCGEN05 = {
    "tcgen05.mma": multiply,
    "tcgen05.commit": commit,
    "tcgen05.ld": load,
    "tcgen05.alloc": allocate,
    "tcgen05.dealloc": free,
}
