"""Table finds the winner for a problem on one device; InvariantTable does so if calls must be batch-invariant."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import CONFIG_WINS, VENDOR_WINS
from genkern.ops.accumulate import as_fast, as_full, is_full, multiplies_float8
from genkern.result.package import PackedCall
from genkern.result.result import Result
from genkern.runtime.backends.lt import is_found_again
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.drift import is_looked_up
from genkern.runtime.bundles.untuned_m import Option, Relatives, Rule, by_measured_times, by_times, nearest_winner
from genkern.timing.libraries import stored_algorithm
from genkern.timing.trust_rank import TrustRank, trust_rank


@dataclass(frozen=True)
class Device:
    """A device by the names that PyTorch and results files use. Winners belong to one device."""

    arch: str
    name: str
    compute_units: int

    def has(self, winner: Result) -> bool:
        """Return True if the winner was tuned on such a device."""
        return (winner.arch, winner.device, winner.compute_units) == (self.arch, self.name, self.compute_units)


@dataclass(frozen=True)
class Choice:
    """What serves a problem: a call of a winner, an algorithm of the library, or PyTorch's own call.

    why: the reason for the choice, as a phrase for messages.
    winner, call, bundle: the winner, its call, and the bundle that holds it; None if the library serves the problem.
    exact: True if the choice is based on a measured row of the problem's own M.
    algorithm: the library's algorithm (genkern.timing.libraries); "" if PyTorch's own call serves the problem.
    sums: the order of sums that all calls of the layer share; "" if calls need not be batch-invariant.
    """

    why: str
    winner: Result | None = None
    call: PackedCall | None = None
    bundle: Bundle | None = None
    exact: bool = False
    algorithm: str = ""
    sums: str = ""

    @property
    def predicted(self) -> bool:
        """True if the winner was predicted and never measured."""
        return self.winner is not None and self.winner.is_predicted


_UNTUNED = "not tuned"
NO_CLASS = (
    "no winners with one order of sums (tune its sizes with `genkern --batch_invariant`, and pack them; or set "
    "GENKERN_BATCH_INVARIANT=warn)"
)


class Table:
    """Winners for `device` from several bundles, by problem.

    If two winners have one problem, the more reliable one is kept, else the faster one (genkern.timing.trust_rank);
    `doubled` lists the other one, unless the two differ in `batch_invariant`. Measured times decide: a predicted row
    serves only its own M, and only if no larger M was measured. With `only_proved`, problems whose calls have no proof
    are left to the library. `library` is the version of cuBLASLt or hipBLASLt in this process, if known: messages mark
    algorithms that were measured with another version.
    """

    def __init__(
        self,
        bundles: Sequence[Bundle],
        device: Device,
        rule: Rule = by_times,
        *,
        only_proved: bool = False,
        library: int | None = None,
    ) -> None:
        self._rule = rule
        self._only_proved = only_proved
        self._library = library
        self._rows: dict[GemmProblem, tuple[Result, Bundle]] = {}
        self.doubled: list[Result] = []
        self.elsewhere: set[str] = set()
        # The other devices that each problem was tuned for, whatever its M.
        self._elsewhere: dict[GemmProblem, set[str]] = defaultdict(set)
        for bundle in bundles:
            for winner in bundle.winners:
                if device.has(winner):
                    self._take(winner, bundle)
                else:
                    named = f"{winner.device} ({winner.arch}, {winner.compute_units} units)"
                    self.elsewhere.add(named)
                    self._elsewhere[replace(winner.problem, M=1)].add(named)
        self.predicted = sum(winner.is_predicted for winner, _ in self._rows.values())
        self._by_m: dict[Relatives, list[GemmProblem]] = defaultdict(list)
        self._tuned: dict[GemmProblem, list[Result]] = defaultdict(list)
        for problem in sorted(self._rows, key=lambda problem: problem.M):
            if not self._rows[problem][0].is_predicted:
                self._by_m[Relatives.of(problem)].append(problem)
            self._tuned[replace(problem, M=1)].append(self._rows[problem][0])
        for relatives, problems in self._by_m.items():
            # If an M was not tuned, only times of equal reliability are compared.
            most_believed = min(self._standing(each) for each in problems)
            self._by_m[relatives] = [each for each in problems if self._standing(each) == most_believed]

    def __len__(self) -> int:
        return len(self._rows)

    def _take(self, winner: Result, bundle: Bundle) -> None:
        known = self._rows.get(winner.problem)
        if known is not None:
            worse = max(known[0], winner, key=rank)
            if known[0].order == winner.order:
                self.doubled.append(worse)
            if worse is winner:
                return
        self._rows[winner.problem] = winner, bundle

    def find(self, problem: GemmProblem) -> Choice:
        """Return what serves the problem: its own measured row, else a measured row of another M by the rule, else the
        problem's predicted row if no larger M was measured, else the library.

        A float8 problem that accepts fast sums is also served by a kernel with full sums if that is more reliable or
        faster. If a problem has no row for this device, `why` names the devices for which it was tuned.
        """
        chosen = self._whatever_sums(problem)
        if chosen.why == _UNTUNED and (devices := self._elsewhere.get(replace(problem, M=1))):
            return replace(chosen, why=f"{_UNTUNED} for this device, but for {'; '.join(sorted(devices))}")
        return chosen

    def _whatever_sums(self, problem: GemmProblem) -> Choice:
        chosen = self._find(problem)
        if not multiplies_float8(problem):
            return chosen
        if is_full(problem):
            said = "tuned for fast sums only, not for the full sums of this call (accumulate)"
            return Choice(said) if chosen.why == _UNTUNED and self._find(as_fast(problem)).call else chosen
        in_full = self._find(full := as_full(problem))
        if in_full.call is None:
            return chosen
        if chosen.exact and in_full.exact:
            return min((chosen, problem), (in_full, full), key=lambda each: rank(self._rows[each[1]][0]))[0]
        serves = chosen.call is not None and not in_full.exact and (in_full.predicted or not chosen.predicted)
        return chosen if chosen.exact or serves else in_full

    def _find(self, problem: GemmProblem) -> Choice:
        row, tuned = self._rows.get(problem), self._by_m.get(Relatives.of(problem), [])
        if row is not None and not row[0].is_predicted:
            winner, bundle = row
            if winner.choice != CONFIG_WINS or _lost(winner):
                algorithm = winner.vendor if stored_algorithm(winner.vendor) else ""
                looked_up = " (with an algorithm of another version: looked up, not measured)"
                why = "the library is as fast" + looked_up * is_looked_up(winner, self._library)
                return Choice(why, exact=True, algorithm=algorithm)
            if (call := self._call(winner, problem.M)) is not None:
                return Choice("tuned", winner, call, bundle, exact=True)
            unproved = winner.call_for(problem.M) is not None
            return Choice("its kernels are unproved" if unproved else "its winner has no kernels here", exact=True)
        predicted = None
        if row is not None and not any(each.M > problem.M for each in tuned):
            predicted = self._predicted(*row)
        if not tuned:
            return predicted or Choice(_UNTUNED)
        option = self._rule(problem.M, [self._option(problem.M, other) for other in _neighbours(problem, tuned)])
        if option is None or option.call is None:
            return predicted or Choice(f"not tuned for M = {problem.M}, and the library serves it")
        return Choice(f"tuned for M = {option.m}", option.winner, option.call, self._rows[option.winner.problem][1])

    def tuned(self, problem: GemmProblem) -> list[tuple[int, str]]:
        """Return each M that the problem is tuned for, with the winner: a config, "vendor" or "tie".

        " (predicted)" is appended if it was never measured, " (looked up)" if the library's algorithm is of another
        version.
        """
        rows = self._tuned.get(replace(problem, M=1), ())
        return [(row.problem.M, self._named(row)) for row in rows]

    def _named(self, row: Result) -> str:
        if row.is_predicted:
            return f"{row.config_name if row.choice == CONFIG_WINS else row.choice} (predicted)"
        if row.choice == CONFIG_WINS and not _lost(row):
            return row.config_name
        who = VENDOR_WINS if _lost(row) else row.choice
        return who + " (looked up)" * is_looked_up(row, self._library)

    def _predicted(self, winner: Result, bundle: Bundle) -> Choice | None:
        """Return the choice of a predicted row. It is not `exact`, so tuning at run time still tunes the problem."""
        call = self._call(winner, winner.problem.M)
        return None if call is None else Choice("predicted, not measured", winner, call, bundle)

    def _option(self, m: int, tuned: GemmProblem) -> Option:
        winner, _ = self._rows[tuned]
        return Option(winner, self._call(winner, m))

    def _call(self, winner: Result, m: int) -> PackedCall | None:
        return winner.call_for(m, only_proved=self._only_proved)

    def _standing(self, tuned: GemmProblem) -> TrustRank:
        return rank(self._rows[tuned][0])[0]


def _lost(winner: Result) -> bool:
    """Return True if the winner won among kernels of one order of sums, but the library is faster with another order.

    The library serves such a problem unless calls must be batch-invariant.
    """
    us, library_us = winner.duration_us, winner.vendor_us
    return winner.batch_invariant and us is not None and library_us is not None and library_us < us


@dataclass(frozen=True)
class Layer:
    """Winners of one problem for several M, sorted by M, which all have the order of sums `sums`."""

    sums: str
    rows: tuple[tuple[Result, Bundle], ...]

    def options(self, m: int, only_proved: bool) -> list[Option]:
        return [Option(winner, winner.call_for(m, only_proved=only_proved)) for winner, _ in self.rows]

    def neighbours(self, m: int) -> slice:
        """Return the slice of the last row below M and the first row at or above it."""
        place = bisect_left(self.rows, m, key=lambda row: row[0].problem.M)
        return slice(max(place - 1, 0), place + 1)


class InvariantTable:
    """Batch-invariant winners for `device`, by layer (everything of a problem except M).

    The first bundle that has winners of a layer determines its order of sums; winners of other bundles are added if
    they have the same order. The choice depends on bundles only, never on measurements of this process: ranks with
    equal bundles choose alike. With `only_proved`, calls without a proof are not used. An algorithm of cuBLASLt of the
    version `library` serves exactly the M that it won for, since it was tested for no other; an algorithm of hipBLASLt
    is never used (`Backend.finds_again`).
    """

    def __init__(
        self,
        bundles: Sequence[Bundle],
        device: Device,
        rule: Rule = by_measured_times,
        *,
        only_proved: bool = False,
        library: int | None = None,
    ) -> None:
        self._rule = rule
        self._only_proved = only_proved
        self._library = library
        # Layers for which a later bundle has rows with another order of sums, which are not used.
        self.others: set[GemmProblem] = set()
        found: dict[GemmProblem, dict[int, tuple[Result, Bundle]]] = {}
        for bundle in bundles:
            for winner in bundle.winners:
                if winner.batch_invariant and winner.deterministic and device.has(winner):
                    self._take(found, winner, bundle)
        self._layers = {
            problem: Layer(next(iter(rows.values()))[0].order, tuple(rows[m] for m in sorted(rows)))
            for problem, rows in found.items()
        }

    def __len__(self) -> int:
        return len(self._layers)

    def _take(self, found: dict[GemmProblem, dict[int, tuple[Result, Bundle]]], winner: Result, bundle: Bundle) -> None:
        layer, m = replace(winner.problem, M=1), winner.problem.M
        rows = found.setdefault(layer, {})
        if rows and next(iter(rows.values()))[0].order != winner.order:
            self.others.add(layer)
        elif m not in rows or rank(winner) < rank(rows[m][0]):
            rows[m] = winner, bundle

    def find(self, problem: GemmProblem, *, kernels_alone: bool = False) -> Choice:
        """Return what serves the problem: the call of its own row, else of another M's row, else only the reason.

        With `kernels_alone` no algorithm of the library is returned.
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
        """Return the layer of the problem, whatever its M; None if it has none.

        A layer with full sums serves a float8 problem that accepts fast sums if that has no layer of its own.
        """
        found = self._layers.get(replace(problem, M=1))
        if found is None and multiplies_float8(problem) and not is_full(problem):
            found = self._layers.get(replace(as_full(problem), M=1))
        return found

    def tuned(self, problem: GemmProblem) -> list[tuple[int, str]]:
        """Return each M that the problem is tuned for, whatever its own M, and what serves it: a config or "vendor"."""
        layer = self.layer(problem)
        rows = () if layer is None else layer.rows
        return [(row.problem.M, "vendor" if self._is_librarys(row) else row.config_name) for row, _ in rows]

    def _is_librarys(self, winner: Result) -> bool:
        """Return True if an algorithm of the library won and this process's library has exactly that algorithm.

        PyTorch's own call is only a name: it may select another algorithm in another process.
        """
        if winner.choice == CONFIG_WINS or self._library is None:
            return False
        return is_found_again(winner.vendor, self._library)


def rank(winner: Result) -> tuple[TrustRank, float]:
    """Return the sort key of a winner; a smaller key is better."""
    return trust_rank(winner.choice, winner.proved_by, winner.time_source), winner.duration_us or float("inf")


def _neighbours(problem: GemmProblem, tuned: Sequence[GemmProblem]) -> Sequence[GemmProblem]:
    """Return, from problems sorted by M, the last one below the problem's M and the first one at or above it."""
    place = bisect_left(tuned, problem.M, key=lambda each: each.M)
    return tuned[max(place - 1, 0) : place + 1]
