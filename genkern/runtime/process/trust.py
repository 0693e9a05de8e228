"""Trust: which bundles a process may load. A bundle's own digest shows damage; whoever changes one can change that."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection

from genkern.errors import ResultsError
from genkern.files import shown_path


def require_ours(path: str) -> None:
    """Raise ResultsError unless nobody but this user, or root, can have written the file, which nobody has named.

    Nor may others write to its folder, unless they can add files of their own alone (as to /tmp).
    """
    folder = os.path.dirname(os.path.abspath(path))
    for place in (folder, path):
        found = os.stat(place)
        reason = ""
        if found.st_uid not in (0, os.geteuid()):
            reason = "belongs to another user"
        elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (place == folder and found.st_mode & stat.S_ISVTX):
            reason = "can be written by others (chmod go-w)"
        if reason:
            raise ResultsError(
                f"{shown_path(place)} {reason}: no bundle in it is used unless GENKERN_CONFIG names it"
                if place == folder
                else f"{shown_path(place)} {reason}: it is not used unless GENKERN_CONFIG names it"
            )


def require_pinned(data: bytes, pins: Collection[str], where: str) -> None:
    """Raise ResultsError for a bundle that has none of these sha256; without any, all may be used."""
    if pins and (digest := hashlib.sha256(data).hexdigest()) not in pins:
        raise ResultsError(f"{where} has sha256 {digest}, which GENKERN_BUNDLE_SHA256 does not list")
