"""ProofStore: stores proofs of a bundle's calls as they are made, so that an interrupted pack can continue."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from genkern.profiling import checking
from genkern.result.package import PackedCall
from genkern.result.result import Result
from genkern.timing.session import Session

# The file's name in the cache folder.
PROOFS = "proofs.txt"
_LINE = re.compile(rb"[0-9a-f]{64}")
# Limit of the bytes that are read; a proof takes 66 bytes.
_MOST_BYTES = 2**26
# Do not follow links, and do not wait for pipes, which another user may have put there.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK


class ProofStore:
    """The proofs in the file `path`, one per line: the digest of everything that the proof depends on.

    Only passed checks are stored: a failed one may be the machine's fault, and is cheap to repeat. Files that another
    user owns or can write are ignored. Never raises: if the file cannot be read or written, calls are proved again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = _read(path)

    def has(self, key: str) -> bool:
        """Return True if a check with this key has passed."""
        return key in self._known

    def add(self, key: str) -> None:
        """Append the key of a check that has passed."""
        if key in self._known:
            return
        self._known.add(key)
        try:
            descriptor = os.open(self._path, _APPEND, 0o600)
        except OSError:
            return
        try:
            if _is_ours(descriptor):
                # The leading line break ends a line that a killed process may have left incomplete.
                os.write(descriptor, f"\n{key}\n".encode())
        except OSError:
            pass
        finally:
            os.close(descriptor)


def proof_key(winner: Result, call: PackedCall, session: Session, binaries: Sequence[bytes]) -> str:
    """Return the SHA-256 of everything that decides the outcome of a call's check.

    That is the bytes of the `binaries` that are launched, the launch plan, the problem with the session's M, the
    device, and the code that makes inputs and reference.
    """
    said = [
        [hashlib.sha256(image).hexdigest() for image in binaries],
        call.plan.to_json(),
        repr(session.problem),
        session.problem.M == winner.problem.M,
        winner.order,
        winner.arch,
        winner.device,
        winner.compute_units,
        hashlib.sha256(Path(session.module_path).read_bytes()).hexdigest(),
        _checking_code(),
    ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


@lru_cache(maxsize=1)
def _checking_code() -> str:
    """Return a digest of the sources of the check."""
    digest = hashlib.sha256()
    for path in sorted(Path(str(checking.__file__)).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> set[str]:
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return set()
    try:
        if not _is_ours(descriptor):
            return set()
        lines = os.read(descriptor, _MOST_BYTES).splitlines()
    except OSError:
        return set()
    finally:
        os.close(descriptor)
    return {line.decode() for line in lines if _LINE.fullmatch(line)}


def _is_ours(descriptor: int) -> bool:
    """Return True if the open file is a regular file that only this user or root can write."""
    found = os.fstat(descriptor)
    owned = found.st_uid in (0, os.geteuid())
    return stat.S_ISREG(found.st_mode) and owned and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
