"""Tests of genkern.packing.packer: a call whose kernels are of two languages is packed, and launched in order."""

from __future__ import annotations

from pathlib import Path

from cute_stand_in import StandInFarm
from recording_gpu import FakeGpu

from genkern.compile.cache import BinaryCache
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.packing.packer import Packer
from genkern.packing.rows import rows_of, with_calls
from genkern.result.result import Proof, Result
from genkern.runtime.bundles.bundle import read_bundle, write_bundle
from genkern.runtime.bundles.records import Contents
from genkern.runtime.bundles.table import Choice
from genkern.runtime.launch.parameters import Layout
from genkern.runtime.launch.prepared_call import PreparedCall

PROBLEM = GemmProblem(300, 240, 1024, bias=True)
SPLIT = Config("cute_wgmma", 128, 120, 64, 1, 3, 8, 5, store="direct", cluster="1x2")


def test_a_split_k_of_two_languages(tmp_path: Path) -> None:
    """CuTe's kernel leaves sums in the workspace, from which Triton's makes C, whatever M is."""
    row = Result(
        PROBLEM,
        SPLIT,
        arch="sm_90",
        device="NVIDIA H200",
        duration_us=10.0,
        time_source="cudagraph",
        check=Proof("gpu"),
        versions=(("triton", "3.6.0"),),
    )
    packer = Packer(StandInFarm(BinaryCache(tmp_path / "cache")), "sm_90", tmp_path)
    (packed,) = rows_of([row], None, False).packed
    winner = with_calls(packed, packer.pack(packed.wanted))
    write_bundle(str(tmp_path / "b.gkb"), Contents((winner,), packer.binaries), packer.images)
    bundle = read_bundle(str(tmp_path / "b.gkb"))
    for m in (300, 77):
        gpu, call = FakeGpu(), next(call for call in winner.calls if call.least_m <= m <= call.most_m)
        layouts = {
            "a": Layout(m, 1024, 1024, 2),
            "b": Layout(240, 1024, 1024, 2),
            "c": Layout(m, 240, 240, 2),
            "bias": Layout(1, 240, 240, 2),
        }
        prepared = PreparedCall(gpu, Choice("tuned", winner, call, bundle), layouts, m)
        assert prepared.memory_bytes == (3 * m * 240 * 4, 0)
        assert prepared((1 << 20, 2 << 20, 3 << 20, 4 << 20))
        parts, sums = gpu.driver.launched
        assert parts.symbol == "matmul_cute_split_1x2_BM128_BN120_BK64_nW8_nS5_0"
        assert sums.symbol.startswith("reduce_splits_")
        # Rows of tiles, one cluster along N for each, three parts.
        assert (parts.grid, parts.threads, parts.cluster) == ((-(-m // 128) * 3 * 2, 1, 1), 384, 2)
        assert (sums.threads, sums.cluster) == (128, 1)
        workspace = parts.parameters[2]
        assert sums.parameters[0] == workspace
        assert [int.from_bytes(each, "little") for each in sums.parameters[1:3]] == [3 << 20, 4 << 20]
        numbers = [int.from_bytes(each, "little") for each in parts.parameters[3:]]
        assert numbers == [m, 240, 1024, 1, 240, 3]
