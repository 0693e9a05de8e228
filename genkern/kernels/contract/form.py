"""Form: what kernels of a family are and can do with one choice of its parameters that change their text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.call import Call
from genkern.kernels.contract.cost import Cost
from genkern.kernels.contract.product import Product
from genkern.kernels.contract.sums import Sums
from genkern.kernels.contract.variant import Variant
from genkern.kernels.families.gluon_tile import WIDEST


def takes_any(problem: GemmProblem, gpu: Gpu | None) -> str:
    """Of a family that computes every problem on every GPU that it runs on."""
    return ""


def any_config(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """Of a family that asks for nothing besides what holds for all (genkern.kernels.legality)."""
    return ""


def unknown_sums(problem: GemmProblem, config: Config, arch: str) -> Sums | None:
    """Of a family that does not say in which order it adds up K."""
    return None


@dataclass(frozen=True)
class Sides:
    """What the sides of a tile may be.

    BLOCK_SIZE_M from `least_m` to `most_m`, BLOCK_SIZE_K up to `most_k`. `width_step`: the side that the matrix
    instruction's rows do not go along may be any multiple of this, not only a power of two (0: it may not), up to
    `widest`; that is BLOCK_SIZE_N, or with swapped operands BLOCK_SIZE_M. `height_step`: the other side may be any
    multiple of this (0: a power of two). `few_m`: unless 0, the least BLOCK_SIZE_M where a GPU multiplies tiles of
    fewer rows than `least_m` (Capabilities.tile_rows_min).
    """

    least_m: int = 16
    most_m: int = 1024
    most_k: int = 1024
    width_step: int = 0
    widest: int = WIDEST
    height_step: int = 0
    few_m: int = 0

    def least_rows(self, tile_rows: int) -> int:
        """The least BLOCK_SIZE_M on a GPU that multiplies tiles of so many rows at least."""
        return min(self.least_m, max(self.few_m, tile_rows)) if self.few_m else self.least_m


@dataclass(frozen=True)
class Form:
    """Facts of one text of a family, the text of its main kernel for a config (`variant`), and what a `call` launches.

    `stem` is what its kernels are called after. What it cannot compute, as why not or "", in three parts
    (genkern.kernels.legality says when they are asked): `takes`: problems; without a GPU, as far as that holds on all.
    `legal`: configs, and of these reads neither GROUP_SIZE_M nor SPLIT_K. `shares`: a SPLIT_K, and then all larger
    ones; of the other parameters this reads BLOCK_SIZE_M, _N and _K.

    `stages`: of kernels that know it before they are compiled, why a number of stages is none for a config, whose own
    it does not read: so it is asked once for all of them.

    `sums`: for a problem and a config on an architecture that is known the order in which K is added up; of the problem
    it does not read M. None where it hangs on M or on a row's place too, or nobody says it.
    `cost`: terms of what it costs, which the predictor adds up. `sides`: of its tiles.
    `reads`: what its steps over K read besides plain A and B: "steps", whatever the format's step reads; "converted",
    a B that becomes numbers as the format says once it is loaded (Op.converts_b); "promoted", scales by which the
    products of each buffer of its ring are multiplied (Op.promotes); "registers", a B whose elements become numbers in
    registers (Op.in_registers); "" nothing.
    `uses_tma`: loads A and B through descriptors; `stores_tma`: stores C so. `aligned_rows`: without `uses_tma`, its
    loads ask for rows of A and B that begin at multiples of 16 bytes, too.
    `splits_k`: takes SPLIT_K above 1; `split_apart`: has a kernel of its own for that.
    `needs`: what its kernels use, by the names of genkern.gemm.gpu.Capabilities. `interpreted`: runs under Triton's
    interpreter (Gluon does not).
    `uses_dot`: multiplies by tl.dot or wgmma, so that blocks have 16 elements at least.
    `in_ring`: is written in Gluon, for wgmma, with a ring of buffers that a warp fills.
    `helper_warps`: warps that it runs beyond num_warps.
    `places_loads`: takes xcd_remap and cache_modifier.
    `deterministic`: two runs agree to the bit, whatever the type.
    `swapped`: computes C transposed, so that N takes the long side of the matrix instruction.
    `cluster_k`: programs that make a tile together, each over a share of K (sm_90: a cluster's blocks).
    `cluster`: programs of a cluster along M and along N that have tiles of their own, and load for one another.
    `kernels_before`: kernels that it launches before its main one. `realigned`: one of these copies operands, whose
    rows may then start anywhere.
    `batches`: its kernels find the product of a batch that they are for (genkern.kernels.contract.several).
    `groups`: its kernels find the group that a tile's rows are of. `gathers`: also rows of A that lie anywhere, and
    rows of C that are sums of several.
    """

    stem: str
    variant: Callable[[GemmProblem, Config], Variant]
    call: Callable[[Product, Variant], Call]
    takes: Callable[[GemmProblem, Gpu | None], str] = takes_any
    legal: Callable[[GemmProblem, Config, Gpu | None], str] = any_config
    shares: Callable[[GemmProblem, Config, Gpu | None], str] = any_config
    stages: Callable[[GemmProblem, Config, Gpu | None], Callable[[int], str]] | None = None
    sums: Callable[[GemmProblem, Config, str], Sums | None] = unknown_sums
    cost: Cost = field(default_factory=Cost)
    sides: Sides = field(default_factory=Sides)
    reads: str = "steps"
    uses_tma: bool = False
    stores_tma: bool = False
    aligned_rows: bool = False
    splits_k: bool = False
    split_apart: bool = False
    needs: tuple[str, ...] = ()
    interpreted: bool = True
    uses_dot: bool = True
    in_ring: bool = False
    helper_warps: int = 0
    places_loads: bool = False
    deterministic: bool = True
    swapped: bool = False
    cluster_k: int = 1
    cluster: tuple[int, int] = (1, 1)
    kernels_before: int = 0
    realigned: bool = False
    batches: bool = False
    groups: bool = False
    gathers: bool = False

    def lacks(self, gpu: Gpu) -> str:
        """What its kernels use and a GPU has not, or ""."""
        missing = next((name for name in self.needs if not getattr(gpu.has, name)), "")
        return "TMA" if missing == "tma" else missing

    @property
    def in_clusters(self) -> bool:
        """Whether several programs are a cluster, for whatever reason."""
        return self.cluster_k > 1 or self.cluster != (1, 1)
