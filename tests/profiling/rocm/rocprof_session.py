"""What the tests of the rocprof drivers share: fake profilers in place, a session, candidates and their times."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import fake_rocprof
import pytest

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, Candidate, Measurement, Resources
from genkern.timing.libraries import VENDOR
from genkern.timing.session import Budget, Session


def make_candidate(number: int, split_k: int = 1) -> Candidate:
    """Candidates 0 and 1 share a binary, 2 and 3 the next, and so on; split-K ones all share a reduction."""
    config = Config("tiled", 16 << number // 2, 64, 64, GROUP_SIZE_M=1 + number % 2, SPLIT_K=split_k)
    symbols = [f"tiled_BM{config.BLOCK_SIZE_M}"] + (["reduce_splits"] if split_k > 1 else [])
    binaries = tuple(Binary(symbol, f"/cache/{symbol}", symbol, Resources()) for symbol in symbols)
    return Candidate(config, binaries)


CANDIDATES = [make_candidate(number, split_k=4 if number == 5 else 1) for number in range(8)]
NAMES = [candidate.config.name for candidate in CANDIDATES]


def install_profilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake rocprofv3 and rocprof on PATH, below a folder with spaces and quotes, and their harness."""
    folder = tmp_path / 'it\'s "ROCm"'
    folder.mkdir()
    source = Path(fake_rocprof.__file__).read_text()
    for name in ("rocprofv3", "rocprof", "harness.py"):
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{source}")
        path.chmod(0o755)
    # The script file legacy rocprof passes on must be plain.
    plain = tmp_path / "harness.py"
    plain.write_text(source)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_FORMATS", str(Path(fake_rocprof.__file__).parent))
    monkeypatch.setenv("ROCPROF_OUTPUT_FORMAT", "json")
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCPROFV3", "ROCPROF", "FAKE_ROCPROF"):
        monkeypatch.delenv(name, raising=False)


def make_session(tmp_path: Path) -> Session:
    """A session whose folder name is hostile."""
    budget = Budget(warmup=1, screen_launches=3, final_rounds=5, timeout_s=1.2)
    work_dir = str(tmp_path / "work 'a' \"b\"")
    return Session("gemm.py", GemmProblem(64, 64, 64), "gfx942", 2, work_dir, budget)


def plain_session(session: Session, tmp_path: Path) -> Session:
    """The session in a folder that legacy rocprof takes."""
    return Session(**{**vars(session), "work_dir": str(tmp_path / "work")})


def expected_us(candidate: Candidate, calls: range) -> tuple[float, ...]:
    kernels = len(candidate.binaries)
    return tuple(kernels * fake_rocprof.duration_ns(candidate.config.name, call) / 1000 for call in calls)


def by_name(measurements: Iterator[Measurement] | list[Measurement]) -> dict[str, Measurement]:
    """Measurements by config, having checked that every candidate has exactly one, and the vendor library in finals."""
    listed = list(measurements)
    library = [VENDOR] if listed[0].stage == "final" else []
    assert sorted(m.config for m in listed) == sorted([*NAMES, *library])
    return {m.config: m for m in listed}
