"""`explain`: what the search space of one problem holds, which rules drop what, and the predicted times."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from genkern.api.options import TuneOptions
from genkern.api.request import FAULTS, Problem, request_of
from genkern.cli.run import spaces_of
from genkern.errors import InputError, reporting_machine_faults
from genkern.files.config_entry import parse_config
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.legality import legal
from genkern.search.guided.predicted_times import PredictedTime, predicted_times
from genkern.space.prune import Pruned, prune
from genkern.space.prune import explain as explained
from genkern.space.rules.registry import reason

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Unpack

# Candidates that the text of an explanation names.
_MOST_SHOWN = 5


@dataclass(frozen=True)
class Forecast:
    """A config that pruning keeps, with its predicted time.

    Attributes:
        config (Config): the family and its parameters.
        time_us (float): predicted microseconds of one call.
        interval_us (tuple of two floats, or None): an interval that holds 80 % of measured times; None if no time of
            this GPU model was measured.
    """

    config: Config
    time_us: float
    interval_us: tuple[float, float] | None


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """What the space of one problem holds on one GPU model.

    Attributes:
        problem (GemmProblem): the problem.
        device, arch (str): the GPU model, and its architecture.
        space (str): name of the space.
        total (int): number of configs in the space; the sum of kept, dropped and illegal ones.
        kept (int): number of configs that are candidates.
        dropped (mapping of str to int): number of configs by the first rule that drops them, because it does not
            expect them to be fast.
        illegal (mapping of str to int): number of configs by the reason why they cannot compute the problem.
        reasons (mapping of str to str): what each rule of `dropped` says.
    """

    problem: GemmProblem
    device: str
    arch: str
    space: str
    total: int
    kept: int
    dropped: Mapping[str, int]
    illegal: Mapping[str, int]
    reasons: Mapping[str, str]
    _pruned: Pruned = field(repr=False)
    _gpu: Gpu = field(repr=False)

    @cached_property
    def candidates(self) -> Sequence[Forecast]:
        """The kept configs by predicted time, the fastest first. No time is measured; the first access takes a second.

        `tune` without a GPU may prefer a config with nearly the same time, since its model also ranks pairs of configs.
        """
        configs = self._pruned.kept
        times = predicted_times(self.problem, configs, self._gpu)
        found = [_forecast(config, time) for config, time in zip(configs, times, strict=True)]
        return tuple(sorted(found, key=lambda each: each.time_us))

    def forecast(self, config: Config | str) -> Forecast:
        """Return the predicted time of any legal config, also of one that the space does not hold.

        Args:
            config (Config or str): the config, or its name as in results.

        Raises:
            InputError: a ValueError: there is no such config, or it cannot compute the problem; the message says why.
        """
        meant = parse_config(config) if isinstance(config, str) else config
        if why := legal(self.problem, meant, self._gpu):
            raise InputError(f"{meant.name} cannot compute {self.problem.size} on {self.device}: {why}")
        (time,) = predicted_times(self.problem, [meant], self._gpu)
        return _forecast(meant, time)

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with a row per candidate, the fastest first.

        Returns:
            DataFrame: columns config, time_us, low_us, high_us (predicted, in microseconds), family, and a column for
                each parameter.
        """
        import pandas as pd

        rows = [
            {
                "config": each.config.name,
                "time_us": each.time_us,
                "low_us": None if each.interval_us is None else each.interval_us[0],
                "high_us": None if each.interval_us is None else each.interval_us[1],
                "family": each.config.family,
                **each.config.values,
            }
            for each in self.candidates
        ]
        table: pd.DataFrame = pd.DataFrame(rows)
        return table

    def __str__(self) -> str:
        """The table that `genkern --explain` prints, and the first candidates with their predicted times."""
        head = f"{self.problem.size} {self.problem.op} on {self.device}, space {self.space}:"
        lines = [head, explained(self._pruned)]
        if self.kept:
            lines.append("fastest candidates by predicted time (nothing was measured):")
        for each in self.candidates[:_MOST_SHOWN]:
            between = "" if each.interval_us is None else " ({:.2f} to {:.2f})".format(*each.interval_us)
            lines.append(f"  {each.time_us:.2f} us{between}  {each.config.name}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"Explanation({self.problem.size} {self.problem.op} on {self.device}: "
            f"{self.kept:,} of {self.total:,} configs kept; print() shows why)"
        )


def _forecast(config: Config, time: PredictedTime) -> Forecast:
    return Forecast(config, time.us, time.interval_us)


@reporting_machine_faults(*FAULTS)
def explain(
    problem: Problem | None = None,
    *,
    M: int | None = None,
    N: int | None = None,
    K: int | None = None,
    **options: Unpack[TuneOptions],
) -> Explanation:
    """Explain what a search would try for one size: its space, what each rule drops, and predicted times.

    Compiles and measures nothing, and needs no GPU.

    Args:
        problem (size, optional): (M, N, K), a mapping with the keys of a list of sizes, or a GemmProblem; unless M, N
            and K are given.
        M (int, optional): rows of A and C.
        N (int, optional): columns of B and C.
        K (int, optional): columns of A, rows of B.
        **options: as in `tune`: `device` or `arch` names the GPU model, `space` another space, `dtype`, `op` and so on
            the problem.

    Returns:
        Explanation: counts by rule; `candidates` has the kept configs with predicted times.

    Raises:
        InputError: a ValueError: the size or an option cannot be used. The message is one line.

    Example::

        explanation = genkern.explain(M=16, N=4096, K=4096, device="NVIDIA H100")
        print(explanation)
        explanation.forecast(explanation.candidates[0].config.name).time_us
    """
    with tempfile.TemporaryDirectory(prefix="genkern-") as folder:
        request = request_of(problem, M, N, K, options, Path(folder), ["--explain"])
    if len(request.problems) != 1:
        raise InputError(f"explain takes one size, these are {len(request.problems)}: call it for each")
    (one,) = request.problems
    gpu = request.setting.target.gpu
    space = spaces_of(request.problems, request.setting)[one.op]
    pruned = prune(space, one, gpu)
    dropped = {name: count for name, count in pruned.dropped.items() if count}
    return Explanation(
        *(one, gpu.name, gpu.arch, space.name, pruned.total, len(pruned.kept), dropped, pruned.illegal),
        *({name: reason(name) for name in dropped}, pruned, gpu),
    )
