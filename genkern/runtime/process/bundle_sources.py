"""Sources: loads bundles, and results files, which are packed into a bundle once for all processes."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from genkern import __version__
from genkern.errors import GenkernError, OutputError, ResultsError
from genkern.file_io import cache_folder, read_bytes, shown_path, write_bytes_whole
from genkern.gemm.records import CONFIG_WINS
from genkern.gemm.triton_release import installed
from genkern.kernels.cute.release import cute_installed, cute_version
from genkern.private_folders import private_subfolder
from genkern.runtime.bundles.bundle import SUFFIX, Bundle, bundle_bytes, is_bundle, parse_bundle
from genkern.runtime.bundles.shipped_bundles import WORD
from genkern.runtime.process.genkern_command import pack
from genkern.runtime.process.trust import read_trusted_bundle, require_pinned

_LOG = logging.getLogger("genkern")
_LOOK_AGAIN_S = 0.1

# Identifies a state of a file; None if the file does not exist.
_Sign = tuple[int, int, int] | None


class Sources:
    """Loads bundles by their paths. `bundles` and `check` never raise: files that cannot be used are reported.

    Each file is reported to `say` once per state of the file.

    say: logs a line.
    folder: returns the cache folder, in which results files are packed.
    pins: the sha256 of the bundles that may be used; empty means any bundle.
    named: True if a user named the paths. Otherwise only files that no other user can have written are used
        (genkern.runtime.process.trust).
    """

    def __init__(
        self,
        say: Callable[[str], None],
        folder: Callable[[], Path] = lambda: cache_folder(None),
        pins: Collection[str] = (),
        named: bool = True,
    ) -> None:
        self._say = say
        self._folder = folder
        self._pins = pins
        self._named = named
        self._known: dict[str, tuple[_Sign, Bundle | None]] = {}

    def bundles(self, paths: Sequence[str]) -> list[Bundle]:
        """Return the usable bundles in their current state: a file that has changed is read again."""
        places = {os.path.realpath(path): path for path in paths}
        found = (self._bundle(place, path) for place, path in places.items())
        return [bundle for bundle in found if bundle is not None]

    def check(self, paths: Sequence[str]) -> list[Bundle]:
        """Report which files cannot be used, as `bundles` does, without packing results files; return the bundles."""
        results = [path for path in dict.fromkeys(paths) if _is_results(path) and not self._pins]
        for path in results:
            try:
                _require_own_rows(path)
            except (GenkernError, OSError, MemoryError) as error:
                self._say_unused(path, error)
        return self.bundles([path for path in paths if path not in results])

    def _bundle(self, place: str, path: str) -> Bundle | None:
        sign = _sign(place)
        if place in self._known and self._known[place][0] == sign:
            return self._known[place][1]
        bundle = None
        try:
            bundle = self._read(path)
            if self._named:
                self._say_unproved(path, bundle)
        except (GenkernError, OSError, MemoryError) as error:
            self._say_unused(path, error)
        self._known[place] = sign, bundle
        return bundle

    def _say_unused(self, path: str, error: Exception) -> None:
        why = str(error) if isinstance(error, GenkernError) else f"{shown_path(path)}: cannot be read ({error})"
        self._say(f"{why} (other bundles, or PyTorch, serve its sizes)")

    def _read(self, path: str) -> Bundle:
        if not os.path.exists(path):
            raise ResultsError(f"{shown_path(path)}: no such file{_meant(path)}")
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ResultsError(f"{shown_path(path)} is not a file: name a bundle or a results file")
        if is_bundle(path) or not self._named:
            return parse_bundle(self.data(path), shown_path(path))
        if self._pins:
            raise ResultsError(
                f"{shown_path(path)} is no bundle, and GENKERN_BUNDLE_SHA256 allows only the bundles that it lists"
            )
        return self._packed(path)

    def _say_unproved(self, path: str, bundle: Bundle) -> None:
        proved, of = bundle.contents.proofs
        if proved < of:
            how = "verify" if is_bundle(path) else "pack"
            self._say(
                f"{shown_path(path)}: {of - proved} of {of} kernels have no proof for M that were not tuned: "
                f"`genkern {how}` proves them on their GPU, GENKERN_ONLY_PROVED=1 leaves them to the library"
            )

    def data(self, path: str) -> bytes:
        """Return the bytes of a bundle. Raise ResultsError if it cannot be read or may not be used."""
        data = bundle_bytes(path) if self._named else read_trusted_bundle(path)
        require_pinned(data, self._pins, shown_path(path))
        return data

    def _packed(self, path: str) -> Bundle:
        """Return the bundle of a results file, packing it if necessary. Raises ResultsError or OutputError."""
        where, data = shown_path(path), read_bytes(path, ResultsError)
        if not installed("triton"):
            raise ResultsError(f"{where}: packing results needs Triton: pack them elsewhere, and name the bundle")
        # The compilers' versions are part of the name: another release may compile what one could not.
        cute = cute_version() if cute_installed() else ""
        versions = importlib.import_module("triton").__version__, cute, __version__
        kind = ".csv" if path.lower().endswith(".csv") else ".yaml"
        digest = hashlib.sha256(b"\0".join([*(text.encode() for text in (*versions, kind)), data])).hexdigest()
        try:
            folder = private_subfolder(self._folder(), "bundles")
        except OSError as error:
            raise OutputError(f"{where}: cannot be packed ({error.strerror}); set GENKERN_CACHE_DIR") from None
        made = folder / f"{digest[:32]}{SUFFIX}"
        if (known := _whole(made)) is not None:
            return known
        _require_own_rows(path)
        try:
            with _turn(made.with_suffix(".lock"), where):
                # The process that held the lock before may have packed it.
                if (known := _whole(made)) is not None:
                    return known
                # A file at this path is no bundle that may be used, and the command might refuse to replace it.
                made.unlink(missing_ok=True)
                self._pack(where, data, made, made.with_name(f"{digest[:32]}-{os.getpid()}{kind}"))
                # Whatever the umask: other users must not be able to write to it (genkern.runtime.process.trust).
                made.chmod(0o600)
        except OSError as error:
            raise OutputError(f"{where}: cannot be packed in {folder} ({error}); set GENKERN_CACHE_DIR") from None
        return parse_bundle(read_trusted_bundle(str(made)), shown_path(str(made)))

    def _pack(self, where: str, data: bytes, made: Path, copy: Path) -> None:
        """Pack `data`. `copy` is the path for a copy of it, since the results file may change meanwhile."""
        started_s = time.monotonic()
        _LOG.info("%s is packed, once for all processes; `genkern pack` does it beforehand", where)
        log = copy.with_suffix(".log")
        try:
            write_bytes_whole(str(copy), data)
            if pack(copy, made, self._folder(), log):
                self._say(f"{where}: some of its winners could not be packed: `genkern pack` says which")
        except ResultsError as error:
            raise ResultsError(f"{where}: {str(error).replace(str(copy), where)}") from None
        finally:
            for path in (copy, log):
                with contextlib.suppress(OSError):
                    path.unlink()
        _LOG.info("%s was packed in %.1f s", where, time.monotonic() - started_s)


def _require_own_rows(path: str) -> None:
    """Raise ResultsError if the file has no results, or only winners of other libraries' kernels.

    This saves starting `genkern pack` in vain.
    """
    from genkern.files.file_kind import read_results

    rows = read_results(path)
    if not any(row.is_genkerns or row.choice != CONFIG_WINS for row in rows):
        raise ResultsError(f"{shown_path(path)}: none of its {len(rows)} rows is a genkern kernel")


@contextlib.contextmanager
def _turn(lock: Path, where: str) -> Iterator[None]:
    """Hold the lock within the block, waiting for its owner; it is released when a process ends. Raises OSError."""
    from genkern.journal.file_lock import Locked, held

    waits = False
    while True:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(held(lock))
            except Locked:
                if not waits:
                    _LOG.info("%s is being packed by another process", where)
                waits = True
                time.sleep(_LOOK_AGAIN_S)
                continue
            yield
            return


def _is_results(path: str) -> bool:
    return os.path.isfile(path) and not is_bundle(path)


def _meant(path: str) -> str:
    """Return a hint at the file that a wrong path may mean."""
    folder, name = os.path.split(path)
    with contextlib.suppress(OSError):
        names = [each for each in os.listdir(folder or os.curdir) if each.endswith((SUFFIX, ".yaml", ".csv"))]
        if near := difflib.get_close_matches(name, names if folder else [WORD, *names], n=1):
            return f"; did you mean {os.path.join(folder, near[0])}?"
    return "; check the path"


def _whole(path: Path) -> Bundle | None:
    """Return the bundle that genkern itself packed at `path`; None if it is missing or damaged.

    Also None if another user could have written it: the digest in a bundle proves nothing about its author.
    """
    with contextlib.suppress(ResultsError):
        return parse_bundle(read_trusted_bundle(str(path)), shown_path(str(path)))
    return None


def _sign(path: str) -> _Sign:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
