"""JournalCopy: the journal in a forked process. New facts are sent to the parent process, which writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from genkern.gemm.problem import GemmProblem
from genkern.journal.facts import JournalFacts
from genkern.journal.journal import FactWriter
from genkern.journal.journal_line import entry_of, journal_line


class JournalCopy(FactWriter):
    """Knows the facts of `journal` at the time of the fork.

    `send(lines, decides)` receives whole lines, from any thread, and whether they decide a problem. Every problem must
    be in the journal already (`Journal.started`).
    """

    def __init__(self, journal: JournalFacts, send: Callable[[bytes, bool], None]) -> None:
        super().__init__(journal.path)
        self.header, self.starts, self.facts, self.wins = journal.header, journal.starts, journal.facts, journal.wins
        self.is_generated_alike = journal.is_generated_alike
        self._numbers = journal.numbers
        self._problems = {number: problem for problem, number in self._numbers.items()}
        self._send = send

    def read_lines(self, parts: Iterable[bytes]) -> None:
        """Add facts from lines that other processes have written since."""
        for line in b"".join(parts).splitlines():
            entry = entry_of(line)
            self._take(entry["fact"], entry["value"], self._problems[entry["problem"]])

    def _lines(self, fact: str, value: Any, problem: GemmProblem | None) -> list[bytes]:
        return [journal_line(fact, value, None if problem is None else self._numbers[problem])]

    def _put(self, lines: Sequence[bytes], *, decides: bool = False) -> None:
        self._send(b"".join(lines), decides)
