"""Rows of the farm's own kernels to the bit, on a GPU, by the measured process: of every format that engines call.

Each order's kernels agree with its reference, and for all M with each other; those of another order do not, which is
what a kernel would be with a split more, or another instruction. What the library agrees with is printed.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pytest
from forms import made
from small_gemms import TRITON_VERSION, target_of

from genkern.compile.build_environment import BuildEnvironment
from genkern.compile.cache import BinaryCache
from genkern.compile.farm import Farm
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, detect_devices, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Candidate, Check
from genkern.kernels.catalogue import language_of, sums_of
from genkern.kernels.legality import legal
from genkern.profiling.device_rows import DeviceRows
from genkern.profiling.supervised_profiler import SupervisedProfiler
from genkern.timing.libraries import VENDOR
from genkern.timing.session import Budget
from genkern.tuning.invariant.reference import alone, reference_of

pytestmark = pytest.mark.gpu

BF16, FP8 = ("bf16", "bf16", "bf16"), ("fp8e4m3fn", "fp8e4m3fn", "bf16")
N, K = 1024, 4096
FORMATS = {
    "a16w16": GemmProblem(1, N, K),
    "a8w8 fast": GemmProblem(1, N, K, "a8w8", *FP8),
    "a8w8 full": GemmProblem(1, N, K, "a8w8", *FP8, own=(("accumulate", "full"), ("scales", "per_token"))),
    "a8w8_blockscale": GemmProblem(1, N, K, "a8w8_blockscale", *FP8),
    "a16w4": GemmProblem(1, N, K, "a16w4", "bf16", "int8", "bf16"),
    "batched": GemmProblem(1, N, K, "batched_a16w16", *BF16, own=(("batch_size", 3),)),
    "grouped": GemmProblem(1, N, K, "grouped_gemm", *BF16, own=(("groups", 8),)),
    "experts, up": GemmProblem(
        *(1, N, K, "fused_moe", *BF16), activation="silu", own=(("experts", 8), ("stage", "gate_up"), ("top_k", 2))
    ),
    "experts, down": GemmProblem(1, N, K, "fused_moe", *BF16, own=(("experts", 8), ("top_k", 2))),
}
MS = (1, 16, 100, 2048)
CONFIGS = [
    made("tiled", 64, 64, 128, 1, 1, 4, 3),
    made("tiled", 128, 128, 64, 8, 1, 8, 3),
    made("tiled_tma_swapped", 16, 64, 128, 1, 1, 4, 3),
    made("tiled_tma_swapped", 16, 128, 128, 1, 1, 8, 2),
    made("warp_specialized", 64, 128, 128, 1, 1, 4, 3),
    made("warp_specialized_swapped", 16, 64, 128, 1, 1, 4, 4),
    made("tiled", 64, 64, 128, 1, 2, 4, 3),
    made("tiled_tma_swapped", 16, 64, 128, 1, 2, 4, 3),
    made("tiled", 16, 64, 128, 1, 1, 4, 3),
    made("skinny", 4, 4, 1024, 1, 1, 4, 1),
]


@dataclass
class Device:
    """The farm, and what compares rows."""

    gpu: Gpu
    build_environment: BuildEnvironment
    rows: DeviceRows


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    (found, *_) = detect_devices()
    folder, gpu = tmp_path_factory.mktemp("rows"), gpu_for_arch(found.arch)
    farm = Farm(
        BinaryCache(folder / "binaries"),
        target_of(found.arch),
        TRITON_VERSION,
        jobs=os.cpu_count() or 1,
        timeout_s=60,
    )
    profiler = SupervisedProfiler("cudagraph", 0, str(folder / "binaries"), str(folder))
    with closing(profiler), closing(farm):
        build_environment = BuildEnvironment(
            *(farm, gpu, found.arch, Budget()), init_type="randn", module_dir=str(folder), keep_modules=False
        )
        yield Device(gpu, build_environment, DeviceRows(profiler))


def configs_of(problem: GemmProblem, gpu: Gpu) -> dict[Config, str]:
    """Those that are legal, with their orders; the reference of each order among them."""
    found: dict[Config, str] = {}
    for config in CONFIGS:
        order = sums_of(problem, config, gpu.arch)
        if order and language_of(config) == "triton" and not legal(problem, config, gpu):
            reference = reference_of(problem, order, gpu)
            found |= {config: order} | ({reference: order} if reference is not None else {})
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_a_format(name: str, device: Device) -> None:
    """Every config's at every M, in permuted and other batches, again, and beside other work; none is different."""
    bits: dict[str, dict[str, str]] = defaultdict(dict)
    wrong: list[str] = []
    checked = 0
    # By pair of a whole sum and one in parts, for how many M rows tell that they are two orders.
    told: dict[tuple[str, str], int] = {}
    for m in MS:
        problem = replace(FORMATS[name], M=m)
        orders = configs_of(problem, device.gpu)
        with device.build_environment.open(problem, list(orders), 0) as builder:
            ready: dict[str, Candidate] = {each.name: each for each in builder.candidates(list(orders))}
            session = builder.build.session
            first: dict[str, Candidate] = {}
            for config, order in orders.items():
                if config.name not in ready:
                    continue
                reference = reference_of(problem, order, device.gpu)
                against = ready.get(reference.name) if reference is not None and reference != config else None
                check = device.rows.check(session, config.name, ready[config.name], against)
                checked += 1
                if not check.passed:
                    wrong.append(f"M = {m}, {config.name} ({order}): {check.message}")
                elif other := _differing(bits[order], check, config):
                    wrong.append(f"M = {m}: {other} ({order})")
                first.setdefault(order, ready[config.name])
            for pair, apart in _orders_told_apart(first, session, device).items():
                told[pair] = told.get(pair, 0) + apart
            calls = device.rows.alike(session, [VENDOR], list(first.values())) if m == MS[-1] else {}
            if calls:
                print(f"{name}: the library has the bits of {sums_of(problem, Config.parse(calls[VENDOR]), 'sm_90')}")
    print(f"{name}: {checked} comparisons, {len(bits)} orders; pairs of orders told apart: {told}")
    assert not wrong, "\n".join(wrong)
    assert checked
    assert told or not any("parts" in order for order in bits)
    # Sums that are promoted are all in float32, and differ in its last bits: of some 30,000 elements of C, which are
    # rounded to bf16, one shows it, or none.
    assert all(apart for (order, _), apart in told.items() if "every" not in order), told


def _differing(known: dict[str, str], check: Check, config: Config) -> str:
    """Whose rows that are the same for all M have other bits."""
    for name, bits in known.items():
        least = min(len(bits), len(check.row_bits))
        if bits[:least] != check.row_bits[:least]:
            return f"{config.name} and {name} differ"
    known[config.name] = max(known.get(config.name, ""), check.row_bits, key=len)
    return ""


def _orders_told_apart(first: dict[str, Candidate], session: Any, device: Device) -> dict[tuple[str, str], bool]:
    """Pairs of a whole sum and of one in parts, and whether the one's kernel is found to be none of the other's order.
    What another instruction gives is printed.
    """
    found = {}
    for order, one in first.items():
        for other_order, other in first.items():
            if alone(order) is None and other_order.startswith(f"{order};") and "parts" in other_order:
                check = device.rows.check(session, one.name, one, other)
                found[order, other_order] = not check.passed
    if {"mma k16", "wgmma k16"} <= first.keys():
        check = device.rows.check(session, first["mma k16"].name, first["mma k16"], first["wgmma k16"])
        print(f"mma k16 and wgmma k16 {'agree' if check.passed else 'differ'}: {check.message}")
    return found
