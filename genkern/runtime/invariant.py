"""Invariant: the winners of each layer that add up K in one order, and which of them serves an M: the same bits for a
row, whoever shares its batch.

A layer is everything of a problem but M. Who serves follows from bundles alone, never from what this process measures:
ranks with equal bundles choose alike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import CONFIG_WINS
from genkern.ops.accumulate import as_full, is_full, multiplies_float8
from genkern.runtime.bundle import Bundle
from genkern.runtime.packed import PackedWinner
from genkern.runtime.table import Choice, Device, rank
from genkern.runtime.untuned import Option, Rule, by_own_times, nearest_winner
from genkern.timing.libraries import kept_algorithm

# Whether calls must have the same bits whatever the batch: what has no kernels for that is an error, or is told of.
OFF, STRICT, WARN = MODES = ("off", "strict", "warn")
NO_CLASS = (
    "no rows of one order of sums (tune its sizes by `genkern --batch_invariant`, and pack them; or say "
    "GENKERN_BATCH_INVARIANT=warn)"
)


@dataclass(frozen=True)
class Layer:
    """Winners of one problem with several M, all of one order of `sums`, in the order of their M."""

    sums: str
    rows: tuple[tuple[PackedWinner, Bundle], ...]

    def options(self, m: int, only_proved: bool) -> list[Option]:
        return [Option(winner, winner.call_for(m, only_proved=only_proved)) for winner, _ in self.rows]

    def neighbours(self, m: int) -> slice:
        """Of its rows the last one below M and the first one above."""
        place = bisect_left(self.rows, m, key=lambda row: row[0].problem.M)
        return slice(max(place - 1, 0), place + 1)


class InvariantTable:
    """Such winners for `device`, of the first bundle that has any of a layer, and those of the same sums of others.

    With `only_proved` unproved calls serve nothing. An algorithm of `library`, the version of cuBLASLt here, serves the
    M that it won for, by which it was tested, and no other.
    """

    def __init__(
        self,
        bundles: Sequence[Bundle],
        device: Device,
        rule: Rule = by_own_times,
        *,
        only_proved: bool = False,
        library: int | None = None,
    ) -> None:
        self._rule = rule
        self._only_proved = only_proved
        self._library = library
        # Layers of which a later bundle has rows of other sums, which serve nothing.
        self.others: set[GemmProblem] = set()
        found: dict[GemmProblem, dict[int, tuple[PackedWinner, Bundle]]] = {}
        for bundle in bundles:
            for winner in bundle.winners:
                if winner.batch_invariant and winner.deterministic and device.has(winner):
                    self._take(found, winner, bundle)
        self._layers = {
            problem: Layer(next(iter(rows.values()))[0].batch_invariant, tuple(rows[m] for m in sorted(rows)))
            for problem, rows in found.items()
        }

    def __len__(self) -> int:
        return len(self._layers)

    def _take(
        self, found: dict[GemmProblem, dict[int, tuple[PackedWinner, Bundle]]], winner: PackedWinner, bundle: Bundle
    ) -> None:
        layer, m = replace(winner.problem, M=1), winner.problem.M
        rows = found.setdefault(layer, {})
        if rows and next(iter(rows.values()))[0].batch_invariant != winner.batch_invariant:
            self.others.add(layer)
        elif m not in rows or rank(winner) < rank(rows[m][0]):
            rows[m] = winner, bundle

    def find(self, problem: GemmProblem, *, kernels_alone: bool = False) -> Choice:
        """What serves the problem: the call of its own row, else of another M's that serves it; neither, and why, where
        there is none. With `kernels_alone` no algorithm of the library.
        """
        layer = self.layer(problem)
        if layer is None:
            return Choice(NO_CLASS)
        own = next((row for row in layer.rows if row[0].problem.M == problem.M), None)
        if own is not None:
            winner, bundle = own
            if not kernels_alone and self._is_librarys(winner):
                return Choice("tuned", exact=True, algorithm=winner.vendor, sums=layer.sums)
            if (call := winner.call_for(problem.M, only_proved=self._only_proved)) is not None:
                return Choice("tuned", winner, call, bundle, exact=True, sums=layer.sums)
        options = layer.options(problem.M, self._only_proved)
        option = self._rule(problem.M, options[layer.neighbours(problem.M)]) or nearest_winner(problem.M, options)
        if option is None or option.call is None:
            return Choice(f"no kernel of its order of sums, {layer.sums}, takes M = {problem.M}")
        bundle = next(bundle for winner, bundle in layer.rows if winner is option.winner)
        return Choice(f"tuned for M = {option.m}", option.winner, option.call, bundle, sums=layer.sums)

    def layer(self, problem: GemmProblem) -> Layer | None:
        """The problem's, whatever its M. Kernels with full sums serve one for which fast ones will do, and has none."""
        found = self._layers.get(replace(problem, M=1))
        if found is None and multiplies_float8(problem) and not is_full(problem):
            found = self._layers.get(replace(as_full(problem), M=1))
        return found

    def tuned(self, problem: GemmProblem) -> list[tuple[int, str]]:
        """For which M the problem is tuned, whatever its own, and what serves there: a config, or "vendor"."""
        layer = self.layer(problem)
        rows = () if layer is None else layer.rows
        return [(row.problem.M, "vendor" if self._is_librarys(row) else row.config) for row, _ in rows]

    def _is_librarys(self, winner: PackedWinner) -> bool:
        """Whether an algorithm of the library won, and the library is the one that has it: PyTorch's own call, which
        has no more than a name, may be another algorithm tomorrow.
        """
        kept = kept_algorithm(winner.vendor)
        return winner.choice != CONFIG_WINS and kept is not None and kept.version == self._library
