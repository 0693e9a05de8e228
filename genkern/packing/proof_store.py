"""ProofStore: proofs of a bundle's calls, kept as they are made, so that a pack that was stopped goes on."""

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
from genkern.runtime.packed import PackedCall, PackedWinner
from genkern.timing.session import Session

# The file's name in the cache folder.
PROOFS = "proofs.txt"
_LINE = re.compile(rb"[0-9a-f]{64}")
# A proof takes 66 bytes; a longer file is read up to here.
_MOST_BYTES = 2**26
# Neither a link nor a pipe of somebody else's is followed or waited for.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK


class ProofStore:
    """The proofs in the file `path`, a line each: the digest of all that the proof depends on.

    Only passed checks are kept: a failed one may be the fault of the machine, and is cheap to repeat. Lines of a file
    that another user owns or can write are not believed. Nothing is raised if the file cannot be read or written:
    the calls are proved again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = _read(path)

    def has(self, key: str) -> bool:
        """Return whether a check with this key has passed."""
        return key in self._known

    def add(self, key: str) -> None:
        """Append the key of a check that has passed."""
        if key in self._known:
            return
        self._known.add(key)
        try:
            descriptor = os.open(
                self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
            )
        except OSError:
            return
        try:
            if _is_ours(descriptor):
                # The line break ahead ends a line that a killed process left half written.
                os.write(descriptor, f"\n{key}\n".encode())
        except OSError:
            pass
        finally:
            os.close(descriptor)


def proof_key(winner: PackedWinner, call: PackedCall, session: Session, binaries: Sequence[bytes]) -> str:
    """Return the SHA-256 of what decides the outcome of a call's check: the bytes of the `binaries` that are launched,
    the launch plan, the problem with the session's M, the device, and the code that makes inputs and reference.
    """
    said = [
        [hashlib.sha256(image).hexdigest() for image in binaries],
        call.plan.to_json(),
        repr(session.problem),
        session.problem.M == winner.problem.M,
        winner.batch_invariant,
        winner.arch,
        winner.device,
        winner.compute_units,
        hashlib.sha256(Path(session.module_path).read_bytes()).hexdigest(),
        _checking_code(),
    ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


@lru_cache(maxsize=1)
def _checking_code() -> str:
    """A digest of the sources of the check."""
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
    """Return whether the open file is a regular one that only this user, or root, can write."""
    found = os.fstat(descriptor)
    owned = found.st_uid in (0, os.geteuid())
    return stat.S_ISREG(found.st_mode) and owned and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
