"""The strategy zero: takes the model's first choice; only if that does not run, the next one. No times decide."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from genkern.gemm.config import Config
from genkern.search.guided.judged import judged_of
from genkern.search.guided.learned import Learned
from genkern.search.guided.model import learned_of, ranked
from genkern.search.strategy import Compiled, Event, Measured, Refused, Strategy, Task, Unit


class Zero(Strategy):
    """Asks for one config at a time, in the model's order, until one was measured.

    Its expected loss is the mean loss of such choices on recorded sizes that were not in the training data (`Judged`).
    """

    left_out = "the model prefers another one (zero)"

    def __init__(self, task: Task, learned: Callable[[str], Learned | None] = learned_of) -> None:
        self._left = deque(ranked(task.problem, task.configs, task.gpu, learned))
        self._waiting: Config | None = None
        self._is_found = False
        judged = judged_of(task.gpu.arch)
        self._loss = None if judged is None else 1.0 / judged.share_for(task.problem) - 1.0

    def ask(self, n: int) -> Sequence[Unit]:
        if n < 1 or self._is_found or self._waiting is not None or not self._left:
            return []
        self._waiting = self._left.popleft()
        return [Unit((self._waiting,))]

    def tell(self, event: Event) -> None:
        if isinstance(event, Compiled):
            return
        configs = event.configs if isinstance(event, Refused) else (event.config,)
        if self._waiting in configs:
            self._is_found = isinstance(event, Measured)
            self._waiting = None

    def expected_loss(self) -> float | None:
        return self._loss if self._is_found else None


strategy = Zero
