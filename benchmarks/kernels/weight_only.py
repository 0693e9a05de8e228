"""genkern's weight-only winners against bf16 torch.mm and Humming, in the same rounds.

    python -m benchmarks.kernels.weight_only RESULTS.yaml [--limit N] [--seconds S] [-o FULL.jsonl]

Of each row of a16w4 and a16w8: the winner, torch.mm of the same M, N and K whose weights are the same numbers in bf16,
and Humming (humming_peer.py), which has the same weights in its own layout. Who is not installed, refuses a size or
computes something else has an empty column. All are timed by genkern's finals, weights cold in rotation. Keys that end
in over_humming are of M up to 16, where reading the weights is all the work.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.common.figures import DataFile, figure, table
from benchmarks.common.workbench import Bench, argument_parser, rows_of, said, until, versions_line, workbench
from benchmarks.kernels.humming_peer import humming_call
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.ops.a16w4.library import dequantised
from genkern.profiling.finals import Rounds
from genkern.profiling.loaded_gemm import Call, rotating_copies

OURS, TORCH, HUMMING = "genkern", "torch.mm", "Humming"
ROUNDS = Rounds(least=15, most=60, cap_s=1.0, seed=1)
FORMATS = "a16w4", "a16w8"
MOST_SKINNY_M = 16


@dataclass(frozen=True)
class Race:
    """One size: times in microseconds by contender; `weights` says what they are of."""

    op: str
    weights: str
    size: str
    m: int
    config: str
    times_us: Mapping[str, float]

    def over(self, other: str) -> float | None:
        """Another's time over genkern's; None where one of both did not run."""
        times = self.times_us
        return times[other] / times[OURS] if {other, OURS} <= set(times) else None


def weights_said(problem: GemmProblem) -> str:
    """The weights of a problem as the table has them: "int4, 128", "mxfp4", "fp8e4m3fn"."""
    own = dict(problem.own)
    if problem.op != "a16w4":
        return problem.dtype_b
    return f"{own.get('weights', 'int4')}, {own.get('group', 32)}"


def wide_weights(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """The numbers that the weights stand for, in A's type [N, K]."""
    b, scale, a = operands["b"], operands["scale_b"], operands["a"]
    wide = dequantised(problem, b, scale) if problem.op == "a16w4" else b.mT.float() * scale.float().mT
    return wide.to(a.dtype)


def torch_call(builder: Bench) -> Call:
    """torch.mm into C, of as many copies of the wide weights as are cold in rotation."""
    import torch

    gemm = builder.gemm
    wide = wide_weights(builder.problem, gemm.operands)
    count = rotating_copies(wide.numel() * wide.element_size(), gemm.session.budget.rotating_mb)
    own = [wide, *(wide.clone() for _ in range(count - 1))]
    a, c = gemm.operands["a"], gemm.operands["c"]
    return lambda copy: torch.mm(a, own[copy % len(own)].mT, out=c)


def race(builder: Bench, winner: Config) -> Race:
    """All that compute the same, in the same shuffled rounds."""
    problem = builder.problem
    made = builder.calls(library=False)
    calls = {OURS: made[winner.name], TORCH: torch_call(builder)}
    with said(f"{problem.name} {HUMMING}"):
        calls[HUMMING] = humming_call(builder)
    times = builder.times_us(builder.agreeing(calls), ROUNDS)
    return Race(problem.op, weights_said(problem), problem.size, problem.M, winner.name, times)


def report(races: Sequence[Race]) -> str:
    """Markdown: a line per size, then what others take over genkern's time, by key."""
    rows = []
    for item in races:
        cells = [f"{item.times_us[name]:.2f}" if name in item.times_us else "" for name in (OURS, TORCH, HUMMING)]
        ratios = [f"{ratio:.3f}" if (ratio := item.over(name)) else "" for name in (TORCH, HUMMING)]
        rows.append((f"{item.op} {item.weights}", item.size, *cells, *ratios, item.config))
    head = ("weights", "size", *(f"{name} us" for name in (OURS, TORCH, HUMMING)))
    lines = [table((*head, f"{TORCH} / genkern", f"{HUMMING} / genkern", "config"), rows), ""]
    for op in FORMATS:
        here = [item for item in races if item.op == op]
        skinny = [item for item in here if item.m <= MOST_SKINNY_M]
        lines += figure(f"{op}_over_bf16", [ratio for item in here if (ratio := item.over(TORCH))])
        lines += figure(f"{op}_over_humming", [ratio for item in skinny if (ratio := item.over(HUMMING))])
    return "\n".join(lines)


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    races: list[Race] = []
    data = DataFile(arguments.output)
    with workbench(arguments) as bench_of:
        rows = [row for row in rows_of(arguments) if row.problem.op in FORMATS]
        for row in until(arguments.seconds, rows):
            if row.config is None:
                continue
            with bench_of.open(row.problem, [row.config]) as builder, said(row.problem.name):
                races.append(race(builder, row.config))
                data.add(asdict(races[-1]))
        print(report(races))
        print(versions_line(bench_of))


if __name__ == "__main__":
    sys.exit(main())
