"""One GPU: its figures and its capabilities. Code asks for a capability, never for an architecture's name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from genkern.errors import InputError

VENDORS = ("amd", "nvidia")
# Encodings of fp8: OCP's, and AMD CDNA 3's without negative zeros and infinities.
FP8_ENCODINGS = ("ocp", "fnuz")
# Keys of peak rates.
PEAKS = ("fp16", "bf16", "fp8", "int8", "fp32")
# Shared memory that a program may have on every GPU with warpgroup matrix instructions (CUDA programming guide, compute
# capabilities 9.0 and 10.0). Kernels' arguments and constants, which must not depend on the GPU, are computed with this
# value. Legality checks whether a config fits a GPU.
WARPGROUP_SHARED_BYTES = 227 * 1024
# Significant bits of a float32.
FLOAT32_BITS = 24
# Capabilities that are numbers of at least 1.
_FROM_ONE = (
    *("matrix_rows", "matrix_columns", "matrix_warps", "cluster_programs_max", "pipelined_bytes", "kpack_max"),
    *("tile_rows_min", "matrix_columns_min", "lanes_per_clock", "units_per_multiprocessor"),
)
# Rates that are a share of a stated peak.
_SHARES = ("matrix_share", "memory_share")
# Figures that may be 0.
_MAY_BE_ZERO = ("shared_reserved_bytes",)


@dataclass(frozen=True)
class Capabilities:
    """What kernels may use on a GPU, and how much of it. The defaults mean that a feature is absent.

    async_copies: copies from memory to shared memory that bypass registers (cp.async; on CDNA 4 loads to LDS)
    tma: the copy engine that reads tensor maps
    wgmma, tcgen05: warpgroup matrix instructions
    dependent_launches: CUDA's programmatic dependent launch
    tf32: float32 may be multiplied as tf32 (AMD: xf32)
    dot_scaled: Triton's tl.dot_scaled takes two operands with exponents
    matrix_rows: fewest rows of a 16-bit matrix instruction that reaches the peak
    matrix_columns: largest number of columns of such an instruction
    matrix_warps: warps that issue it together
    tensor_memory_columns: 32-bit columns, in each of 128 rows, for accumulators
    cluster_programs_max: programs that a cluster may have on every such device; 1 without clusters
    fp8: encoding of fp8
    fp8_sum_bits: significant bits that tensor cores keep of a sum of fp8 products
    pipelined_bytes: fewest bytes per load of a lane for which Triton pipelines a loop
    kpack_max: largest kpack that changes a kernel
    scalar_registers_per_simd: size of a register file that waves share on demand; 0 if each wave has all it can address
    tile_rows_min: fewest rows of a tile that Triton multiplies, padded to an instruction or not
    matrix_columns_min: fewest columns of an instruction that keeps the tensor cores busy
    lanes_per_clock: lanes whose addresses a compute unit accepts per clock
    units_per_multiprocessor: compute units that HIP, and so PyTorch, counts as one multiprocessor: two, of a work-group
        processor, on RDNA. rocminfo, the driver's files and results count compute units
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
        """Raise InputError for contradictory values."""
        if self.fp8 not in FP8_ENCODINGS:
            raise InputError(f"fp8 = {self.fp8!r} is not one of {', '.join(FP8_ENCODINGS)}")
        if self.wgmma and self.tcgen05:
            raise InputError("wgmma and tcgen05 are of different architectures: set one of them")
        if self.of_warpgroups and not (self.tma and self.matrix_warps > 1):
            raise InputError("wgmma and tcgen05 need tma, and matrix_warps above 1 (a warpgroup has 4)")
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
        """True if matrix instructions belong to a warpgroup and are asynchronous: wgmma or tcgen05."""
        return self.wgmma or self.tcgen05


