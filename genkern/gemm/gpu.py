"""One GPU: its figures, and what it can do. Code asks for a capability, never for an architecture's name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from genkern.errors import InputError

VENDORS = ("amd", "nvidia")
# The encodings of fp8: OCP's, and those without negative zeros and infinities of AMD's CDNA 3.
FP8_ENCODINGS = ("ocp", "fnuz")
# What peaks are known by.
PEAKS = ("fp16", "bf16", "fp8", "int8", "fp32")
# What a program may have of shared memory on every GPU whose matrix instructions are a warpgroup's (CUDA programming
# guide, compute capabilities 9.0 and 10.0): what plans choose by, which know no GPU. Whether a config fits one is asked
# of that GPU.
WARPGROUP_SHARED_BYTES = 227 * 1024
# Significant bits of float32.
FLOAT32_BITS = 24
# Capabilities that are numbers from 1 on.
_FROM_ONE = (
    *("matrix_rows", "matrix_columns", "matrix_warps", "cluster_programs_max", "pipelined_bytes", "kpack_max"),
    *("tile_rows_min", "matrix_columns_min", "lanes_per_clock", "units_per_multiprocessor"),
)
# Rates that are shares of a stated peak.
_SHARES = ("matrix_share", "memory_share")
# Figures of a GPU that may be 0.
_MAY_BE_ZERO = ("shared_reserved_bytes",)


@dataclass(frozen=True)
class Capabilities:
    """What kernels may use, and how much of it. What is not said is not there.

    `async_copies`: from memory to shared memory past registers (cp.async; on CDNA 4 loads to LDS).
    `tma`: the copy engine that reads tensor maps. `wgmma`, `tcgen05`: matrix instructions of a warpgroup.
    `dependent_launches`: CUDA's programmatic dependent launch.
    `tf32`: float32 may be multiplied as tf32 (AMD: xf32). `dot_scaled`: Triton's tl.dot_scaled takes two operands with
    exponents.
    `matrix_rows` and `matrix_columns`: the fewest rows and the most columns of a matrix instruction for 16 bits that
    reaches the peak; `matrix_warps` issue it together.
    `tensor_memory_columns`: of 32 bits in each of 128 rows, for accumulators.
    `cluster_programs_max`: programs that a cluster may have on any such device; 1 where there are no clusters.
    `fp8`: the encoding. `fp8_sum_bits`: significant bits that matrix units keep of a sum of fp8 products.
    `pipelined_bytes`: the fewest bytes that a lane loads at a time where Triton pipelines a loop.
    `kpack_max`: the largest kpack that changes a kernel.
    `scalar_registers_per_simd`: of a file that waves share by what they need; 0 where each has all that it can name.
    `tile_rows_min`: the fewest rows of a tile that Triton multiplies, padded to an instruction or not.
    `matrix_columns_min`: the fewest columns of an instruction that keeps the matrix units busy.
    `lanes_per_clock`: lanes whose addresses a unit takes in a clock.
    `units_per_multiprocessor`: compute units that HIP, and so PyTorch, counts as one multiprocessor: the two of a
    work-group processor on RDNA. rocminfo, the driver's files and results count compute units.
    """

    async_copies: bool = False
    tma: bool = False
    wgmma: bool = False
    tcgen05: bool = False
    dependent_launches: bool = False
    tf32: bool = False
    dot_scaled: bool = False
    matrix_rows: int = 16
    matrix_columns: int = 16
    matrix_warps: int = 1
    tensor_memory_columns: int = 0
    cluster_programs_max: int = 1
    fp8: str = "ocp"
    fp8_sum_bits: int = FLOAT32_BITS
    pipelined_bytes: int = 4
    kpack_max: int = 1
    scalar_registers_per_simd: int = 0
    tile_rows_min: int = 16
    matrix_columns_min: int = 16
    lanes_per_clock: int = 32
    units_per_multiprocessor: int = 1

    def __post_init__(self) -> None:
        """Raises InputError for what contradicts itself."""
        if self.fp8 not in FP8_ENCODINGS:
            raise InputError(f"fp8 = {self.fp8!r} is not one of {', '.join(FP8_ENCODINGS)}")
        if self.wgmma and self.tcgen05:
            raise InputError("wgmma and tcgen05 are of different architectures: say one of them")
        if self.of_warpgroups and not (self.tma and self.matrix_warps > 1):
            raise InputError("wgmma and tcgen05 need tma, and matrix_warps of a warpgroup (4)")
        if self.tcgen05 != (self.tensor_memory_columns > 0):
            raise InputError("tcgen05 and tensor_memory_columns belong together")
        if not 1 < self.fp8_sum_bits <= FLOAT32_BITS:
            raise InputError(f"fp8_sum_bits = {self.fp8_sum_bits} is not from 2 to the {FLOAT32_BITS} of float32")
        for name in _FROM_ONE:
            if getattr(self, name) < 1:
                raise InputError(f"{name} = {getattr(self, name)} is below 1")
        if self.scalar_registers_per_simd < 0:
            raise InputError(f"scalar_registers_per_simd = {self.scalar_registers_per_simd} is below 0")

    @property
    def of_warpgroups(self) -> bool:
        """Whether matrix instructions are a warpgroup's, and asynchronous: wgmma or tcgen05."""
        return self.wgmma or self.tcgen05


