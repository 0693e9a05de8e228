"""Tests of the served profilers on a GPU: kernels that hang and fault, and timers that agree.

The bounds on times are those of an idle machine, so this file is run on its own and without pytest-xdist's -n.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import faulty_kernels
import pytest
from small_gemms import TRITON_VERSION, job_for, make_module, specs_of, target_of
from units import alone

from genkern.compile.compiler import CompileJob, run_job
from genkern.gemm.config import Config
from genkern.gemm.gpus import detect_devices, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, Candidate, Measurement, Outcome
from genkern.kernels.contract.product import product_of
from genkern.kernels.kernel import KernelSpec
from genkern.kernels.plan import LaunchPlan
from genkern.kernels.specs import launch_plan
from genkern.ops.op import get_op
from genkern.profiling.supervised_profiler import SupervisedProfiler
from genkern.timing.libraries import VENDOR
from genkern.timing.session import Budget, Session
from genkern.timing.statistics import TIE_RATIO

# Beside 14 processes that import PyTorch, restarts took 5.2 to 7.3 s (H200).
on_an_idle_machine = pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" in os.environ, reason="bounds times: run tests/profiling/test_supervised_gpu.py without -n"
)
TIMEOUT_S = 10.0
# What the supervisor may take to replace a process and open the session again.
RESTART_S = 5.0
FAULTS = {
    "spin": (Outcome.TIMED_OUT, "did not answer in 10 s"),
    "illegal": (Outcome.CRASHED, "illegal memory access"),
    "misaligned": (Outcome.CRASHED, "misaligned address"),
    "trap": (Outcome.CRASHED, "exit code 1"),
    "killed": (Outcome.CRASHED, "killed by SIGKILL"),
    "exits": (Outcome.CRASHED, "exit code 0"),
    "segfault": (Outcome.CRASHED, "killed by SIGSEGV"),
}


def spec_of(kernel: str) -> KernelSpec:
    digest = hashlib.sha256(Path(faulty_kernels.__file__).read_bytes()).hexdigest()
    constants = (("BLOCK", faulty_kernels.BLOCK),)
    return KernelSpec(kernel, digest, faulty_kernels.SIGNATURE, constants, (), (("num_warps", 4),))


def compiled(module: Path, kernels: Sequence[str], arch: str, cache: Path) -> dict[str, Binary]:
    """The kernels of faulty_kernels.py (at `module`) in the cache's own format, by name."""
    binaries = {}
    for kernel in kernels:
        spec, target = spec_of(kernel), target_of(arch)
        job = CompileJob(spec.key(target, TRITON_VERSION), str(module), spec, target, str(cache), 60.0)
        result = run_job(job, os.getpid())
        assert isinstance(result, Binary), result
        binaries[kernel] = result
    return binaries


def test_the_faulty_kernels_compile(tmp_path: Path) -> None:
    """What the GPU tests launch is compiled as the farm does it; the endless loop is still in the code."""
    disassembler = pytest.importorskip("triton").knobs.nvidia.nvdisasm.path
    binaries = compiled(Path(faulty_kernels.__file__), faulty_kernels.ON_GPU, "sm_90", tmp_path)
    cubin = str(Path(binaries["spin"].path) / "kernel.cubin")
    code = subprocess.run([disassembler, cubin], capture_output=True, text=True, check=True).stdout
    assert re.search(r"LDG\S*STRONG(.|\n)*BRA", code)
    assert {name: binary.symbol for name, binary in binaries.items()} == {n: n for n in faulty_kernels.ON_GPU}
    for family in (*faulty_kernels.ON_GPU, *faulty_kernels.ON_HOST, "late_killed"):
        (launch,) = LaunchPlan.from_json(faulty_kernels.plan(family)).launches
        assert launch.symbol in binaries


class Bench:
    """A session of faulty_kernels.py with everything compiled for this machine's first GPU."""

    def __init__(self, folder: Path) -> None:
        arch = detect_devices()[0].arch
        self.module = folder / "faulty_kernels.py"
        shutil.copy(faulty_kernels.__file__, self.module)
        self._binaries = compiled(self.module, faulty_kernels.ON_GPU, arch, folder / "binaries")
        budget = Budget(timeout_s=TIMEOUT_S, rotating_mb=0, final_rounds=12)
        problem = GemmProblem(1, faulty_kernels.SIZE, 1, dtype_a="fp32", dtype_b="fp32", dtype_c="fp32")
        self.session = Session(str(self.module), problem, arch, 0, str(folder), budget)
        self.profiler = SupervisedProfiler("cudagraph", 0, str(folder / "binaries"), str(folder))

    def candidate(self, family: str, number: int = 16) -> Candidate:
        kernel = family.removeprefix("late_")
        binary = self._binaries.get(kernel, self._binaries["good"])
        return Candidate(Config(family, number, 16, 16), (binary,), faulty_kernels.plan(family))

    def break_late_ones(self) -> None:
        self.module.with_suffix(".late").touch()


