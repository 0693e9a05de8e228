"""genkern's block-scaled fp8 winners against DeepGEMM and cuBLASLt (torch._scaled_mm), in the same rounds.

    python benchmarks/block_scaled.py RESULTS.yaml [--limit N] [-o FULL.jsonl]

DeepGEMM is the wheel sgl-deep-gemm with apache-tvm-ffi, whose kernels nvcc compiles on first use; where it is not
installed, or where a library refuses a size, its column is empty. Scales of A are laid out beforehand for everyone:
what an engine does once a token is not in anyone's time. All are timed by genkern's finals, weights cold in rotation.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from figures import DataFile, geomean, table
from workbench import Bench, argument_parser, rows_of, said, until, versions_line, workbench

from genkern.gemm.session import VENDOR
from genkern.gemm.statistics import estimate
from genkern.profiling.finals import Rounds
from genkern.profiling.loaded_gemm import Call

PEER = "DeepGEMM"
LEAST_ROUNDS, MOST_ROUNDS, RACE_S = 15, 60, 1.5


@dataclass(frozen=True)
class Race:
    """One size: times in microseconds by contender."""

    size: str
    config: str
    times_us: Mapping[str, float]


def deep_gemm_call(bench: Bench) -> Call:
    """DeepGEMM's product on the same operands and copies of the weights. Raises what the wheel raises."""
    import deep_gemm
    from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor

    gemm = bench.gemm
    scales = get_mn_major_tma_aligned_tensor(gemm.operands["scale_a"].contiguous())
    a, c = gemm.operands["a"], gemm.operands["c"]

    own_of = [gemm.operands_of(copy) for copy in range(gemm.copies)]

    def call(copy: int) -> None:
        own = own_of[copy % gemm.copies]
        deep_gemm.fp8_gemm_nt((a, scales), (own["b"].T, own["scale_b"]), c)

    return call


def agrees(bench: Bench, call: Call) -> bool:
    """Whether a contender computes the same product: by AITER's ratio, since sums are promoted in another order."""
    import torch
    from genkern.profiling.checking.accuracy import error_ratio

    c = bench.gemm.operands["c"]
    c.fill_(float("nan"))
    call(0)
    torch.cuda.synchronize()
    return error_ratio(c, bench.gemm.module.reference(bench.gemm.operands_of(0))) <= 0.01


def race(bench: Bench, winner: str) -> Race:
    """The winner, the library and DeepGEMM in the same shuffled rounds."""
    calls = bench.calls()
    with said(f"{bench.problem.size} {PEER}"):
        call = deep_gemm_call(bench)
        call(0)
        calls[PEER] = call
    calls = {name: call for name, call in calls.items() if agrees(bench, call)}
    finals = bench.race(bench.samplers(calls), Rounds(LEAST_ROUNDS, MOST_ROUNDS, RACE_S, 1))
    times = {name: estimate(samples).median_us for name, samples in finals.samples_us.items() if samples}
    return Race(bench.problem.size, winner, times)


def report(races: Sequence[Race]) -> str:
    """Markdown: a line per size, then the better peer's time over genkern's."""
    rows, ratios = [], []
    for item in races:
        ours = item.times_us[item.config]
        peers = [item.times_us[name] for name in (VENDOR, PEER) if name in item.times_us]
        cells = [f"{item.times_us[name]:.2f}" if name in item.times_us else "" for name in (VENDOR, PEER)]
        if peers:
            ratios.append(min(peers) / ours)
        rows.append((item.size, f"{ours:.2f}", *cells, f"{min(peers) / ours:.3f}" if peers else "", item.config))
    head = ("size", "genkern us", "cuBLASLt us", f"{PEER} us", "better peer / genkern", "config")
    lines = [table(head, rows)]
    if ratios:
        lines += ["", f"geomean {geomean(ratios):.3f}, least {min(ratios):.3f} over {len(ratios)} sizes"]
    return "\n".join(lines)


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    races: list[Race] = []
    data = DataFile(arguments.output)
    with workbench(arguments) as bench_of:
        for row in until(arguments.seconds, rows_of(arguments)):
            with bench_of.open(row.problem, [row.config]) as bench, said(row.problem.size):
                races.append(race(bench, row.config.name))
                data.add(asdict(races[-1]))
        print(report(races))
        print(versions_line(bench_of))


if __name__ == "__main__":
    sys.exit(main())