@dataclass(frozen=True)
class Rates:
    """What units, caches and memory of a device are taken to sustain, for the predictor.

    They are in gpus.yaml, each with its source there. A file of one's own in the same form (GENKERN_GPU_FILES), or
    `dataclasses.replace(gpu, rates=...)`, puts measured ones in their place; `genkern calibrate` those that kernels of
    the device fit (genkern.search.calibrated).

    `matrix_share` and `memory_share`: of the stated peaks, what dense kernels and copies sustain.
    `l2_tb_per_s` and `last_level_tb_per_s`: all L2 caches together, and the cache behind them (MALL, Infinity Cache).
    `load_bytes_per_clock` and `lds_bytes_per_clock`: of one CU, from L2, and to and from LDS.
    `packed_matrix_ratio`: the peak for two operands of 4 bits over that for 8 bits.
    `latency_us`: from a load to the first use of what it brings from memory. `step_us`: barrier, waits and addresses of
    a step along K, for one workgroup. `start_us`: from the start of a workgroup to its first load.
    `kernel_us`: first to last timestamp of an empty kernel. `gap_us`: from a kernel's end to the next one's start.
    """

    matrix_share: float
    memory_share: float
    l2_tb_per_s: float
    last_level_tb_per_s: float
    load_bytes_per_clock: float
    lds_bytes_per_clock: float
    packed_matrix_ratio: float
    latency_us: float
    step_us: float
    start_us: float
    kernel_us: float
    gap_us: float

    def __post_init__(self) -> None:
        """Raises InputError for rates that no device has."""
        for each in fields(self):
            value = getattr(self, each.name)
            if not math.isfinite(value) or value <= 0 or (each.name in _SHARES and value > 1):
                raise InputError(f"rates: {each.name} = {value} is no {'share' if each.name in _SHARES else 'rate'}")


@dataclass(frozen=True)
class Gpu:
    """One device. A unit is a compute unit (AMD) or streaming multiprocessor (NVIDIA).

    `clock_mhz` is the clock at which the vendor states the matrix peak. `peak_tflops` is dense, with 32-bit
    accumulation, by fp16, bf16, fp8, int8, fp32; a type without matrix instructions has no key. Registers are
    32 bits wide. `shared_*` is LDS or shared memory; `shared_bytes_per_block` is the most that one workgroup may
    ask for, `shared_reserved_bytes` what the driver takes on top. `last_level_cache_mib` is L2, or MALL on AMD.
    `sources` names the documents the figures are from. `has` is what the device can do. `like`
    is the architecture whose spaces are taken where there is none for its own; "" where there is no such.
    `rates` are what the predictor counts with; None where its own constants (H200) stand for them.
    """

    name: str
    arch: str
    vendor: str
    compute_units: int
    clock_mhz: int
    warp_size: int
    simds_per_unit: int
    shared_bytes_per_block: int
    shared_bytes_per_unit: int
    shared_granule_bytes: int
    shared_reserved_bytes: int
    registers_per_unit: int
    registers_per_thread_max: int
    register_granule: int
    threads_per_block_max: int
    threads_per_unit_max: int
    blocks_per_unit_max: int
    l2_mib: float
    last_level_cache_mib: float
    memory_gb: float
    memory_tb_per_s: float
    xcds: int
    sources: tuple[str, ...]
    has: Capabilities
    peak_tflops: Mapping[str, float] = field(hash=False)
    like: str = ""
    rates: Rates | None = None

    def __post_init__(self) -> None:
        """Raises InputError for figures that no device has."""
        if self.vendor not in VENDORS or self.vendor != arch_vendor(self.arch):
            raise InputError(f"vendor = {self.vendor!r}: that of {self.arch} is {arch_vendor(self.arch)}")
        for each in fields(self):
            value = getattr(self, each.name)
            if not isinstance(value, (int, float)):
                continue
            if not math.isfinite(value) or value < 0 or (value == 0 and each.name not in _MAY_BE_ZERO):
                raise InputError(f"{each.name} = {value} is no figure of a device")
        if self.compute_units % self.xcds:
            raise InputError(f"{self.compute_units} compute units are not the same number in each of {self.xcds} XCDs")
        if unknown := set(self.peak_tflops) - set(PEAKS):
            raise InputError(f"flops_per_clock: {min(unknown, key=str)} is not one of {', '.join(PEAKS)}")
        if "fp16" not in self.peak_tflops:
            raise InputError("flops_per_clock has no fp16, by which types without a peak of their own are judged")


def arch_vendor(arch: str) -> str:
    """Whose architecture that is, by its name: "amd" for gfx942, "nvidia" for sm_90."""
    return "amd" if arch.startswith("gfx") else "nvidia"