@pytest.fixture
def bench(hostile_path: Path) -> Iterator[Bench]:
    builder = Bench(hostile_path)
    yield builder
    builder.profiler.close()


@pytest.mark.gpu
@on_an_idle_machine
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_in_screening(kind: str, bench: Bench) -> None:
    """The config has its outcome and its message, the others their times, and the restart takes less than 5 s."""
    wanted = [bench.candidate("good", 1), bench.candidate(kind), bench.candidate("good", 2)]
    screening = bench.profiler.screen(bench.session, alone(wanted))
    first, faulty = next(screening), next(screening)
    started = time.monotonic()
    last = next(screening)
    restart_s = time.monotonic() - started
    outcome, said = FAULTS[kind]
    assert (first.outcome, faulty.outcome, last.outcome) == (Outcome.MEASURED, outcome, Outcome.MEASURED)
    assert said in faulty.message
    assert restart_s < RESTART_S
    assert last.duration_us == pytest.approx(first.duration_us, rel=0.5)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["spin", "illegal", "misaligned", "late_killed"])
def test_a_fault_in_the_finals(kind: str, bench: Bench) -> None:
    """A config that faults only there costs itself; the other finalists and the vendor library are timed."""
    wanted = [bench.candidate("good", 1), bench.candidate(kind), bench.candidate("good", 2)]
    # A binary that faults does so in screening too: that one is not screened here.
    well = wanted if kind == "late_killed" else [wanted[0], wanted[2]]
    assert {m.outcome for m in bench.profiler.screen(bench.session, alone(well))} == {Outcome.MEASURED}
    bench.break_late_ones()
    finals = {m.config: m for m in bench.profiler.retime(bench.session, wanted)}
    assert finals[wanted[1].config.name].outcome is FAULTS[kind.removeprefix("late_")][0]
    for name in (wanted[0].config.name, wanted[2].config.name, VENDOR):
        assert finals[name].outcome is Outcome.MEASURED
        assert len(finals[name].samples_us) >= 5


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["illegal", "killed"])
def test_a_fault_in_the_check(kind: str, bench: Bench) -> None:
    """The check fails with what was said, and the next one passes."""
    failed = bench.profiler.check(bench.session, bench.candidate(kind))
    assert not failed.passed
    assert FAULTS[kind][1] in failed.message
    assert bench.profiler.check(bench.session, bench.candidate("good")).passed


@pytest.mark.gpu
def test_a_process_killed_in_the_middle(bench: Bench) -> None:
    """SIGKILL from outside while candidates are under way costs one of them at most, and no process stays."""
    wanted = [bench.candidate("good", number) for number in range(1, 200)]
    screening = bench.profiler.screen(bench.session, alone(wanted))
    measured = [next(screening) for _ in range(50)]
    harness = [pid for pid in _descendants() if "genkern.profiling.harness" in _command(pid)]
    os.kill(harness[-1], signal.SIGKILL)
    measured += list(screening)
    outcomes = [m.outcome for m in measured]
    assert outcomes.count(Outcome.MEASURED) >= len(wanted) - 1
    assert len(outcomes) == len(wanted)
    bench.profiler.close()
    assert not [pid for pid in _descendants() if "genkern.profiling.harness" in _command(pid)]


def _descendants() -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    found, level = [], [os.getpid()]
    while level:
        level = sorted(pid for pid, parent in parents.items() if parent in level)
        found += level
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _finals(
    time_source: str, session: Session, candidates: Sequence[Candidate], folder: Path
) -> dict[str, Measurement]:
    profiler = SupervisedProfiler(time_source, 0, str(folder / "binaries"), str(folder))
    try:
        return {m.config: m for m in profiler.retime(session, candidates)}
    finally:
        profiler.close()


def _us(finals: dict[str, Measurement], name: str) -> float:
    duration_us = finals[name].duration_us
    assert duration_us is not None
    return duration_us


@pytest.fixture
def gemm(tmp_path: Path) -> tuple[Session, Candidate]:
    """1024 x 1024 x 1024 in bf16, and one config of it."""
    return made(GemmProblem(1024, 1024, 1024), tmp_path)


