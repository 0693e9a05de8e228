"""The orders of sums that winners must have, and what follows from them for one size."""

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

# Library calls are compared with the fastest config of each of the fastest orders, up to this number of orders.
_MOST_ORDERS = 8


@dataclass(frozen=True)
class SumOrderConstraint:
    """The orders of sums that winners must have.

    asked: the order of each problem's winner, as `sums_of` writes it; other problems may have any order
    decided: problems that are not searched, because the incumbent has the order
    found: the best known config of the order, by problem
    """

    required: Mapping[GemmProblem, str] = field(default_factory=dict)
    settled: frozenset[GemmProblem] = frozenset()
    best_known: Mapping[GemmProblem, Config] = field(default_factory=dict)

    def space_of(self, problem: GemmProblem, space: Space) -> Space:
        """Return the part of `space` that is searched for the problem."""
        if problem in self.settled:
            return replace(space, families=())
        return space.of_order(self.required[problem]) if problem in self.required else space

    def required_configs(self, problem: GemmProblem, gpu: Gpu) -> list[Config]:
        """Return the configs that are always measured: the order's reference, and the best known config."""
        if (order := self.required.get(problem)) is None:
            return []
        known = (self.best_known.get(problem), reference_of(problem, order, gpu))
        return list(dict.fromkeys(config for config in known if config is not None))

    def may_win(self, problem: GemmProblem, name: str, arch: str) -> bool:
        """Return whether a config has the required order."""
        order = self.required.get(problem)
        return order is None or sums_of(problem, Config.parse(name), arch) == order

    def reference(self, problem: GemmProblem, name: str, ready: Mapping[str, Candidate], gpu: Gpu) -> Candidate | None:
        """Return the reference to compare a config with; None if it was not compiled or is the config itself."""
        config = reference_of(problem, self.required.get(problem, ""), gpu)
        return None if config is None or config.name == name else ready.get(config.name)

    def calls(
        self, problem: GemmProblem, calls: Sequence[Measurement], sums: Mapping[str, str]
    ) -> Sequence[Measurement]:
        """Return the library calls; if an order is required, the calls that may win come first."""
        if problem not in self.required:
            return calls
        return sorted(calls, key=lambda call: not self.may_win_call(problem, call.config, sums))

    def fastest(self, problem: GemmProblem, calls: Sequence[Measurement]) -> Measurement | None:
        """Return the fastest library call if an order is required, since `calls` may then prefer a slower one."""
        return calls[0] if problem in self.required and calls else None

    def may_win_call(self, problem: GemmProblem, name: str, sums: Mapping[str, str]) -> bool:
        """Return whether a library call may win: always if no order of sums is required. Otherwise genkern must be able
        to find the same algorithm again, and the comparison of bits must have shown the required order.

        PyTorch's own call may not win: PyTorch chooses the kernel at each call, so its order may change.
        """
        order = self.required.get(problem)
        return order is None or (is_found_again(name) and sums.get(name) == order)


ANY_ORDER = SumOrderConstraint()


def fastest_by_order(
    problem: GemmProblem, measured: Iterable[Measurement], ready: Mapping[str, Candidate], arch: str
) -> dict[str, Candidate]:
    """Return the fastest measured config of each order of sums, for the fastest `_MOST_ORDERS` orders, fastest first.

    Orders that are specific to one config (`" as "` in the text) are left out, since no library call has them.
    """
    found: dict[str, Candidate] = {}
    times = [m for m in measured if m.outcome is Outcome.MEASURED and m.duration_us is not None and m.config in ready]
    for m in sorted(times, key=lambda m: (m.duration_us or 0.0, m.config)):
        order = sums_of(problem, ready[m.config].config, arch)
        if order and " as " not in order:
            found.setdefault(order, ready[m.config])
    return dict(list(found.items())[:_MOST_ORDERS])


def loss(called: Measurement | None, others: Iterable[Measurement | None]) -> float | None:
    """Return how much slower `called` is than the fastest of all calls (0.01: 1 %); None if it was not measured."""
    if called is None or not called.duration_us:
        return None
    times = [m.duration_us for m in others if m is not None and m.outcome is Outcome.MEASURED and m.duration_us]
    return called.duration_us / min([called.duration_us, *times]) - 1.0
