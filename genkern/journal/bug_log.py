"""BugLog: the log of genkern's own bugs in a run, for a bug report. It lies beside the results."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from genkern.errors import BugError, OutputError
from genkern.file_io import open_regular, shown_path


@dataclass(frozen=True)
class BugLog:
    """A log file to which bug reports are appended. Each report has `versions` and `command`, to reproduce the bug."""

    path: Path
    versions: Mapping[str, str]
    command: str

    def append(self, what: str, bug: BugError) -> str:
        """Append a bug with its traceback, and return the one-line message for the user.

        The message has what ended (`what`), the bug, and the log's path.

        Raises OutputError.
        """
        made_with = ", ".join(f"{name} {version}" for name, version in sorted(self.versions.items()))
        head = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {what}\n{self.command}\n{made_with}\n{bug.message}\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8", errors="backslashreplace", opener=open_regular) as file:
                file.write(f"{head}{bug.details.rstrip()}\n\n")
        except OSError as error:
            raise OutputError(
                f"{what}: a bug in genkern: {bug.message}; the log {shown_path(str(self.path))} cannot be written "
                f"({error.strerror}): please report it"
            ) from None
        return f"{what}: a bug in genkern: {bug.message}; {shown_path(str(self.path))} has details: please report it"
