"""Host time of one eager call: dispatched, by the C extension and through ctypes, beside torch.mm and F.linear.

    python -m benchmarks.serving.host_time BUNDLE [-o DATA.jsonl] [--limit_s 120]

For each form of kernels in the bundle and each M of 1, 16, 64 and 4096 that it won, the winner that is fastest on the
device; for one that won at none of these, the one nearest to them; and sizes that the library serves at these M. A
time is that of a Python loop of calls, from a device that has nothing to do, so few that its queue never fills; loops
of all contenders take turns, and medians are compared. No gradients (torch.no_grad). The parts of a call are timed
alike: what finds who serves it, what serves it (from tensors to the output: of the library's calls, PyTorch's own
function), and of that the output's memory.
"""

from __future__ import annotations

import gc
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from benchmarks.common.figures import table
from benchmarks.common.kept import Kept
from benchmarks.common.rounds import Limit, alternate
from benchmarks.common.workbench import errors_end, said
from benchmarks.serving.dispatching import (
    Place,
    Rotated,
    argument_parser,
    dispatcher,
    gpu_place,
    is_plain,
    key_lines,
    launched_by,
    native_available,
)
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import Bundle, read_bundle
from genkern.timing.libraries import stored_algorithm

MS = (1, 16, 64, 4096)
# What serves where no winner of genkern's does: PyTorch's call, or an algorithm of cuBLASLt's that won.
LIBRARY, LT_ALGORITHM = LIBRARIES = ("the library", "cuBLASLt's algorithm")
NATIVE, CTYPES, MM, MM_OUT, LINEAR = "genkern", "through ctypes", "torch.mm", "torch.mm(out=)", "F.linear"
LOOKUP, SERVED, MEMORY = PARTS = ("lookup", "served", "memory of it")
# The device's queue takes 1,024 launches; a call has up to three.
MOST_CALLS, LEAST_CALLS, MOST_DEVICE_US = 200, 20, 20_000.0


@dataclass(frozen=True)
class Case:
    """One size, and what the kernels that serve it are called after, or one of LIBRARIES."""

    kernels: str
    problem: GemmProblem
    device_us: float


@dataclass(frozen=True)
class Timed:
    """Microseconds of one call of a case by contender, and of the parts of a call."""

    kernels: str
    m: int
    n: int
    k: int
    times_us: Mapping[str, float]

    @property
    def ratio(self) -> float:
        """A dispatched call's host time over torch.mm's."""
        return self.times_us[NATIVE] / self.times_us[MM]


def cases(winners: Iterable[Result], ms: Sequence[int] = MS) -> list[Case]:
    """Of each form of kernels, and of the library, the fastest size at each M of `ms`, or at the M nearest to one.

    Each has come once before any comes twice, so that a limit leaves none out.
    """
    best: dict[tuple[str, int], Case] = {}
    for winner in winners:
        if not is_plain(winner.problem):
            continue
        of_library = LT_ALGORITHM if stored_algorithm(winner.vendor) else LIBRARY
        kernels = traits_of(Config.parse(winner.config_name)).stem if winner.choice == "config" else of_library
        device_us = winner.duration_us if winner.choice == "config" else winner.vendor_us
        case = Case(kernels, winner.problem, device_us or math.inf)
        known = best.get((kernels, case.problem.M))
        if known is None or case.device_us < known.device_us:
            best[kernels, case.problem.M] = case
    found: list[list[Case]] = []
    for kernels in sorted({kernels for kernels, _ in best}):
        tuned = sorted(m for name, m in best if name == kernels)
        wanted = [m for m in tuned if m in ms] or [
            min(tuned, key=lambda m: min(abs(math.log(m / near)) for near in ms))
        ]
        found.append([best[kernels, m] for m in wanted])
    return [case for turn in itertools.zip_longest(*found) for case in turn if case is not None]


def calls_of(device_us: float) -> int:
    """How many calls a loop has: no more than the device can have waiting, and work for some 20 ms at most."""
    return max(LEAST_CALLS, min(MOST_CALLS, int(MOST_DEVICE_US / max(device_us, 1.0))))


def loop_sampler(call: Callable[[], object], count: int, synchronize: Callable[[], None]) -> Callable[[], float]:
    """Microseconds of the host for one of `count` calls in a row."""

    def sample() -> float:
        turns = itertools.repeat(None, count)
        synchronize()
        started_s = time.perf_counter()
        for _ in turns:
            call()
        taken_s = time.perf_counter() - started_s
        synchronize()
        return taken_s * 1e6 / count

    return sample


