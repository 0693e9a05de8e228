"""Orders: in which order of sums a tuner's winners must be, and what follows from it for one size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Candidate, Measurement, Outcome
from genkern.kernels.catalogue import sums_of
from genkern.runtime.backends.lt import is_found_again
from genkern.space.space import Space
from genkern.tuning.invariant.reference import reference_of

# Calls of libraries are compared with the fastest configs of so many orders.
_MOST_ORDERS = 8


@dataclass(frozen=True)
class Orders:
    """The order that is `asked` of each problem's winner, as sums_of says it; those without one may have any.

    Of problems in `decided` nothing is searched: the incumbent has the order. `found` has by problem the best of the
    order that is known.
    """

    asked: Mapping[GemmProblem, str] = field(default_factory=dict)
    decided: frozenset[GemmProblem] = frozenset()
    found: Mapping[GemmProblem, Config] = field(default_factory=dict)

    def space_of(self, problem: GemmProblem, space: Space) -> Space:
        """What is searched for the problem."""
        if problem in self.decided:
            return replace(space, families=())
        return space.of_order(self.asked[problem]) if problem in self.asked else space

    def besides(self, problem: GemmProblem, gpu: Gpu) -> list[Config]:
        """What is measured whatever the search asks for: the order's reference, and the best that is known."""
        if (order := self.asked.get(problem)) is None:
            return []
        known = (self.found.get(problem), reference_of(problem, order, gpu))
        return list(dict.fromkeys(config for config in known if config is not None))

    def may_win(self, problem: GemmProblem, name: str, arch: str) -> bool:
        """Whether a config has the order that is asked."""
        order = self.asked.get(problem)
        return order is None or sums_of(problem, Config.parse(name), arch) == order

    def reference(self, problem: GemmProblem, name: str, ready: Mapping[str, Candidate], gpu: Gpu) -> Candidate | None:
        """What a config is compared with, where that could be made and is another."""
        config = reference_of(problem, self.asked.get(problem, ""), gpu)
        return None if config is None or config.name == name else ready.get(config.name)

    def calls(
        self, problem: GemmProblem, calls: Sequence[Measurement], sums: Mapping[str, str]
    ) -> Sequence[Measurement]:
        """The library's calls, those first that may win in the order that is asked."""
        if problem not in self.asked:
            return calls
        return sorted(calls, key=lambda call: not self.may_win_call(problem, call.config, sums))

    def fastest(self, problem: GemmProblem, calls: Sequence[Measurement]) -> Measurement | None:
        """The fastest of the library's calls, where one that is in order need not be it."""
        return calls[0] if problem in self.asked and calls else None

    def may_win_call(self, problem: GemmProblem, name: str, sums: Mapping[str, str]) -> bool:
        """Whether a library's call has the order that is asked, as bits have shown.

        PyTorch's own chooses its kernel when it is called, by what else it finds then.
        """
        order = self.asked.get(problem)
        return order is None or (is_found_again(name) and sums.get(name) == order)


ANY_ORDER = Orders()


def fastest_by_order(
    problem: GemmProblem, measured: Iterable[Measurement], ready: Mapping[str, Candidate], arch: str
) -> dict[str, Candidate]:
    """The fastest measured config of each order, by its text, the fastest first; not of all, where there are many.

    Orders that are one config's alone are left out: no library has them.
    """
    found: dict[str, Candidate] = {}
    times = [m for m in measured if m.outcome is Outcome.MEASURED and m.duration_us is not None and m.config in ready]
    for m in sorted(times, key=lambda m: (m.duration_us or 0.0, m.config)):
        order = sums_of(problem, ready[m.config].config, arch)
        if order and " as " not in order:
            found.setdefault(order, ready[m.config])
    return dict(list(found.items())[:_MOST_ORDERS])


def loss(called: Measurement | None, others: Iterable[Measurement | None]) -> float | None:
    """How much longer than the fastest of all a call takes: 0.01 is 1 %; None where it was not measured."""
    if called is None or not called.duration_us:
        return None
    times = [m.duration_us for m in others if m is not None and m.outcome is Outcome.MEASURED and m.duration_us]
    return called.duration_us / min([called.duration_us, *times]) - 1.0
