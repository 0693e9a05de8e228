"""Kernels of one order of sums on a GPU (genkern.kernels.contract.sum_order) give equal rows equal bits, as calls have
them.

Rows are normal deviates, with which every order shows. Each config has weights of its own, the first rows of one
matrix, so that all have the same columns of C to agree in.
"""

from __future__ import annotations

import importlib.util
import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forms import made
from small_bundle import row
from small_gemms import TRITON_VERSION, target_of

from genkern.compile.cache import BinaryCache
from genkern.compile.farm import Farm
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import language_of, sums_of
from genkern.kernels.legality import legal
from genkern.packing.packer import Packer
from genkern.packing.rows import rows_of, with_calls
from genkern.result.package import PackedCall
from genkern.runtime.bundles.bundle import Bundle, read_bundle, write_bundle
from genkern.runtime.bundles.records import Contents
from genkern.runtime.bundles.untuned_m import nearest_winner
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm

pytestmark = pytest.mark.gpu

K, COLUMNS, POOL = 4096, 512, 1024
# Of each order some, by families, sides, blocks and warps.
CONFIGS = [
    made("tiled", 64, 64, 64, 1, 1, 4, 3),
    made("tiled", 128, 128, 32, 4, 1, 8, 4),
    made("tiled_tma", 64, 128, 128, 1, 1, 4, 2),
    made("tiled_tma_swapped", 16, 64, 256, 1, 1, 8, 3),
    made("tiled_tma_swapped", 16, 128, 256, 1, 1, 8, 2),
    made("persistent_tma", 128, 128, 64, 8, 1, 8, 3),
    made("warp_specialized", 64, 112, 64, 1, 1, 4, 5),
    made("warp_specialized_swapped", 24, 128, 256, 1, 1, 8, 2),
    made("warp_specialized_2x1", 64, 112, 64, 2, 1, 4, 5),
    made("cute_cooperative", 128, 128, 64, 1, 1, 8, 4),
    made("cute_ping_pong_swapped", 64, 64, 64, 1, 1, 8, 4),
    # By mma.sync.
    made("tiled", 16, 64, 64, 1, 1, 4, 3),
    made("tiled_swapped", 8, 64, 128, 1, 1, 4, 3),
    made("tiled_tma_swapped", 8, 64, 64, 1, 1, 4, 3),
    made("tiled_tma_swapped", 16, 32, 256, 1, 1, 8, 3),
    made("tiled", 64, 64, 64, 1, 1, 2, 3),
    # In parts.
    made("tiled", 64, 64, 64, 1, 2, 4, 3),
    made("tiled_tma_swapped", 16, 64, 128, 1, 2, 4, 3),
    made("warp_specialized_swapped_cluster2", 16, 64, 64, 1, 1, 4, 5),
    made("cute_cooperative_direct", 64, 64, 64, 1, 2, 4, 3),
    made("tiled", 64, 64, 64, 1, 3, 4, 3),
    made("tiled_tma", 64, 64, 64, 1, 3, 4, 3),
    made("skinny", 4, 4, 1024, 1, 1, 4, 1),
]
BATCHES = (1, 3, 16, 64, 65, 200, 777, POOL)


def problem_of(number: int, m: int = POOL) -> GemmProblem:
    """The problem of the config with this number."""
    return GemmProblem(m, COLUMNS + 64 * number, K)


def configs_for(arch: str) -> dict[int, Config]:
    """By their numbers, those that can be had here."""
    has_cute = importlib.util.find_spec("cutlass") is not None
    return {
        number: config
        for number, config in enumerate(CONFIGS)
        if not legal(problem_of(number), config, gpu_for_arch(arch)) and (has_cute or language_of(config) == "triton")
    }


