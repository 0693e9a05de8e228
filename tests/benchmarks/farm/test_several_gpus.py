"""What is read from the command's output, and the scaling."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from test_journal import PROBLEM, START, opened

from benchmarks.farm import several_gpus
from benchmarks.farm.several_gpus import Run
from genkern.formats.gemm_entry import GemmDefaults
from genkern.formats.sizes import read_sizes
from genkern.gemm.problem import GemmProblem
from genkern.journal.facts import Begun, Ended

OUTPUT = """note: something
16x4096x4096: 3.14 us, 170.9 TFLOPS, 1.020x vendor (cudagraph), gpu check ok: tiled_BM16
32x4096x4096: no winner: no candidate could be measured (--profile_file says why)
64x4096x4096: 3.50 us, 600.0 TFLOPS (cudagraph): tiled_BM64

candidates: measured 1,024
binaries: 1,200 compiled, 3 from the cache, 0 refused
"""


def test_reads_sizes_and_what_was_compiled() -> None:
    """A size counts when it has a winner; the number compiled is read with its commas."""
    assert several_gpus.read_run(2, OUTPUT.splitlines(), 30.0, 1) == Run(2, 2, 30.0, 1200, 1)
    assert several_gpus.read_run(1, [], 30.0, 2).compiled is None


def test_scaling_is_of_the_first_run() -> None:
    """Sizes per minute and how many times those of the first run that tuned any: with the start, and without."""
    text = several_gpus.report([Run(1, 6, 60.0, 0, 0, 6.0), Run(2, 6, 33.0, 0, 0, 6.0, 5.4)])
    assert "| 1 | 6 | 60.0 | 6.00 | 1.00x | 6.0 | 6.67 | 1.00x | 0% | 0 | 0 |" in text
    assert "| 2 | 6 | 33.0 | 10.91 | 1.82x | 6.0 | 13.33 | 2.00x | 10% | 0 | 0 |" in text
    assert "| 1 | 0 | 5.0 | 0.00 | - | 0.0 | 0.00 | - | 0% | ? | 2 |" in several_gpus.report([Run(1, 0, 5.0, None, 2)])


def test_few_sizes_are_said_to_be_few() -> None:
    """The last sizes of a run leave GPUs idle, which a short list shows more than a long one."""
    assert "with 2, 4 GPUs" in several_gpus.report([Run(gpus, 15, 60.0, 0, 0) for gpus in (1, 2, 4)])
    assert "Fewer" not in several_gpus.report([Run(gpus, 32, 60.0, 0, 0) for gpus in (1, 2, 4)])


def test_start_and_idle_time() -> None:
    """From the first size on; a GPU is idle after its last one, and one that had none was idle all the time."""
    events = [(5.0, "began", 0), (5.5, "began", 1), (9.0, "ended", 1), (9.1, "began", 1), (12.0, "ended", 0)]
    events.append((15.0, "ended", 1))
    assert several_gpus.start_and_idle_s(events, 2) == (5.0, 3.0)
    assert several_gpus.start_and_idle_s(events, 3) == (5.0, 13.0)
    assert several_gpus.start_and_idle_s(events[:1], 2) == (0.0, 0.0)


def test_moments_are_read_from_a_growing_journal(tmp_path: Path) -> None:
    """Of a run's facts, those that say when a size was begun and ended, and on which device."""
    path, over = tmp_path / "r.yaml.journal", threading.Event()
    journal = opened(path)
    journal.started(START)
    journal.began(PROBLEM, Begun(672, 1, 1.5))
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(several_gpus.follow, path, tmp_path / "none", time.monotonic(), over)
        journal.ended(PROBLEM, Ended({}, ""))
        over.set()
        events = following.result(10)
    assert [event[1:] for event in events] == [("began", 1), ("ended", 1)]


def test_siblings_are_different_sizes_of_the_same_work() -> None:
    """So many of each size, the first of them the size itself, which differ in N alone and by little."""
    sizes = GemmProblem(64, 4096, 512), GemmProblem(64, 1280, 8192, bias=True)
    assert several_gpus.siblings(sizes, 1) == list(sizes)
    four = several_gpus.siblings(sizes, 4)
    assert len(set(four)) == 8
    assert [p.N for p in four] == [4096, 4224, 4352, 4480, 1280, 1408, 1536, 1664]
    assert {replace(p, N=1) for p in four} == {replace(p, N=1) for p in sizes}


def test_size_list_can_be_read(tmp_path: Path) -> None:
    """genkern reads the very problems from the list that is made for it, whatever their types and layout."""
    problems = (
        GemmProblem(16, 32, 64),
        GemmProblem(16, 32, 64, "a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16", True, False, True),
        GemmProblem(16, 32, 64, dtype_a="fp16", dtype_b="fp16", dtype_c="fp32", row_major_a=False, row_major_b=True),
        GemmProblem(16, 32, 64, activation="gelu"),
    )
    path = tmp_path / "sizes.yaml"
    path.write_text(several_gpus.size_list(problems))
    assert read_sizes(str(path), GemmDefaults(), "sm_90").problems == problems
