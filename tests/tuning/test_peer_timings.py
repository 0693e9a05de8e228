"""Configs that other programs' kernels can run: a few are measured for each size, and results keep their times."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from command import run_here
from rich.console import Console
from small_gemms import target_of
from winner_factory import write_results

from genkern.compile.build_environment import BuildEnvironment
from genkern.compile.cache import BinaryCache
from genkern.compile.compile_queue import ResultCallback
from genkern.compile.compiler import CompileJob
from genkern.compile.farm import Farm
from genkern.files.exchange import vllm
from genkern.files.exchange.peers import runnable_by_peers
from genkern.files.file_kind import read_results
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, Measurement, Outcome, Resources
from genkern.journal.facts import read_journal
from genkern.journal.journal import Journal
from genkern.ops.fields import parse_own
from genkern.ops.op import get_op
from genkern.profiling.predict_profiler import PredictProfiler
from genkern.search.limit import Limit
from genkern.search.strategies import ChosenStrategy
from genkern.search.strategy import Event, Measured, Strategy, Task, Unit, units_of
from genkern.space.space import load_space
from genkern.timing.session import Budget
from genkern.tuning.peer_timings import AT_LEAST, extra_configs, kept_times
from genkern.tuning.progress import Progress
from genkern.tuning.tune import Provenance, Tuner

GPU = gpu_for_arch("sm_90")
BLOCKS = GemmProblem(64, 512, 1024, "a8w8_blockscale", "fp8e4m3fn", "fp8e4m3fn")
NAME = "N=512,K=1024,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"


def experts(stage: str) -> GemmProblem:
    own = parse_own(get_op("fused_moe").fields, {"experts": "8", "top_k": "2", "stage": stage})
    return GemmProblem(64, 512, 512, "fused_moe", own=own)


class FarmOfNobody(Farm):
    """Makes every binary at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(BinaryCache(folder), target_of("sm_90"), "3.6.0", jobs=2, timeout_s=1.0)

    def order(self, owner: Hashable, jobs: Sequence[tuple[int, CompileJob]], tell: ResultCallback) -> None:
        for _, job in jobs:
            tell(job.key, Binary(job.key, "/entry", "symbol", Resources()))


class OneOfOurOwn(Strategy):
    """Asks for one unit that no other program can run."""

    made: list[OneOfOurOwn]

    def __init__(self, task: Task) -> None:
        plain = set(runnable_by_peers(task.problem, task.configs, "nvidia"))
        self.now = units_of(config for config in task.configs if config not in plain)[:1]
        self.told: list[Event] = []
        OneOfOurOwn.made.append(self)

    def ask(self, n: int) -> Sequence[Unit]:
        asked, self.now = self.now, []
        return asked

    def tell(self, event: Event) -> None:
        self.told.append(event)


@contextmanager
def tuner(folder: Path, limit: Limit, **changes: object) -> Iterator[Tuner]:
    OneOfOurOwn.made = []
    where = {"module_dir": str(folder / "modules"), "keep_modules": False}
    build_environment = BuildEnvironment(
        FarmOfNobody(folder / "cache"), GPU, "sm_90", Budget(), init_type="hpl", **where
    )
    chosen = ChosenStrategy("one", OneOfOurOwn, **changes)
    provenance = Provenance("sm_90", "NVIDIA H200", ())
    journal = Journal(folder / "journal", {})
    spaces = {problem.op: load_space(None, "sm_90", problem.op) for problem in (BLOCKS, experts("down"))}
    parts = build_environment, PredictProfiler(), None, journal, Progress(Console(quiet=True)), provenance, Budget()
    yield Tuner(spaces.__getitem__, *parts, strategy=chosen, limit=limit)
    journal.close()


