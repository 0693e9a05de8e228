"""A bundle of a config of each family and of several forms, compiled for sm_90, and of two for gfx942."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from compiled import compile_here
from small_gemms import (
    AMD,
    AMD_SPLIT,
    CLUSTER,
    FEW_ROWS,
    GEMV,
    SEMAPHORE,
    SPLIT,
    SPLIT_TMA,
    SWAPPED,
    TILED,
    TILED_TMA_SPLIT,
    TMA,
    TRITON_VERSION,
    WARP_SPECIALIZED,
    WARP_SPECIALIZED_SWAPPED_SPLIT,
    target_of,
)

from genkern.compile.cache import BinaryCache
from genkern.compile.farm import Farm
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.legality import legal
from genkern.packing.packer import Packer
from genkern.packing.rows import rows_of, with_calls
from genkern.result.package import PackedCall
from genkern.result.result import Proof, Result
from genkern.runtime.bundles.bundle import Bundle, write_bundle
from genkern.runtime.bundles.records import Contents

# N is the number of the family, so that each has a problem of its own; K is what all take.
K = 512
CONFIGS = (
    *(TILED, SPLIT, TMA, TILED_TMA_SPLIT, SEMAPHORE, SPLIT_TMA, SWAPPED),
    *(WARP_SPECIALIZED, WARP_SPECIALIZED_SWAPPED_SPLIT, CLUSTER),
)
DEVICES = {"sm_90": ("NVIDIA H200", 132), "gfx942": ("AMD Instinct MI300X", 304)}
VERSIONS = (("torch", "2.11.0"), ("triton", TRITON_VERSION))


def row(problem: GemmProblem, config: Config, arch: str = "sm_90", **more: object) -> Result:
    """A row of results as a measured run writes it."""
    device, units = DEVICES[arch]
    said = {"duration_us": 10.0, "vendor_us": 12.0, "time_source": "cudagraph", "check": Proof("gpu"), **more}
    return Result(problem, config, arch=arch, device=device, compute_units=units, versions=VERSIONS, **said)  # type: ignore[arg-type]


def problem_of(number: int, m: int = 100) -> GemmProblem:
    """The problem of the config with this number."""
    return GemmProblem(m, 256 + 64 * number, K)


def rows() -> list[Result]:
    """A row for each config, for M = 100; for M = 1 gemv, and for 8 skinny, of the first problem."""
    found = [row(problem_of(number), config) for number, config in enumerate(CONFIGS)]
    found += [row(replace(problem_of(0), M=1), GEMV), row(replace(problem_of(0), M=8), replace(FEW_ROWS, SPLIT_K=1))]
    found += [row(replace(problem_of(0), M=300), TILED, choice="vendor", vendor_us=9.0)]
    found += [row(GemmProblem(100, 256, K), config, "gfx942") for config in (AMD,)]
    found += [row(GemmProblem(100, 320, K), AMD_SPLIT, "gfx942")]
    gpus = {arch: gpu_for_arch(arch) for arch in DEVICES}
    for each in found:
        assert each.config is not None
        assert not legal(each.problem, each.config, gpus[str(each.arch)]), each
    return found


class HereFarm(Farm):
    """A farm that compiles in this process."""

    def order(self, owner, jobs, tell):  # type: ignore[no-untyped-def]
        for _, job in jobs:
            tell(job.key, compile_here(job, Path(job.cache_dir).parent))


def pack_here(folder: Path, found: list[Result], cache: Path, *, predicted: bool = False) -> str:
    """The path of a bundle of these rows."""
    packed = rows_of(found, None, predicted).packed
    winners, binaries, images, beside = [], {}, {}, {}
    for arch in sorted({each.winner.arch for each in packed}):
        farm = HereFarm(BinaryCache(cache / "binaries"), target_of(arch), TRITON_VERSION, jobs=1, timeout_s=60)
        packer = Packer(farm, arch, folder)
        here = [each for each in packed if each.winner.arch == arch]
        calls = packer.pack([wanted for each in here for wanted in each.wanted])
        for each in here:
            own, calls = calls[: len(each.wanted)], calls[len(each.wanted) :]
            assert all(isinstance(call, PackedCall) for call in own), own
            winners.append(with_calls(each, own))  # type: ignore[arg-type]
        binaries |= packer.binaries
        beside |= packer.row_kernels
        images |= packer.images
    path = str(folder / "all.genkern")
    write_bundle(path, Contents(tuple(winners), binaries, beside), images)
    return path


def with_varying_sums(bundle: Bundle, chosen: Result) -> Bundle:
    """The bundle as if the sums of that winner were added by atomics, as families of before and of others' may."""
    winners = tuple(
        replace(one, package=replace(one.package, deterministic=one.deterministic and one is not chosen))
        for one in bundle.winners
    )
    return replace(bundle, contents=replace(bundle.contents, winners=winners))


def winners_for(bundle: Bundle, arch: str) -> tuple[Result, ...]:
    """The winners of one architecture."""
    return tuple(winner for winner in bundle.winners if winner.arch == arch)
