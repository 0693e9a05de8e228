"""Done: the sizes of a model that are tuned already for one device, in results files and bundles."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from genkern.files.file_kind import read_results
from genkern.files.results import gpu_of
from genkern.gemm.gpus import NOT_PRESENT
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import CONFIG_WINS
from genkern.ops.accumulate import on_arch
from genkern.result.device import DeviceKey
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import Bundle, is_bundle, read_bundle
from genkern.runtime.bundles.records import part_of
from genkern.runtime.bundles.table import Device
from genkern.tuning.invariant.group import groups_of


@dataclass
class TunedSizes:
    """Collects what is tuned for the `wanted` problems on `device`.

    wanted: the problems.
    device: the device.
    predicted: accept predicted winners, too.
    batch_invariant: accept only batch-invariant winners. Problems that differ only in M are then taken together, from
        the first file that has winners with one order of sums for all of them.
    rows: rows of results to pack.
    taken: bundles with the winners to pack.
    problems: problems that have a row or a winner.
    """

    wanted: Collection[GemmProblem]
    device: DeviceKey
    predicted: bool = False
    batch_invariant: bool = False
    rows: list[Result] = field(default_factory=list)
    taken: list[Bundle] = field(default_factory=list)
    problems: set[GemmProblem] = field(default_factory=set)

    @property
    def identity(self) -> Device:
        """The device as a running program names it."""
        return Device(self.device.arch, self.device.device.removesuffix(NOT_PRESENT), self.device.compute_units)

    def add(self, path: str) -> int:
        """Take winners from a file. Return the number of wanted problems that no earlier file had.

        Raises ResultsError.
        """
        return self._add_bundle(read_bundle(path)) if is_bundle(path) else self._add_rows(read_results(path))

    def _add_rows(self, rows: Sequence[Result]) -> int:
        found = [row for row in rows if row.problem in self._on_arch() and self._fits(row)]
        if self.batch_invariant:
            whole = self._of_one_order({row.problem: row.sums for row in found if row.batch_invariant})
            found = [row for row in found if row.batch_invariant and row.problem in whole]
        self.rows += found
        return self._count(row.problem for row in found)

    def _add_bundle(self, bundle: Bundle) -> int:
        """Take winners of problems that have none yet: if a problem had two rows, a bundle would keep both."""
        wanted = self._on_arch() - self.problems
        found = tuple(winner for winner in bundle.winners if winner.problem in wanted and self._has(winner))
        if self.batch_invariant:
            orders = {winner.problem: winner.order for winner in found if winner.batch_invariant}
            whole = self._of_one_order(orders)
            found = tuple(winner for winner in found if winner.batch_invariant and winner.problem in whole)
        if found:
            self.taken.append(replace(bundle, contents=part_of(bundle.contents, found)))
        return self._count(winner.problem for winner in found)

    def _of_one_order(self, orders: Mapping[GemmProblem, str]) -> set[GemmProblem]:
        """Return the problems whose whole group has one order of sums, unless a problem of the group is tuned already.

        `orders` has the order of each problem.
        """
        whole: set[GemmProblem] = set()
        for group in groups_of(self._on_arch()):
            has_one = all(problem in orders for problem in group) and len({orders[problem] for problem in group}) == 1
            if has_one and self.problems.isdisjoint(group):
                whole.update(group)
        return whole

    def _on_arch(self) -> set[GemmProblem]:
        return {on_arch(problem, self.device.arch) for problem in self.wanted}

    def _fits(self, row: Result) -> bool:
        if (row.predicted and not self.predicted) or not row.arch:
            return False
        if row.choice == CONFIG_WINS and not row.is_genkerns:
            return False
        return self.device.fits(row.arch, row.device, gpu_of(row, row.arch).compute_units)

    def _has(self, winner: Result) -> bool:
        return self.identity.has(winner) and (self.predicted or not winner.is_predicted)

    def _count(self, found: Iterable[GemmProblem]) -> int:
        before = len(self.problems)
        self.problems.update(found)
        return len(self.problems) - before

    def missing(self) -> list[GemmProblem]:
        """Return the wanted problems that are not tuned, in their order."""
        return [problem for problem in self.wanted if on_arch(problem, self.device.arch) not in self.problems]