def pack(folder: Path, arch: str, device: str, units: int) -> Bundle:
    """A bundle of all, for POOL rows and any other number of them."""
    found = [
        replace(row(problem_of(number), config), arch=arch, device=device, compute_units=units)
        for number, config in configs_for(arch).items()
    ]
    packed = rows_of(found, None, False).packed
    cache, jobs = BinaryCache(folder / "binaries"), os.cpu_count() or 1
    farm = Farm(cache, target_of(arch), TRITON_VERSION, jobs=jobs, timeout_s=60)
    packer = Packer(farm, arch, folder)
    try:
        calls = packer.pack([wanted for each in packed for wanted in each.wanted])
    finally:
        farm.close()
    winners = []
    for each in packed:
        own, calls = calls[: len(each.wanted)], calls[len(each.wanted) :]
        assert all(isinstance(call, PackedCall) for call in own), own
        winners.append(with_calls(each, own))  # type: ignore[arg-type]
    path = str(folder / "all.genkern")
    write_bundle(path, Contents(tuple(winners), packer.binaries), packer.images)
    return read_bundle(path)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[int, Any]]:
    """By config and size of a batch, the first COLUMNS of C in the order of the pool, of batches in any order."""
    import torch

    from genkern.runtime.launch.torch_gpu import TorchGpu

    gpu = TorchGpu(0)
    identity = gpu.identity
    bundle = pack(tmp_path_factory.mktemp("sums"), identity.arch, identity.name, identity.compute_units)
    context = Context(lambda op: [bundle], lambda index: gpu if index >= 0 else None, nearest_winner)
    gemm = Gemm("a16w16", context)
    generator = torch.Generator("cuda").manual_seed(1)
    columns = problem_of(len(CONFIGS)).N
    x, weight = (torch.randn(size, device="cuda", generator=generator).bfloat16() for size in ((POOL, K), (columns, K)))
    rows: dict[int, dict[int, Any]] = defaultdict(dict)
    for number, config in configs_for(identity.arch).items():
        own = weight[: problem_of(number).N].contiguous()
        for m in BATCHES:
            choice = context.find(gpu, problem_of(number, m))
            assert choice.call is not None, (config.name, m, choice.why)
            assert choice.call.sums == sums_of(problem_of(number), config, identity.arch)
            out = torch.empty(POOL, COLUMNS, device="cuda", dtype=torch.bfloat16)
            # Every row of the pool is in some batch, at a place by chance; the last batch is filled up by other rows.
            order = torch.randperm(POOL, device="cuda", generator=generator)
            for first in range(0, POOL, m) if m > 3 else range(0, 64 * m, m):
                places = order[(torch.arange(m, device="cuda") + first) % POOL]
                out[places] = gemm(x[places], own)[:, :COLUMNS]
            rows[number][m] = (order[: 64 * m] if m <= 3 else order), out
    rows[-1][POOL] = order, torch.mm(x, weight.T)[:, :COLUMNS]
    return rows


def differing(one: Any, other: Any) -> int:
    """Rows of the second, of those that it has, that are not the first's to the bit."""
    (_, wanted), (order, out) = one, other
    return int((wanted[order] != out[order]).any(1).sum())


def test_rows_of_one_order_have_equal_bits(found: dict[int, dict[int, Any]]) -> None:
    """Of every config and batch, those of the first config of their order in one batch of all; none is different."""
    from genkern.gemm.gpus import detect_arch

    arch = detect_arch() or "sm_90"
    firsts: dict[str, Any] = {}
    wrong, checked = [], 0
    for number, config in configs_for(arch).items():
        order = sums_of(problem_of(number), config, arch)
        first = firsts.setdefault(order, found[number][POOL])
        for m in BATCHES:
            checked += len(found[number][m][0])
            if count := differing(first, found[number][m]):
                wrong.append(f"{config.name} ({order}), M = {m}: {count} rows of {len(found[number][m][0])}")
    print(f"{checked:,} rows of {len(firsts)} orders")
    assert not wrong, "\n".join(wrong)


def test_other_orders_have_other_bits(found: dict[int, dict[int, Any]]) -> None:
    """So that the test above can fail: parts of K show. Which others differ is printed, torch.mm's among them."""
    from genkern.gemm.gpus import detect_arch

    arch = detect_arch() or "sm_90"
    numbered = reversed(configs_for(arch).items())
    firsts = {sums_of(problem_of(number), config, arch): number for number, config in numbered}
    all_of = {"torch.mm": found[-1][POOL]} | {order: found[number][POOL] for order, number in firsts.items()}
    names = [*all_of]
    for place, name in enumerate(names):
        for other in names[place + 1 :]:
            print(f"{name} | {other}: {differing(all_of[name], all_of[other])} of {POOL} rows differ")
    whole = "wgmma k16" if "wgmma k16" in names else "mma k16"
    parts = [name for name in names if name.startswith(f"{whole};")]
    assert parts
    assert all(differing(all_of[whole], all_of[name]) for name in parts)