def contenders(place: Place, bundle: Bundle, case: Case) -> dict[str, Callable[[], object]]:
    """A function for each contender and part, each of which has been called."""
    rotated = Rotated(case.problem, place, rotating_mib=0)
    x, weight = rotated.x, rotated.weights[0]
    transposed, out = weight.mT, x.new_empty((case.problem.M, case.problem.N))
    mm, linear = torch.mm, torch.nn.functional.linear
    found: dict[str, Callable[[], object]] = {}
    for name, native in ((NATIVE, True), (CTYPES, False)):
        if native and not native_available():
            continue
        gemm = dispatcher(place.context([bundle]))
        with launched_by(native):
            gemm(x, weight)
        found[name] = lambda gemm=gemm: gemm(x, weight)  # type: ignore[misc]
    found |= {
        MM: lambda: mm(x, transposed),
        MM_OUT: lambda: mm(x, transposed, out=out),
        LINEAR: lambda: linear(x, weight),
    }
    found |= parts(place, bundle, case, x, weight)
    for call in found.values():
        call()
    return found


def parts(
    place: Place, bundle: Bundle, case: Case, x: torch.Tensor, weight: torch.Tensor
) -> dict[str, Callable[[], object]]:
    """The parts of a dispatched call."""
    gemm, problem = dispatcher(place.context([bundle])), case.problem
    gemm(x, weight)
    (served,) = {call for _, call in gemm._known.values()}
    # Whoever serves the call: here nobody does, so that what is left is how it is found.
    gemm._known = {each: (guard, lambda *_: None) for each, (guard, _) in gemm._known.items()}
    found: dict[str, Callable[[], object]] = {LOOKUP: lambda: gemm(x, weight), SERVED: lambda: served(x, weight)}
    if case.kernels != LIBRARY:
        shape, strides, empty = (problem.M, problem.N), (problem.N, 1), place.gpu.empty_here or place.gpu.empty
        found[MEMORY] = lambda: empty(shape, strides, x.dtype)
    return found


def timed(place: Place, bundle: Bundle, case: Case, rounds: int) -> Timed:
    """One case. Python collects no garbage meanwhile."""
    count = calls_of(case.device_us)
    calls = contenders(place, bundle, case)
    samplers = {name: loop_sampler(call, count, place.synchronize) for name, call in calls.items()}
    gc.disable()
    try:
        times = alternate(samplers, rounds)
    finally:
        gc.enable()
    problem = case.problem
    return Timed(case.kernels, problem.M, problem.N, problem.K, times)


def report(found: Sequence[Timed]) -> str:
    """Markdown: a line a case; then the keys."""
    names = (NATIVE, CTYPES, MM, MM_OUT, LINEAR, *PARTS)
    rows = []
    for each in found:
        cells = [f"{each.times_us[name]:.2f}" if name in each.times_us else "-" for name in names]
        ratio = f"{each.ratio:.2f}" if NATIVE in each.times_us else "-"
        rows.append((each.kernels, f"{each.m}x{each.n}x{each.k}", *cells, ratio))
    measured = [each for each in found if NATIVE in each.times_us]
    figures = {
        "host_over_torch_mm_worst": _worst(measured, lambda each: each.kernels not in LIBRARIES),
        "host_over_torch_mm_algorithm_worst": _worst(measured, lambda each: each.kernels == LT_ALGORITHM),
        # Below one it cannot be: it is the same function, after it was found.
        "host_over_linear_library_worst": _worst(measured, lambda each: each.kernels == LIBRARY, LINEAR),
        "host_over_torch_mm_library_worst": _worst(measured, lambda each: each.kernels == LIBRARY),
    }
    head = ("served by", "size", *names, f"{NATIVE} / {MM}")
    return f"us of the host for one call\n\n{table(head, rows)}\n\n{key_lines(figures)}"


def _worst(measured: Sequence[Timed], counts: Callable[[Timed], bool], over: str = MM) -> float | None:
    return max((each.times_us[NATIVE] / each.times_us[over] for each in measured if counts(each)), default=None)


def run(place: Place, argv: Sequence[str]) -> str:
    """What is printed. Raises ResultsError."""
    arguments = argument_parser(__doc__).parse_args(argv)
    limit, kept = Limit(arguments.limit_s), Kept(arguments.output)
    bundle, setting = read_bundle(arguments.bundle), place.setting(__file__, arguments.bundle)
    wanted = cases(winner for winner in bundle.winners if place.gpu.identity.has(winner))
    known = {case: kept.of(f"{setting} {case.problem.name}") for case in wanted}
    with torch.no_grad():
        for case in limit.until([case for case, entry in known.items() if entry is None]):
            with said(f"{case.kernels} {case.problem.size}"):
                found = timed(place, bundle, case, arguments.rounds)
                known[case] = kept.add(f"{setting} {case.problem.name}", asdict(found))
            place.release()
    entries = [Timed(**entry) for entry in known.values() if entry is not None]
    built = "" if native_available() else "the C extension is not built: python3 setup.py build_ext --inplace\n"
    text = report(entries)
    return f"{built}{text}\n{len(entries)} of {len(wanted)} sizes on {place}"


def main() -> None:
    with errors_end():
        print(run(gpu_place(), sys.argv[1:]))


if __name__ == "__main__":
    main()
