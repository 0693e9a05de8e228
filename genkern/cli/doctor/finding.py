"""`Finding`: what one check of `genkern doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(str, Enum):
    """How a check ended. Only a problem makes the exit status 1."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    name: what was checked, such as "PyTorch"
    state: how it ended
    said: what was found
    remedy: what to do about it; "" if it is ok
    """

    name: str
    state: State
    said: str
    remedy: str = ""

    @property
    def data(self) -> dict[str, str]:
        """The finding for JSON."""
        return {"check": self.name, "state": self.state.value, "said": self.said, "remedy": self.remedy}


def ok(name: str, said: str) -> Finding:
    return Finding(name, State.OK, said)


def warning(name: str, said: str, remedy: str) -> Finding:
    return Finding(name, State.WARNING, said, remedy)


def problem(name: str, said: str, remedy: str) -> Finding:
    return Finding(name, State.PROBLEM, said, remedy)
