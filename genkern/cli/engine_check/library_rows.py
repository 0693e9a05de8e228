"""Changes a bundle so that the library serves some rows: the engine was faster with its own kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import VENDOR_WINS
from genkern.ops.accumulate import as_fast, as_full, multiplies_float8, on_arch
from genkern.result.result import Result
from genkern.runtime.bundles.records import Contents, part_of


def handed_back(contents: Contents, problems: Iterable[GemmProblem], m: int) -> Contents:
    """Return the contents in which the library, instead of a kernel, serves M = `m` of each problem.

    The row for that M is replaced by a row of the library. If there is none, a copy of the row with the nearest M is
    added, changed to the library and without times. The M of `problems` does not matter. Batch-invariant rows stay,
    since the library may not serve that mode.
    """
    alike = [each for problem in problems for each in _alike(problem)]
    wanted = {
        (replace(on_arch(each, arch), M=1), arch) for each in alike for arch in {row.arch for row in contents.winners}
    }
    winners: list[Result] = []
    found: dict[object, list[Result]] = {}
    for winner in contents.winners:
        layer = replace(winner.problem, M=1)
        if (layer, winner.arch) not in wanted or winner.batch_invariant:
            winners.append(winner)
        else:
            found.setdefault((layer, winner.arch, winner.device, winner.compute_units), []).append(winner)
    for rows in found.values():
        winners += _with_library(rows, m)
    return part_of(contents, tuple(winners))


def _alike(problem: GemmProblem) -> Sequence[GemmProblem]:
    """Return the problem; for fp8 also its variants with full and with fast accumulation, whose rows may serve it."""
    return [problem, as_full(problem), as_fast(problem)] if multiplies_float8(problem) else [problem]


def _with_library(rows: Sequence[Result], m: int) -> list[Result]:
    nearest = min(rows, key=lambda row: abs(row.problem.M - m))
    marked = replace(nearest, problem=replace(nearest.problem, M=m), choice=VENDOR_WINS, vendor="").with_calls(())
    if m != nearest.problem.M:
        # The times of the nearest row are of another M.
        marked = replace(marked, duration_us=None, vendor_us=None, torch_us=None)
    return sorted([*(row for row in rows if m != row.problem.M), marked], key=lambda row: row.problem.M)
