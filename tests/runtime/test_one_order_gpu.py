"""Tests on a GPU: a row has the same bits in every batch, of each format, by the kernels that its bundle has."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
import torch
from one_order_layers import LAYERS, SIZES, Call, OrderedLayer
from small_bundle import pack_here

from genkern.runtime.bundles.bundle import Bundle, read_bundle
from genkern.runtime.calls.configuration import STRICT
from genkern.runtime.calls.context import Context
from genkern.runtime.launch.torch_gpu import TorchGpu

pytestmark = pytest.mark.gpu
# Rows that batches are drawn from, and how many batches. GENKERN_ROWS_CHECKED=10000000 compares as many rows of each
# layer, of LEAST_UNTUNED or more M that nobody tuned, and prints a line of a table for it: half a minute.
POOL, BATCHES = 4096, 60
LEAST_ROWS, LEAST_UNTUNED = int(os.environ.get("GENKERN_ROWS_CHECKED", "0")), 2000


@pytest.fixture(scope="module", params=LAYERS, ids=lambda layer: layer.name)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Call:
    """A layer's calls, by winners that were packed for this GPU."""
    layer: OrderedLayer = request.param
    gpu = TorchGpu(0)
    if gpu.identity.arch != "sm_90":
        pytest.skip("the configs are of sm_90")
    here = {"device": gpu.identity.name, "compute_units": gpu.identity.compute_units}
    bundle: Bundle = read_bundle(pack_here(tmp_path_factory.mktemp("layer"), layer.rows(**here), cache_dir))
    torch.manual_seed(0)
    return layer.calls(Context(lambda op: [bundle], lambda index: gpu, batch_invariant=STRICT), POOL, "cuda")


@torch.no_grad()
def test_rows_have_the_same_bits_in_every_batch(
    served: Call, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """For tuned and untuned M, in any order and company, on random normal numbers, where an order of sums shows; and
    again while other work runs.
    """
    chance, checked, started_s = random.Random(0), 0, time.monotonic()
    everything = torch.arange(POOL, device="cuda")
    wanted = served(everything)
    assert torch.equal(served(everything), wanted)
    sizes = [1, 2, 3, *SIZES, *(round(POOL ** chance.uniform(0, 1)) for _ in range(BATCHES))]
    other, aside, seen = torch.randn(1024, 1024, device="cuda"), torch.cuda.Stream(), set[int]()
    while sizes or checked < LEAST_ROWS or (LEAST_ROWS and len(seen.difference(SIZES)) < LEAST_UNTUNED):
        m = sizes.pop() if sizes else round(POOL ** chance.uniform(0, 1))
        rows = torch.randperm(POOL, device="cuda")[:m]
        with torch.cuda.stream(aside):
            torch.mm(other, other)
        found = served(rows)
        same = (found == wanted[rows]) | (found.isnan() & wanted[rows].isnan())
        assert bool(same.all()), f"M = {m}: {int((~same).flatten(1).any(1).sum())} of {m} rows differ"
        checked += m
        seen.add(m)
    if LEAST_ROWS:
        name, untuned = request.node.callspec.id, len(seen.difference(SIZES))
        with capsys.disabled():
            print(f"\n| {name} | {checked:,} rows | {untuned:,} untuned M | {time.monotonic() - started_s:.0f} s |")


@torch.no_grad()
def test_a_graph_has_the_same_bits(served: Call) -> None:
    """Captured for one M and replayed, as the eager calls of another."""
    rows = torch.arange(37, device="cuda")
    wanted = served(torch.arange(POOL, device="cuda"))[:37]
    served(rows)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = served(rows)
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(found, wanted)
