"""JournalCopy: the journal as a forked process has it; what is added goes to the parent, which writes it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

from genkern.gemm.problem import GemmProblem
from genkern.journal.journal import Facts, JournalFacts
from genkern.journal.line import journal_line

# So many lines are not kept back any longer: the most that a killed process takes along.
BATCH_LINES = 32


class JournalCopy(Facts):
    """Knows what `journal` knew when the process was forked.

    `send` is given whole lines, some at a time or at `flush`, and whether they decide a problem. Every problem
    must be in the journal already (`Journal.started`). Any thread may call `flush`.
    """

    def __init__(self, journal: JournalFacts, send: Callable[[bytes, bool], None]) -> None:
        super().__init__(journal.path)
        self.header, self.starts, self.facts = journal.header, journal.starts, journal.facts
        self._numbers = journal.numbers
        self._problems = {number: problem for problem, number in self._numbers.items()}
        self._send = send
        self._lock = threading.Lock()
        self._lines: list[bytes] = []

    def read_lines(self, parts: Iterable[bytes]) -> None:
        """Take over lines that others have written since."""
        for line in b"".join(parts).splitlines():
            entry = json.loads(line)
            self._take(entry["fact"], entry["value"], self._problems[entry["problem"]])

    def flush(self) -> None:
        """Send what was added since the last time."""
        with self._lock:
            self._flush()

    def _append(self, fact: str, value: Any, problem: GemmProblem | None = None, *, decides: bool = False) -> None:
        line = journal_line(fact, value, None if problem is None else self._numbers[problem])
        with self._lock:
            if decides:
                self._flush()
                self._send(line, True)
            else:
                self._lines.append(line)
                if len(self._lines) >= BATCH_LINES:
                    self._flush()

    def _flush(self) -> None:
        if self._lines:
            self._send(b"".join(self._lines), False)
            self._lines = []
