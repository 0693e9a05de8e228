"""What it costs that a row has the same bits in every batch, and whether it has: calls of a bundle of winners of one
order of sums, in CUDA graphs, in the same rounds as others, and rows compared to the bit.

    G="python -m genkern" S=benchmarks/serving/batch_invariant_sizes.yaml
    cat results/nvidia_h200/{llama-3.1-8b_tp1,qwen3-32b_tp4,deepseek-v3_tp8}_bf16.yaml > any.yaml  # or an empty file
    $G -i $S -o any.yaml && cp any.yaml one.yaml && $G -i $S -o one.yaml --batch_invariant
    $G pack any.yaml -o any.genkern && $G pack one.yaml -o one.genkern
    python -m benchmarks.serving.batch_invariant one.genkern --before any.genkern --sizes $S --ops FOLDER

FOLDER holds the package batch_invariant_ops (github.com/thinking-machines-lab/batch_invariant_ops). Weights rotate
through 400 MiB. `--before` has the winners in any order of sums, which the loss is against; it may be left out.

Of every N and K a pool of rows is multiplied in one call; then its rows come in batches of the M that are tuned, and of
others by chance, in an order by chance, and each must have the bits of that call. What serves an M that nobody tuned is
the nearest winner's kernel, where that takes any M. The keys are those of results/figures.yaml.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from benchmarks.common.figures import DataFile, geomean, spread_order, table
from benchmarks.common.rounds import Limit, alternate
from benchmarks.common.workbench import errors_end, said
from benchmarks.serving.dispatching import Place, Rotated, argument_parser, dispatcher, distinct, gpu_place, key_lines
from genkern.files.sizes import GemmDefaults, read_sizes
from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundles.bundle import Bundle, read_bundle
from genkern.runtime.bundles.untuned_m import nearest_winner
from genkern.runtime.calls.context import Context
from genkern.tuning.invariant.group import groups_of

INVARIANT, BEFORE, TORCH, OPS = "one order", "any order", "torch.mm", "batch_invariant_ops"
# Of a pool: the largest M that rows are compared in.
POOL = 4096


@dataclass(frozen=True)
class Timed:
    """One size: medians in microseconds by contender."""

    m: int
    n: int
    k: int
    times_us: Mapping[str, float]

    def over(self, name: str) -> float | None:
        """Another's time over that of the call in one order of sums; None where it was not timed."""
        return self.times_us[name] / self.times_us[INVARIANT] if name in self.times_us else None


@dataclass(frozen=True)
class Compared:
    """Rows of one N and K: how many were compared and how many had other bits, in batches of so many untuned M;
    `unserved` are M that no kernel of the order takes, `orders` what calls said of theirs."""

    n: int
    k: int
    rows: int
    differing: int
    untuned: int
    unserved: tuple[int, ...] = ()
    orders: tuple[str, ...] = ()
    first: str = field(default="")


def times_of(problem: GemmProblem, place: Place, calls: Mapping[str, Callable[..., Any]], rounds: int) -> Timed:
    """One size, each of `calls` as a function of x [M, K] and weight [N, K]; one that fails is left out, and said."""
    rotated = Rotated(problem, place)
    bound = {TORCH: rotated.by_torch()}
    for name, function in calls.items():
        call = rotated.by(function)
        with said(f"{problem.size} {name}"):
            call(0)
            bound[name] = call
    times = alternate(rotated.samplers(bound), rounds)
    return Timed(problem.M, problem.N, problem.K, times)


def batches(tuned: Sequence[int], untuned: int, rows: int, seed: int) -> Iterator[int]:
    """Values of M: each tuned one and so many others by chance, then more of both until so many rows are had."""
    draw = random.Random(seed)
    others = [draw.randrange(1, POOL + 1) for _ in range(untuned)]
    had = 0
    for m in [*tuned, *others]:
        had += m
        yield m
    while had < rows:
        m = draw.choice([*tuned, *others]) if tuned or others else POOL
        had += m
        yield m


def compared(
    multiply: Callable[[Any, Any], Any],
    serves: Callable[[int], str | None],
    group: Sequence[GemmProblem],
    device: str,
    *,
    untuned: int,
    rows: int,
    limit: Limit,
    seed: int = 0,
) -> Compared:
    """Rows of one N and K, whose tuned sizes are `group`. `serves` says in which order calls of an M add up K, None
    where no kernel of genkern's serves it."""
    problem = group[0]
    generator = torch.Generator(device).manual_seed(seed)
    normal = [
        torch.randn(shape, device=device, generator=generator) for shape in ((POOL, problem.K), (problem.N, problem.K))
    ]
    dtype = getattr(torch, {"bf16": "bfloat16", "fp16": "float16"}[problem.dtype_a])
    x, weight = (each.to(dtype) for each in normal)
    expected = multiply(x, weight)
    tuned = [each.M for each in group]
    done = differing = 0
    first, unserved, orders, seen = "", set(), set(), set()
    for m in batches(tuned, untuned, rows, seed):
        if limit.is_over:
            break
        order = serves(m)
        if order is None:
            unserved.add(m)
            continue
        orders.add(order)
        places = torch.randperm(POOL, device=device, generator=generator)[:m]
        other = (multiply(x[places], weight) != expected[places]).any(1)
        count = int(other.sum())
        if count and not first:
            first = f"M = {m} ({order}): {count} rows of {m}"
        done, differing = done + m, differing + count
        seen |= {m} - set(tuned)
    return Compared(
        problem.N, problem.K, done, differing, len(seen), tuple(sorted(unserved)), tuple(sorted(orders)), first
    )