def test_every_size_can_be_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Though the winner is a kernel of genkern's own: vLLM gets the fastest of those that were measured for its sake.

    The strategy is not told of them. The row, the journal and the file say the same.
    """
    with tuner(tmp_path, Limit()) as tunes:
        winner = tunes.tune(BLOCKS).winner
    assert winner is not None
    configs = {Config.parse(name): us for name, us in winner.peer_us}
    assert len(configs) == len({(c.BLOCK_SIZE_M, c.BLOCK_SIZE_N, c.BLOCK_SIZE_K) for c in configs}) == AT_LEAST
    assert not any(vllm.config_obstacle(config) for config in configs)
    assert list(configs.values()) == sorted(configs.values())
    (strategy,) = OneOfOurOwn.made
    told = {event.config for event in strategy.told if isinstance(event, Measured)}
    assert told
    assert told.isdisjoint(configs)
    assert read_journal(tmp_path / "journal").winners() == [winner]

    # As if our own had won, on a GPU.
    own = next(iter(told))
    write_results(tmp_path / "r.yaml", [replace(winner, config=own, duration_us=1.0, time_source="cudagraph")])
    assert read_results(str(tmp_path / "r.yaml"))[0].peers == configs
    ran = run_here(capsys, "export", tmp_path / "r.yaml", "--to", "vllm", "--partial", "-o", tmp_path / "v")
    assert ran.status == 0, ran
    (values,) = json.loads((tmp_path / "v" / NAME).read_text()).values()
    assert values["BLOCK_SIZE_M"] == next(iter(configs)).BLOCK_SIZE_M


@pytest.mark.parametrize(("limit", "number"), [(Limit(binaries=1), None), (Limit(), 1)])
def test_a_limit_holds(limit: Limit, number: int | None, tmp_path: Path) -> None:
    """Where --budget or a number of kernels limits the search, nothing is measured besides."""
    with tuner(tmp_path, limit, number=number) as tunes:
        winner = tunes.tune(BLOCKS).winner
    assert winner is not None
    assert winner.peer_us == ()


def test_what_was_measured_anyway_counts() -> None:
    """A search that has tried enough of them measures none besides; formats that no other program has have none."""
    problem = experts("gate_up")
    configs = [Config("tiled", m, n, 64, 8, 1, 4, 3) for m in (16, 32, 64) for n in (32, 64, 128)]
    assert len(extra_configs(problem, configs, GPU, [])) == AT_LEAST
    measured = [config.name for config in configs[: AT_LEAST - 1]]
    (one,) = extra_configs(problem, configs, GPU, measured)
    assert one.name not in measured
    assert extra_configs(problem, configs, GPU, [*measured, one.name]) == []
    assert extra_configs(GemmProblem(64, 512, 512), configs, GPU, []) == []


def test_amd_has_aiter() -> None:
    """AITER's Triton kernels run plain products on AMD's GPUs, with SPLIT_K."""
    plain, split = Config("tiled", 64, 64, 64, 8, 1, 4, 2), Config("tiled", 64, 64, 64, 8, 2, 4, 2)
    assert runnable_by_peers(GemmProblem(64, 512, 512), [plain, split], "amd") == [plain, split]
    assert runnable_by_peers(GemmProblem(64, 512, 512), [plain, split], "nvidia") == []
    assert runnable_by_peers(BLOCKS, [plain, split], "nvidia") == [plain]


def test_wrong_ones_are_not_kept() -> None:
    """Nor those without a time; the fastest comes first."""
    fast, slow, wrong, lost = (Config("tiled", 16, 32, 128, 1, 1, 4, stages) for stages in (2, 3, 4, 5))
    times = {slow: 7.0, fast: 5.0, wrong: 1.0}
    screened = [Measurement(c.name, Outcome.MEASURED, "cudagraph", "screen", us) for c, us in times.items()]
    screened.append(Measurement(lost.name, Outcome.CRASHED, "cudagraph"))
    ends = {wrong.name: Measurement(wrong.name, Outcome.WRONG, "cudagraph")}
    assert kept_times(BLOCKS, screened, ends, GPU) == ((fast.name, 5.0), (slow.name, 7.0))
