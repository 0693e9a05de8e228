"""Runs a probe as a process with a time limit, and returns its findings whatever becomes of it."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from genkern.cli.doctor.finding import Finding, State, problem
from genkern.cli.doctor.probe import MARK
from genkern.errors import OutputError
from genkern.profiling.supervisor import Exit, SupervisorError, run_supervised
from genkern.python_child import child_environment, module_argv

_GRACE_S = 2.0


@dataclass(frozen=True)
class Probe:
    """One probe of genkern.cli.doctor.probe.

    name: the check's name in the report
    words: the probe and its argument
    limit_s: its time limit in seconds
    remedy: what to do if it fails, hangs or crashes
    environment: variables that its process gets in addition to this one's
    is_fatal: True if its failure is a problem, False for a warning
    """

    name: str
    words: tuple[str, ...]
    limit_s: float
    remedy: str
    environment: Mapping[str, str] = field(default_factory=dict)
    is_fatal: bool = True

    def run(self) -> list[Finding]:
        """Return the probe's findings; if it fails, crashes or hangs, a finding that says so. Never raises."""
        try:
            with tempfile.TemporaryDirectory(prefix="genkern-doctor-") as folder:
                out, err = Path(folder, "out"), Path(folder, "err")
                ended = run_supervised(
                    module_argv("genkern.cli.doctor.probe", *self.words),
                    env={**child_environment(), **self.environment},
                    timeout_s=self.limit_s,
                    grace_s=_GRACE_S,
                    stdout_path=out,
                    stderr_path=err,
                )
                text = out.read_text(encoding="utf-8", errors="replace")
        except (SupervisorError, OutputError, OSError) as error:
            return [self._failed(f"cannot be tried: {' '.join(str(error).split())}")]
        return self.findings_of(text, ended)

    def findings_of(self, text: str, ended: Exit) -> list[Finding]:
        """Return the findings in a probe's output."""
        for line in reversed(text.splitlines()):
            if line.startswith(MARK):
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    said = json.loads(line.removeprefix(MARK))
                    if isinstance(said, dict):
                        return [self._failed(str(said["failed"]))]
                    return [Finding(each["check"], State(each["state"]), each["said"], each["remedy"]) for each in said]
        how = f"no answer after {self.limit_s:g} s" if ended.timed_out else ended.description
        last = f": {ended.last_line[:200]}" if ended.last_line else ""
        return [self._failed(f"{how}{last}")]

    def _failed(self, said: str) -> Finding:
        return (
            problem(self.name, said, self.remedy)
            if self.is_fatal
            else Finding(self.name, State.WARNING, said, self.remedy)
        )