def server(bundle: Bundle, place: Place) -> tuple[Context, Callable[..., Any]]:
    """What serves calls by the winners of a bundle, also those of an M that nobody tuned, and the calls."""
    context = place.context([bundle], nearest_winner)
    return context, dispatcher(context)


def order_served(context: Context, place: Place, problem: GemmProblem, m: int) -> str | None:
    """The order of sums of what serves a problem with this M; None where the library's own choice does."""
    choice = context.find(place.gpu, replace(problem, M=m))
    if choice.call is not None:
        return choice.call.sums
    return "the library's algorithm" if choice.algorithm else None


def figures(times: Sequence[Timed], rows: Sequence[Compared]) -> dict[str, float | None]:
    """The figures by their keys; None of what was not measured."""
    over_torch = [ratio for each in times if (ratio := each.over(TORCH)) is not None]
    over_ops = [ratio for each in times if (ratio := each.over(OPS)) is not None]
    over_before = [ratio for each in times if (ratio := each.over(BEFORE)) is not None]
    return {
        "invariant_over_torch": geomean(over_torch) if over_torch else None,
        "invariant_least_over_torch": min(over_torch, default=None),
        "invariant_over_ops": geomean(over_ops) if over_ops else None,
        "invariant_loss": 100 * (1 / geomean(over_before) - 1) if over_before else None,
        "invariant_rows_checked": float(sum(each.rows for each in rows)) if rows else None,
    }


def report(times: Sequence[Timed], rows: Sequence[Compared]) -> str:
    """Markdown: means by M, the rows, what differs; then the keys."""
    by_m: dict[object, list[Timed]] = {}
    for each in sorted(times, key=lambda each: each.m):
        by_m.setdefault(each.m, []).append(each)
    if times:
        by_m["all"] = list(times)
    lines = [
        table(
            ("M", "sizes", *(f"{name} over {INVARIANT}" for name in (TORCH, BEFORE, OPS))),
            [(m, len(group), *(_mean(group, name) for name in (TORCH, BEFORE, OPS))) for m, group in by_m.items()],
        )
    ]
    worst = sorted((each for each in times if each.over(TORCH)), key=lambda each: each.over(TORCH) or 0.0)[:5]
    lines += [f"least over torch.mm: {each.m}x{each.n}x{each.k} {each.over(TORCH):.3f}" for each in worst]
    for found in rows:
        served = f", {len(found.unserved)} M served by no kernel of it" if found.unserved else ""
        served += f"; {found.first}" if found.first else ""
        lines.append(
            f"{found.n}x{found.k}: {found.rows:,} rows, {found.differing:,} with other bits, "
            f"{found.untuned} untuned M, {' and '.join(found.orders)}{served}"
        )
    return "\n".join([*lines, key_lines(figures(times, rows))])


def _mean(group: Sequence[Timed], name: str) -> str:
    ratios = [ratio for each in group if (ratio := each.over(name)) is not None]
    return f"{geomean(ratios):.3f} ({min(ratios):.3f})" if ratios else "-"


def parser() -> argparse.ArgumentParser:
    """The command line's."""
    p = argument_parser(__doc__)
    p.add_argument("--sizes", required=True, metavar="FILE", help="sizes that are timed, and whose N and K rows have")
    p.add_argument("--before", metavar="BUNDLE", help="winners in any order of sums (default: no loss is told)")
    p.add_argument("--ops", metavar="FOLDER", help="where the package batch_invariant_ops lies (default: not timed)")
    p.add_argument("--limit", type=int, metavar="N", help="so many sizes are timed, spread over the file")
    p.add_argument("--rows", type=int, default=10_000_000, help="to compare, of all N and K (default: 10000000)")
    p.add_argument("--untuned", type=int, default=2_000, help="values of M that nobody tuned (default: 2000)")
    p.add_argument("--rows_s", type=float, default=60.0, help="compare no rows after so many seconds (default: 60)")
    return p


def run(place: Place, argv: Sequence[str]) -> tuple[str, int]:
    """What is printed, and the status: 1 where a row has other bits. Raises ResultsError or InputError."""
    arguments = parser().parse_args(argv)
    limit, data = Limit(arguments.limit_s), DataFile(arguments.output)
    problems = distinct(read_sizes(arguments.sizes, GemmDefaults(), None).problems)
    context, multiply = server(read_bundle(arguments.bundle), place)
    calls: dict[str, Callable[..., Any]] = {INVARIANT: multiply}
    if arguments.before:
        calls[BEFORE] = dispatcher(place.context([read_bundle(arguments.before)]))
    if arguments.ops:
        sys.path.insert(0, arguments.ops)
        persistent = importlib.import_module("batch_invariant_ops.batch_invariant_ops").matmul_persistent
        calls[OPS] = lambda x, weight: persistent(x, weight.mT)
    times: list[Timed] = []
    rows: list[Compared] = []
    with torch.no_grad():
        for problem in limit.until(spread_order(problems, arguments.limit)):
            with said(problem.size):
                times.append(times_of(problem, place, calls, arguments.rounds))
                data.add(asdict(times[-1]))
            place.release()
        groups = groups_of(problems)
        how = {"untuned": -(-arguments.untuned // len(groups)), "rows": -(-arguments.rows // len(groups))}
        rows_limit = Limit(arguments.rows_s)
        for group in rows_limit.until(groups):
            with said(f"{group[0].N}x{group[0].K}"):
                serves = partial(order_served, context, place, group[0])
                rows.append(compared(multiply, serves, group, place.device, **how, limit=rows_limit))
                data.add(asdict(rows[-1]))
            place.release()
    return f"{report(times, rows)}\n{len(times)} of {len(problems)} sizes on {place}", int(
        any(r.differing for r in rows)
    )


def main() -> int:
    with errors_end():
        text, status = run(gpu_place(), sys.argv[1:])
    print(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
