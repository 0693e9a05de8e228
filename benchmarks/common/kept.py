"""Kept: what a benchmark has found, a JSON line for each entry, written at once and read back by the next run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


class Kept:
    """The file of `-o`, with entries by their keys; of two with one key the later. Without a path nothing is kept."""

    def __init__(self, path: str | None) -> None:
        """Lines that a kill has cut, or that are none of ours, are passed over. Raises OSError."""
        self._known: dict[str, dict[str, Any]] = {}
        self._file = None
        if path:
            # Binary: what else is in the file is not ours to understand.
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115  open for the whole run
            self._file.seek(0)
            content = self._file.read()
            for line in content.splitlines():
                try:
                    entry = json.loads(line)
                    self._known[entry.pop("key")] = entry
                except (ValueError, TypeError, KeyError, AttributeError):
                    continue
            if content and not content.endswith(b"\n"):
                self._file.write(b"\n")

    def of(self, key: str) -> dict[str, Any] | None:
        """The entry with this key, if there is one."""
        return self._known.get(key)

    def add(self, key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Keep an entry, before the next is waited for."""
        self._known[key] = kept = dict(entry)
        if self._file is not None:
            self._file.write(json.dumps({**kept, "key": key}).encode() + b"\n")
        return kept


def digest_of(texts: Iterable[str], files: Iterable[Path]) -> str:
    """A short digest of what entries hold for: other texts or files are another measurement."""
    found = hashlib.sha256("\0".join(texts).encode())
    for file in files:
        found.update(b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:16]