@dataclass(frozen=True)
class Rates:
    """Sustained rates of a device's units, caches and memory, for the predictor.

    The values and their sources are in gpus.yaml. A user's file in the same form (GENKERN_GPU_FILES), or
    `dataclasses.replace(gpu, rates=...)`, replaces them by measured ones. `genkern calibrate` fits them to kernels
    measured on the device (genkern.search.cost_model).

    matrix_share, memory_share: share of the stated peak that dense kernels and copies sustain
    l2_tb_per_s: bandwidth of all L2 caches together
    last_level_tb_per_s: bandwidth of the cache behind L2 (MALL, Infinity Cache)
    load_bytes_per_clock: of one CU, from L2
    lds_bytes_per_clock: of one CU, to and from LDS
    packed_matrix_ratio: peak for two 4-bit operands over that for 8 bits
    latency_us: from a load from memory to the first use of its data
    step_us: barrier, waits and addresses of one step along K, for one workgroup
    start_us: from the start of a workgroup to its first load
    kernel_us: first to last timestamp of an empty kernel
    gap_us: from the end of a kernel to the start of the next
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
        """Raise InputError for impossible values."""
        for each in fields(self):
            value = getattr(self, each.name)
            if not math.isfinite(value) or value <= 0 or (each.name in _SHARES and value > 1):
                raise InputError(f"rates: {each.name} = {value} is not a {'share' if each.name in _SHARES else 'rate'}")


@dataclass(frozen=True)
class Gpu:
    """One device. A unit is a compute unit (AMD) or a streaming multiprocessor (NVIDIA).

    name: product name
    arch: architecture, such as gfx942 or sm_90
    vendor: "amd" or "nvidia"
    compute_units: number of units
    clock_mhz: clock at which the vendor states the matrix peak
    warp_size: threads of a warp or wave
    simds_per_unit: SIMDs or warp schedulers of a unit
    shared_bytes_per_block: most shared memory or LDS that one workgroup may request
    shared_bytes_per_unit: shared memory or LDS of a unit
    shared_granule_bytes: step in which it is allocated
    shared_reserved_bytes: bytes that the driver adds for each workgroup
    registers_per_unit: 32-bit registers of a unit
    registers_per_thread_max: most registers of a thread
    register_granule: step in which registers per thread are allocated
    threads_per_block_max: most threads of a workgroup
    threads_per_unit_max, blocks_per_unit_max: most resident threads and workgroups of a unit
    l2_mib: L2 cache
    last_level_cache_mib: L2, or MALL on AMD
    memory_gb: device memory
    memory_tb_per_s: its bandwidth
    xcds: number of XCDs; 1 on GPUs without them
    sources: documents that the figures come from
    has: what kernels may use
    peak_tflops: dense peak with 32-bit accumulation by fp16, bf16, fp8, int8, fp32; a type without matrix instructions
        has no key
    like: architecture whose spaces serve if this one has none; "" if there is none
    rates: rates for the predictor; None to use its own constants, which are an H200's
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
        """Raise InputError for impossible figures."""
        if self.vendor not in VENDORS or self.vendor != arch_vendor(self.arch):
            raise InputError(f"vendor = {self.vendor!r}: the vendor of {self.arch} is {arch_vendor(self.arch)}")
        for each in fields(self):
            value = getattr(self, each.name)
            if not isinstance(value, (int, float)):
                continue
            if not math.isfinite(value) or value < 0 or (value == 0 and each.name not in _MAY_BE_ZERO):
                raise InputError(f"{each.name} = {value} is not a valid figure of a device")
        if self.compute_units % self.xcds:
            raise InputError(f"{self.compute_units} compute units are not the same number in each of {self.xcds} XCDs")
        if unknown := set(self.peak_tflops) - set(PEAKS):
            raise InputError(f"flops_per_clock: {min(unknown, key=str)} is not one of {', '.join(PEAKS)}")
        if "fp16" not in self.peak_tflops:
            raise InputError("flops_per_clock has no fp16, whose peak serves types without their own")


def arch_vendor(arch: str) -> str:
    """Return the vendor of an architecture by its name: "amd" for gfx942, "nvidia" for sm_90."""
    return "amd" if arch.startswith("gfx") else "nvidia"
