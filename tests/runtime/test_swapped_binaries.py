"""A call launches the machine code that its digest says, whatever else a resealed bundle or a cache offers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from recording_gpu import FakeGpu
from small_bundle import winners_for

from genkern.compile.binary.code_object import code_sha256
from genkern.errors import LaunchError
from genkern.result.package import PackedCall
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.records import from_data, to_data
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.launch.cached_call import CachedBinaries


def called(bundle: Bundle, winner: Result, call: PackedCall, gpu: FakeGpu) -> int:
    """How many kernels are launched for the winner's own size, by a bundle of it alone."""
    changed = replace(bundle, contents=replace(bundle.contents, winners=(winner.with_calls((call,)),)))
    gpu.driver.launched.clear()
    gemm = Gemm("a16w16", Context(lambda op: [changed], lambda index: gpu))
    problem = winner.problem
    gemm(torch.randn(problem.M, problem.K).bfloat16(), torch.randn(problem.N, problem.K).bfloat16())
    return len(gpu.driver.launched)


def test_swapped_binaries_are_not_launched(bundle: Bundle, gpu: FakeGpu) -> None:
    """Two winners' binaries, exchanged in a bundle with a whole seal: the library serves, though the driver would take
    them, as it does if the bundle names no digest.
    """
    winners = [each for each in winners_for(bundle, "sm_90") if each.calls and len(each.calls[0].binaries) == 1]
    exchanged = 0
    for winner in winners[:4]:
        own = winner.calls[0]
        assert called(bundle, winner, own, gpu) == 1
        for other in winners:
            if other.calls[0].code != own.code:
                swapped = replace(own, binaries=other.calls[0].binaries)
                exchanged += called(bundle, winner, replace(swapped, code=""), gpu)
                assert not called(bundle, winner, swapped, gpu)
    assert exchanged


def test_a_proof_without_a_digest_is_none(bundle: Bundle) -> None:
    """Nobody can tell which code was proved."""
    winner = next(winner for winner in bundle.winners if winner.calls)
    call = replace(winner.calls[0], proved=(winner.calls[0].least_m,))
    for code, proved in ((call.code, call.proved), ("", ())):
        contents = replace(bundle.contents, winners=(winner.with_calls((replace(call, code=code),)),))
        again = from_data(json.loads(json.dumps(to_data(contents))))
        assert again.winners[0].calls[0].proved == proved


def test_a_cache_entry_that_was_exchanged_is_not_launched(bundle: Bundle, gpu: FakeGpu, tmp_path: Path) -> None:
    """Between the look-up of a binary and its launch another user of the cache may have put another one there."""
    winner = next(
        each for each in winners_for(bundle, "sm_90") if each.calls and each.config_name.startswith("tiled_BM")
    )
    (sha256, *_), (launch, *_) = winner.calls[0].binaries, winner.calls[0].plan.launches
    image, packed = bundle.image(sha256), bundle.contents.binaries[sha256]
    (tmp_path / "kernel.cubin").write_bytes(image)
    said = {"num_warps": packed.threads // 32, "shared": packed.shared_bytes}
    (tmp_path / "kernel.json").write_text(json.dumps(said))
    (tmp_path / "genkern.json").write_text(json.dumps({"symbol": launch.symbol}))
    plan = replace(winner.calls[0].plan, launches=(launch,))
    asked = [str(tmp_path)], plan, dict.fromkeys("abc", "bf16"), {"units": 132, "M": 100}
    assert CachedBinaries(gpu, "cuda", 32).call(*asked, [code_sha256(image)]).operands
    with pytest.raises(LaunchError, match="was changed"):
        CachedBinaries(gpu, "cuda", 32).call(*asked, ["0" * 64])
