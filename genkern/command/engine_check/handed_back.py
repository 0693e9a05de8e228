"""Rows of a bundle that are handed back to the library for one M: the engine was faster with its own product."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import VENDOR_WINS
from genkern.ops.accumulate import as_fast, as_full, multiplies_float8, on_arch
from genkern.runtime.packed import Contents, PackedWinner, part_of


def handed_back(contents: Contents, problems: Iterable[GemmProblem], m: int) -> Contents:
    """Returns the contents with a row for `m` of each problem that says that the library won, and has no kernels.

    A row for that M is replaced; without one, the nearest row of the problem is copied for it. Problems are given
    with any M. Rows that are batch invariant stay: they serve a mode in which the library may not.
    """
    alike = [each for problem in problems for each in _alike(problem)]
    wanted = {
        (replace(on_arch(each, arch), M=1), arch) for each in alike for arch in {row.arch for row in contents.winners}
    }
    winners: list[PackedWinner] = []
    found: dict[object, list[PackedWinner]] = {}
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
    """Returns the problem, and of fp8 the one whose rows may serve it: with full sums for fast ones."""
    return [problem, as_full(problem), as_fast(problem)] if multiplies_float8(problem) else [problem]


def _with_library(rows: Sequence[PackedWinner], m: int) -> list[PackedWinner]:
    nearest = min(rows, key=lambda row: abs(row.problem.M - m))
    marked = replace(nearest, problem=replace(nearest.problem, M=m), choice=VENDOR_WINS, vendor="", calls=())
    if m != nearest.problem.M:
        # Its times are of another M.
        marked = replace(marked, time_us=None, library_us=None, torch_us=None)
    return sorted([*(row for row in rows if m != row.problem.M), marked], key=lambda row: row.problem.M)
