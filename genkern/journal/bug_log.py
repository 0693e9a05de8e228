"""BugLog: what genkern itself did wrong in a run, for a report of it; beside the results, where it stays."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from genkern.errors import BugError, OutputError
from genkern.files import regular, shown_path


@dataclass(frozen=True)
class BugLog:
    """A text file that grows; `versions` and `command` are what a reader needs to see the bug for himself."""

    path: Path
    versions: Mapping[str, str]
    command: str

    def append(self, what: str, bug: BugError) -> str:
        """Add the bug with its traceback, and return what the user is to know: `what` it ended, by what, and the log.

        Raises OutputError.
        """
        made_with = ", ".join(f"{name} {version}" for name, version in sorted(self.versions.items()))
        head = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {what}\n{self.command}\n{made_with}\n{bug.message}\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8", errors="backslashreplace", opener=regular) as file:
                file.write(f"{head}{bug.details.rstrip()}\n\n")
        except OSError as error:
            raise OutputError(
                f"{what}: a bug in genkern: {bug.message}; its log {shown_path(str(self.path))} cannot be written "
                f"({error.strerror}): please report it"
            ) from None
        return f"{what}: a bug in genkern: {bug.message}; {shown_path(str(self.path))} has the rest: please report it"
