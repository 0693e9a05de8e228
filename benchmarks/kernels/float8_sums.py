"""Winners of fp8 with full sums and with fast ones, each beside the library's calls that sum alike: times and errors.

    python -m genkern -i benchmarks/kernels/float8_sums_sizes.yaml -o RESULTS.yaml --compare
    python -m benchmarks.kernels.float8_sums RESULTS.yaml [--seconds S] [-o FULL.jsonl]

torch is torch._scaled_mm with use_fast_accum as the row says, cuBLASLt its best algorithm with FAST_ACCUM alike, as the
run that tuned found it. All are timed in the same rounds by genkern's finals, weights cold in rotation. An error is the
norm of what C is off by over that of the product in float32, of normal deviates: of bf16 rounded once, 1.67e-3.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.common.figures import DataFile, figure, table
from benchmarks.common.workbench import (
    Bench,
    argument_parser,
    rows_of,
    said,
    until,
    versions_line,
    workbench,
)
from genkern.formats.tuned_row import TunedRow
from genkern.ops.accumulate import FAST, FULL, is_full
from genkern.profiling.algorithms import Algorithms
from genkern.profiling.finals import Rounds
from genkern.profiling.loaded_gemm import Call
from genkern.timing.libraries import CUBLASLT, VENDOR, library_of

BEST = "cuBLASLt"
LIBRARIES = (VENDOR, BEST)
ROUNDS = Rounds(least=15, most=40, cap_s=1.0, seed=1)


@dataclass(frozen=True)
class Race:
    """One size with sums of one kind: microseconds and errors by contender; the winner's by the name of its config."""

    size: str
    scales: str
    sums: str
    config: str
    times_us: Mapping[str, float]
    errors: Mapping[str, float]

    def over(self) -> float | None:
        """Time of the library's better call over the winner's; None where none of both ran."""
        found = [self.times_us[name] for name in LIBRARIES if name in self.times_us]
        return min(found) / self.times_us[self.config] if found and self.config in self.times_us else None


def errors_of(bench: Bench, calls: Mapping[str, Call]) -> dict[str, float]:
    """How far each is from the product in float32, relative to its norm."""
    import torch

    c, expected = bench.gemm.operands["c"], bench.gemm.module.reference(bench.gemm.operands_of(0)).double()
    found = {}
    for name, call in calls.items():
        c.fill_(float("nan"))
        call(0)
        torch.cuda.synchronize()
        found[name] = ((c.double() - expected).norm() / expected.norm()).item()
    return found


def race(bench: Bench, row: TunedRow) -> Race:
    """The row's winner, PyTorch's call and the best algorithm in the same shuffled rounds."""
    assert row.config is not None
    problem, winner = row.problem, row.config.name
    calls = bench.calls()
    if library_of(row.vendor) == CUBLASLT:
        with said(f"{problem.size} {BEST}"):
            calls[BEST] = Algorithms(bench.gemm).call(row.vendor)
    right = bench.agreeing(calls)
    scales = str(dict(problem.own).get("scales", "per_tensor"))
    times_us, errors = bench.times_us(right, ROUNDS), errors_of(bench, right)
    return Race(problem.size, scales, FULL if is_full(problem) else FAST, winner, times_us, errors)


def report(races: Sequence[Race]) -> str:
    """Markdown: a line for each size and kind of sums, then by key the library's time over genkern's, and errors."""
    rows = []
    for item in races:
        names = (item.config, *LIBRARIES)
        times = [f"{item.times_us[name]:.2f}" if name in item.times_us else "" for name in names]
        errors = [f"{item.errors[name]:.2e}" if name in item.errors else "" for name in names[:2]]
        ratio = item.over()
        rows.append((item.size, item.scales, item.sums, *times, f"{ratio:.3f}" if ratio else "", *errors, item.config))
    head = ("size", "scales", "sums", "genkern us", "torch us", f"{BEST} us", "library / genkern")
    lines = [table((*head, "genkern's error", "torch's error", "config"), rows), ""]
    for sums in (FULL, FAST):
        of_kind = [item for item in races if item.sums == sums]
        ratios = [ratio for item in of_kind if (ratio := item.over())]
        lines += figure(f"a8w8_{sums}_over_lt", ratios, least=f"a8w8_{sums}_least")
        for key, contender in ((f"a8w8_{sums}_error", ""), (f"a8w8_{sums}_error_of_torch", VENDOR)):
            found = [item.errors[name] for item in of_kind if (name := contender or item.config) in item.errors]
            lines += [f"{key}: {max(found):.3g} at most"] if found else []
    return "\n".join(lines)


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    races: list[Race] = []
    data = DataFile(arguments.output)
    with workbench(arguments) as bench_of:
        rows = [row for row in rows_of(arguments) if row.config is not None]
        for row in until(arguments.seconds, rows):
            assert row.config is not None
            with bench_of.open(row.problem, [row.config]) as bench, said(row.problem.name):
                races.append(race(bench, row))
                data.add(asdict(races[-1]))
        print(report(races))
        print(versions_line(bench_of))


if __name__ == "__main__":
    sys.exit(main())
