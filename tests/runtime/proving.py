"""Bundles whose kernels nobody compiled, and the measured process of tests in the place of a GPU's."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

from computing_gpu import planned, planned_row

from genkern.gemm.gpus import DetectedDevice
from genkern.gemm.problem import GemmProblem
from genkern.packing.proof import trimmed
from genkern.profiling.supervised_profiler import SupervisedProfiler
from genkern.runtime.bundles.bundle import Bundle, write_bundle
from genkern.runtime.bundles.records import PackedBinary

HARNESS = Path(__file__).parents[1] / "profiling" / "fake_harness.py"
H200 = DetectedDevice(0, "NVIDIA H200", "sm_90", driver="999.1")


def named(family: str, rows: int = 8) -> str:
    """A config by the name of which the process knows what to do: it takes so many microseconds, the library 9."""
    return f"{family}_BM{rows}_BN64_BK64_GM1_SK1_nW4_nS2"


def bundle_of(*configs: str) -> Bundle:
    """A winner by each name, one size each, with the call for its own M alone."""
    bundle, _ = planned([planned_row(GemmProblem(128, 64 * (2 + number), 256)) for number in range(len(configs))])
    winners = [
        replace(winner, kernel_name=config).with_calls(winner.calls[:1])
        for winner, config in zip(bundle.winners, configs, strict=True)
    ]
    return replace(bundle, contents=trimmed(replace(bundle.contents, winners=tuple(winners))))


def written(bundle: Bundle, path: Path) -> Path:
    """The bundle as a file, with something in the place of its binaries."""
    binaries: dict[str, PackedBinary] = {}
    images: dict[str, bytes] = {}
    places: dict[str, str] = {}
    for name, binary in bundle.contents.binaries.items():
        image = name.encode()
        places[name] = sha256 = hashlib.sha256(image).hexdigest()
        binaries[sha256], images[sha256] = replace(binary, sha256=sha256), image
    winners = tuple(
        winner.with_calls(
            # A proof counts with the digest of machine code alone.
            tuple(
                replace(call, binaries=tuple(places[name] for name in call.binaries), code=call.code or "c0de")
                for call in winner.calls
            )
        )
        for winner in bundle.winners
    )
    write_bundle(str(path), replace(bundle.contents, winners=winners, binaries=binaries), images)
    return path


def fake_server(folder: Path) -> SupervisedProfiler:
    """Real processes that do what the names of configs say."""
    harness = sys.executable, "-I", "-S", str(HARNESS)
    return SupervisedProfiler("cudagraph", 0, str(folder), str(folder), harness=harness)
