"""Trust: which bundles a process may load. A bundle's own digest detects damage, not forgery."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection

from genkern.errors import ResultsError
from genkern.file_io import printable, shown_path
from genkern.private_folders import open_own_file
from genkern.runtime.bundles.bundle import MOST_BYTES


def read_trusted_bundle(path: str) -> bytes:
    """Return the content of a bundle that no user has named.

    Raises ResultsError unless only this user or root can have written the file. Its folder must not be writable by
    others either, unless they can only add files of their own (as in /tmp). The file is opened once, so that the file
    that is checked is the file that is read.
    """
    where = shown_path(path)
    try:
        with open_own_file(path) as (descriptor, fault):
            if fault:
                raise ResultsError(f"{printable(fault)}: it is not used unless GENKERN_CONFIG names the bundle")
            with os.fdopen(os.dup(descriptor), "rb") as file:
                data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ResultsError(f"{where}: cannot be read ({error.strerror})") from None
    if len(data) > MOST_BYTES:
        raise ResultsError(f"{where}: longer than {MOST_BYTES} bytes, the limit of a bundle")
    return data


def require_pinned(data: bytes, pins: Collection[str], where: str) -> None:
    """Raise ResultsError if the bundle's sha256 is not among `pins`. Without pins every bundle is accepted."""
    if pins and (digest := hashlib.sha256(data).hexdigest()) not in pins:
        raise ResultsError(f"{where} has sha256 {digest}, which GENKERN_BUNDLE_SHA256 does not list")