def made(problem: GemmProblem, tmp_path: Path) -> tuple[Session, Candidate]:
    """The problem, and one config of it."""
    arch = detect_devices()[0].arch
    config = Config("tiled", 128, 128, 64, 8, 1, 4, 3)
    module, loaded = make_module(tmp_path, problem, [config], arch)
    path = Path(str(loaded.__file__))
    jobs = [job_for(spec, path, arch, tmp_path / "binaries") for spec in specs_of(module, config)]
    results = [run_job(job, os.getpid()) for job in jobs]
    binaries = tuple(result for result in results if isinstance(result, Binary))
    plan = launch_plan(product_of(problem, get_op(problem.op), arch), config, gpu_for_arch(arch)).to_json()
    assert len(binaries) == len(results)
    return Session(str(path), problem, arch, 0, str(tmp_path), Budget(timeout_s=60)), Candidate(config, binaries, plan)


@pytest.mark.gpu
@on_an_idle_machine
def test_timers_agree(gemm: tuple[Session, Candidate], tmp_path: Path) -> None:
    """A graph's time of a call is CUPTI's time of its kernel and the gap to the next kernel, 0 to 2 us.

    So do they for the vendor library, and the ratio of the two, which is what is chosen by, agrees within 10 %.
    """
    session, candidate = gemm
    by_graph = _finals("cudagraph", session, [candidate], tmp_path)
    by_cupti = _finals("cupti", session, [candidate], tmp_path)
    by_events = _finals("cudaevents", session, [candidate], tmp_path)
    for name in (candidate.config.name, VENDOR):
        graph_us, cupti_us = _us(by_graph, name), _us(by_cupti, name)
        assert 0.97 * cupti_us <= graph_us <= 1.03 * cupti_us + 2.0
        # Events alone: a gap for each launch, not much more.
        assert 0.97 * cupti_us <= _us(by_events, name) <= 1.03 * cupti_us + 4.0
    ratios = [_us(found, candidate.config.name) / _us(found, VENDOR) for found in (by_graph, by_cupti)]
    assert ratios[0] == pytest.approx(ratios[1], rel=0.1)


@pytest.mark.gpu
@on_an_idle_machine
def test_timing_again_gives_the_same(gemm: tuple[Session, Candidate], tmp_path: Path) -> None:
    """Two processes agree on a config's median within 2 %, and the intervals are narrow."""
    session, candidate = gemm
    medians = []
    for _ in range(2):
        final = _finals("cudagraph", session, [candidate], tmp_path)[candidate.config.name]
        # Five, if the vendor library beats it clearly: then it drops out.
        assert len(final.samples_us) >= 5
        medians.append(statistics.median(final.samples_us))
    assert max(medians) <= 1.02 * min(medians)


@pytest.mark.gpu
@on_an_idle_machine
def test_flushed_code_is_slower(gemm: tuple[Session, Candidate], tmp_path: Path) -> None:
    """With --icache_flush a call fetches its code again: never faster than warm, and not twice as slow either."""
    session, candidate = gemm
    name = candidate.config.name
    cold = replace(session, budget=replace(session.budget, icache_flush=True))
    warm_us = _us(_finals("cupti", session, [candidate], tmp_path), name)
    cold_us = _us(_finals("cupti", cold, [candidate], tmp_path), name)
    assert 0.98 * warm_us <= cold_us <= 2 * warm_us


@pytest.mark.gpu
@on_an_idle_machine
@pytest.mark.parametrize(("size", "least", "most"), [(1024, 10, 60), (4096, 5, 8)])
def test_one_binary_is_confirmed_to_be_level_with_itself(size: int, least: int, most: int, tmp_path: Path) -> None:
    """Under three names, in samples of short calls and in blocks of long ones; the rounds take less than 1.5 s."""
    session, candidate = made(GemmProblem(size, size, size), tmp_path)
    names = [replace(candidate.config, num_stages=stages) for stages in (2, 3, 4)]
    profiler = SupervisedProfiler("cudagraph", 0, str(tmp_path / "binaries"), str(tmp_path))
    try:
        profiler.retime(session, [candidate])
        started_s = time.monotonic()
        found = profiler.confirm(session, [replace(candidate, config=name) for name in names], [VENDOR])
        took_s = time.monotonic() - started_s
    finally:
        profiler.close()
    medians = [_us({m.config: m for m in found}, name.name) for name in names]
    assert max(medians) <= TIE_RATIO * min(medians)
    assert [m.config for m in found] == [*(name.name for name in names), VENDOR]
    (rounds,) = {len(m.samples_us) for m in found}
    assert least <= rounds <= most
    assert took_s < 1.5


@pytest.mark.gpu
def test_versions_of_the_process_are_known(gemm: tuple[Session, Candidate], tmp_path: Path) -> None:
    """The device's name and PyTorch's version are those of the process that measured."""
    session, candidate = gemm
    profiler = SupervisedProfiler("cudagraph", 0, str(tmp_path / "binaries"), str(tmp_path))
    try:
        profiler.retime(session, [candidate])
        assert profiler.torch_version.startswith(importlib.metadata.version("torch"))
        assert profiler.device
    finally:
        profiler.close()
