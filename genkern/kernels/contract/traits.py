"""`Form`: what the kernels of a family are and can do for one choice of the parameters that change their text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from genkern.gemm.columns import Refusals
from genkern.gemm.config import Config
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.call import Call
from genkern.kernels.contract.cost import Cost
from genkern.kernels.contract.gluon_tile import WIDEST
from genkern.kernels.contract.product import Product
from genkern.kernels.contract.sum_order import SumOrder
from genkern.kernels.contract.variant import Variant

Refuses = Callable[[GemmProblem, ConfigTable, Gpu | None], Refusals]


def takes_any(problem: GemmProblem, gpu: Gpu | None) -> str:
    """Return "": the family computes every problem on every GPU that it runs on."""
    return ""


def any_config(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Refuse nothing: the family restricts configs no further than genkern.kernels.legality does for all families."""
    yield from ()


def unknown_sums(problem: GemmProblem, config: Config, arch: str) -> SumOrder | None:
    """Return None: the family does not state the order in which it adds up K."""
    return None


@dataclass(frozen=True)
class TileLimits:
    """Limits on the sides of a tile.

    least_m: smallest BLOCK_SIZE_M.
    most_m: largest BLOCK_SIZE_M.
    most_k: largest BLOCK_SIZE_K.
    width_step: if not 0, the tile's width may be any multiple of this up to `widest`; if 0, it is a power of two. The
        width is the side along the columns of the matrix instruction: BLOCK_SIZE_N, or BLOCK_SIZE_M if the operands are
        swapped.
    widest: largest width if `width_step` is not 0.
    height_step: if not 0, the other side may be any multiple of this; if 0, it is a power of two.
    few_m: if not 0, the smallest BLOCK_SIZE_M on GPUs that multiply tiles with fewer than `least_m` rows
        (Capabilities.tile_rows_min).
    """

    least_m: int = 16
    most_m: int = 1024
    most_k: int = 1024
    width_step: int = 0
    widest: int = WIDEST
    height_step: int = 0
    few_m: int = 0

    def least_rows(self, tile_rows: int) -> int:
        """Return the smallest BLOCK_SIZE_M on a GPU whose matrix products need at least `tile_rows` rows."""
        return min(self.least_m, max(self.few_m, tile_rows)) if self.few_m else self.least_m


@dataclass(frozen=True)
class KernelTraits:
    """Facts about one kernel text of a family.

    `takes` returns "" if the form can compute the problem, else the reason why not. `legal`, `stages` and `shares` get
    a table of configs. They yield masks, each with a reason (genkern.gemm.columns): the form cannot compute the problem
    with configs for which a mask is True. genkern.kernels.legality says in which order it calls them. Instead of
    `legal` and `shares` it also takes functions of a single config that return the reason or "".

    stem: prefix of the kernels' names.
    variant: function that returns the text of the main kernel for a problem and a config.
    call: function that returns what a call launches for a product and a variant.
    takes: says which problems the form computes on a GPU. With None for the GPU it checks only limits of every GPU.
    legal: says which configs the form computes. It must not read GROUP_SIZE_M or SPLIT_K.
    shares: says which SPLIT_K the form computes. Of the other parameters it may read only BLOCK_SIZE_M, BLOCK_SIZE_N
        and BLOCK_SIZE_K.
    stages: says which num_stages the form computes, for kernels whose use of shared memory is known before they are
        compiled. None for other kernels.
    sums: function that returns the order in which K is added up for a problem and a config on a known architecture. It
        must not read M. None if the order depends on M or on the place of a row, or is unknown.
    cost: cost terms, which the cost model adds up.
    sides: limits on the sides of its tiles.
    reads: operands that the loop over K can read besides plain A and B. "steps": all that the format's step reads.
        "converted": a B that the format converts to numbers after the load (Op.converts_b). "promoted": scales that
        multiply the products of each buffer of the ring (Op.promotes). "registers": a B whose elements become numbers
        in registers (Op.in_registers). "": nothing else.
    uses_tma: True if A and B are loaded through TMA descriptors.
    stores_tma: True if C is stored through TMA descriptors.
    aligned_rows: True if the loads need rows of A and B that start at multiples of 16 bytes although `uses_tma` is
        False.
    splits_k: True if SPLIT_K may be above 1.
    split_apart: True if SPLIT_K above 1 uses a kernel text of its own.
    needs: GPU features that the kernels use, by their names in genkern.gemm.gpu.Capabilities.
    interpreted: True if the kernels run under Triton's interpreter. Gluon and CuTe DSL kernels do not.
    uses_dot: True if the kernels multiply by matrix instructions. BLOCK_SIZE_N and BLOCK_SIZE_K are then at least 16.
    in_ring: True if the kernels are written in Gluon for wgmma, with a ring of buffers that one warp fills.
    helper_warps: number of warps in addition to num_warps.
    places_loads: True if the form takes xcd_remap and cache_modifier.
    deterministic: True if two runs give equal bits for every type.
    swapped: True if the kernels compute the transpose of C, so that N lies along the long side of the instruction.
    cluster_k: number of programs that compute one tile together, each over a share of K (the blocks of an sm_90
        cluster).
    cluster: number of programs of a cluster along M and N. Each has a tile of its own, and they load for each other.
    kernels_before: number of kernels launched before the main kernel.
    realigned: True if one of the kernels before copies operands, so that their rows may start at any address.
    batches: True if the kernels find their product in a batch (genkern.kernels.contract.batches_and_groups).
    groups: True if the kernels find the group to which the rows of a tile belong.
    gathers: True if the kernels also take rows of A from any place, and add up several rows for one row of C.
    """

    stem: str
    variant: Callable[[GemmProblem, Config], Variant]
    call: Callable[[Product, Variant], Call]
    takes: Callable[[GemmProblem, Gpu | None], str] = takes_any
    legal: Refuses = any_config
    shares: Refuses = any_config
    stages: Refuses | None = None
    sums: Callable[[GemmProblem, Config, str], SumOrder | None] = unknown_sums
    cost: Cost = field(default_factory=Cost)
    sides: TileLimits = field(default_factory=TileLimits)
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
        """Return the name of a feature that the kernels need and `gpu` lacks, or ""."""
        missing = next((name for name in self.needs if not getattr(gpu.has, name)), "")
        return "TMA" if missing == "tma" else missing

    @property
    def in_clusters(self) -> bool:
        """Whether the programs run in clusters, for whichever reason."""
        return self.cluster_k > 1 or self.cluster != (1, 1)
