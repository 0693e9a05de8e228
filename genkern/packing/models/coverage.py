"""The share of a model's GEMM time that a bundle serves, by kind of call, for each number of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from genkern.gemm.gpu import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import on_arch
from genkern.ops.op import bytes_moved, get_op
from genkern.packing.models.products import Product
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.table import Device, Table
from genkern.runtime.bundles.untuned_m import by_times, nearest_winner
from genkern.search.cost_model.predict import peak_tflops

_NAMES = ("kernels of genkern", "the library's best algorithm", "PyTorch's call, as fast", "not tuned")


@dataclass(frozen=True)
class Coverage:
    """Shares of the products' time for M = `m`, by what serves them.

    m: number of rows.
    own: genkern kernels.
    algorithms: an algorithm of the library that won.
    as_fast: PyTorch's own call, if nothing was faster.
    unknown: products that were not measured.

    A product's time is the roofline time of its bytes and operations on the GPU, times its layers. Experts for which
    genkern has no kernels count as if they had 16-bit weights.
    """

    m: int
    own: float
    algorithms: float
    as_fast: float
    unknown: float

    @property
    def covered(self) -> float:
        """The share for which the fastest call is known."""
        return 1 - self.unknown


def coverage_of(bundle: Bundle, device: Device, gpu: Gpu, products: Sequence[Product]) -> list[Coverage]:
    """Return the coverage for each M, in ascending order."""
    tables = {
        op: Table([bundle], device, by_times if get_op(op).groups is None else nearest_winner)
        for op in {problem.op for product in products for problem in product.problems}
    }
    shares: dict[int, list[float]] = defaultdict(lambda: [0.0] * len(_NAMES))
    for product in products:
        for problem in product.problems:
            choice = tables[problem.op].find(on_arch(problem, device.arch))
            place = 0 if choice.call is not None else 1 if choice.algorithm else 2 if choice.exact else 3
            shares[problem.M][place] += product.share * product.count * least_us(problem, gpu)
        for problem in product.others:
            shares[problem.M][-1] += product.share * product.count * least_us(problem, gpu)
    return [Coverage(m, *(each / sum(found) for each in found)) for m, found in sorted(shares.items())]


def least_us(problem: GemmProblem, gpu: Gpu) -> float:
    """Return the roofline time of the problem in microseconds, from the GPU's peak rate and bandwidth."""
    return max(problem.flops / peak_tflops(problem, gpu), bytes_moved(problem) / gpu.memory_tb_per_s) * 1e-6


def coverage_text(found: Sequence[Coverage]) -> str:
    """Return the coverage on one line."""
    if not found:
        return "no products"
    least = min(found, key=lambda each: each.covered)
    shares = [(each.own, each.algorithms, each.as_fast, each.unknown) for each in found]
    mean = [sum(values) / len(found) for values in zip(*shares, strict=True)]
    parts = ", ".join(f"{name} {value:.1%}" for name, value in zip(_NAMES, mean, strict=True) if value > 0.0005)
    rows = f"M = {found[0].m}" if len(found) == 1 else f"{len(found)} M from {found[0].m} to {found[-1].m}"
    worst = f"; least at M = {least.m}: {least.covered:.1%}" if least.covered < 0.9995 and len(found) > 1 else ""
    return f"covers {1 - mean[3]:.1%} of the model's GEMM time, by bytes and operations, over {rows} ({parts}){worst}"
