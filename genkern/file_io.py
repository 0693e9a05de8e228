"""Read files that a user names, and write files atomically: a reader sees the old or the new content."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import re
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from genkern.errors import GenkernError, InputError, OutputError

# A results file of 100,000 sizes has about 220 MB; anything far larger is a wrong path.
MAX_READ_BYTES = 256 * 2**20
_STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,9})")


def cache_folder(named: str | None) -> Path:
    """Return the folder of compiled kernels: `named`, $GENKERN_CACHE_DIR, or genkern in the user's cache folder.

    Raises InputError if it needs a home folder and there is none, and for a path that is not UTF-8.
    """
    default = os.environ.get("GENKERN_CACHE_DIR") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "genkern"
    try:
        folder = Path(named or default).expanduser()
    except RuntimeError:
        raise InputError("there is no home folder for compiled kernels: give --cache_dir DIR") from None
    try:
        os.path.join(_cwd(), folder).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"the cache folder {str(folder)!r} in {_cwd()!r} is not UTF-8, as compilers want it: try --cache_dir"
        ) from None
    return folder


def import_file(file: Path, name: str) -> ModuleType:
    """Run a user's Python file as the module `name`. Raises what the file raises, and NotRegularError."""
    open(file, "rb", opener=open_regular).close()
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    # Dataclasses look up their module in sys.modules.
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def shown_path(path: str) -> str:
    """Return `path` in a form that fits in a one-line message."""
    return path if path.isprintable() else repr(path)


def printable(text: str) -> str:
    """Return the text with control characters escaped, which a terminal would interpret."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def read_text(path: str, error: type[GenkernError] = InputError, max_bytes: int = MAX_READ_BYTES) -> str:
    """Return the UTF-8 text of `path` without a byte order mark.

    Raises `error` (one line) if the file is missing, unreadable, a folder, longer than `max_bytes` bytes, not UTF-8 or
    binary.
    """
    where, data = shown_path(path), read_bytes(path, error, max_bytes)
    # UTF-16 text has NUL bytes too, but gets the advice to save it as UTF-8.
    if b"\0" in data and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise error(f"{where}: contains NUL bytes, so it is a binary file; name a text file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise error(f"{where}: byte {exc.start} is not UTF-8; save the file as UTF-8 text") from None


def read_bytes(path: str, error: type[GenkernError] = InputError, max_bytes: int = MAX_READ_BYTES) -> bytes:
    """Return the content of `path`. Raises `error` as `read_text` does, except for the encoding."""
    where = shown_path(path)
    # A shell's pipe, <(...), is a descriptor of this process.
    opener = open_regular if own_descriptor(path) is None and path != os.devnull else None
    try:
        with open(path, "rb", opener=opener) as file:
            # Python allocates the requested length at once. Pipes and the like report no size.
            data = file.read(min(os.fstat(file.fileno()).st_size or max_bytes, max_bytes) + 1)
    except FileNotFoundError:
        raise error(f"{where}: no such file; check the path (the current folder is {shown_path(_cwd())})") from None
    except IsADirectoryError:
        raise error(f"{where} is a folder; name a file in it") from None
    except NotRegularError as exc:
        raise error(f"{where} {exc.strerror}: name a file, or /dev/stdin") from None
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise error(f"{where}: cannot be read ({reason}); check the path and its permissions") from None
    if len(data) > max_bytes:
        raise error(f"{where}: longer than {max_bytes} bytes, the limit; split it into several files")
    return data


class NotRegularError(OSError):
    """A pipe, a device or a socket instead of a file: reading may never end, and opening may block forever."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "is a pipe or a device, which may have no end and no writer", path)


def open_regular(path: str, flags: int) -> int:
    """`opener` for open() of paths that a user or the environment names: accepts only regular files and never blocks.

    Raises NotRegularError for a pipe, a device or a socket, and OSError as os.open does.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        # Error of a socket, or of a pipe without a reader.
        raise NotRegularError(path) if error.errno == errno.ENXIO else error from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    raise (
        IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if stat.S_ISDIR(mode)
        else NotRegularError(path)
    )


def regular_bytes(path: str | Path, max_bytes: int | None = None) -> bytes:
    """Return the content of a regular file of at most `max_bytes` (None: no limit).

    Raises OSError if it is longer or cannot be read, and NotRegularError for any other kind of file.
    """
    with open(path, "rb", opener=open_regular) as file:
        if max_bytes is not None and os.fstat(file.fileno()).st_size > max_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read()


def own_descriptor(path: str) -> int | None:
    """Return the descriptor of this process that `path` names, such as /dev/stdout; None for any other path."""
    if path in _STANDARD:
        return _STANDARD[path]
    match = _DESCRIPTOR.fullmatch(path)
    return int(match[1]) if match else None


def is_stream(path: str) -> bool:
    """Return True if `path` is a pipe, a terminal, a device or a descriptor of this process.

    Writes to it cannot be undone.
    """
    mode = _mode(path)
    return own_descriptor(path) is not None or not (mode is None or stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def write_whole(path: str, text: str | Iterable[str]) -> None:
    """Replace `path` atomically by a text (UTF-8), or by the pieces of one.

    A reader sees the old or the new file, also after a crash.

    Creates missing parent folders, follows a link, and keeps an existing file's permission bits. A stream is written
    directly, until its reader leaves. Raises OutputError (one line) if the file cannot be written; the old file is then
    untouched and no temporary file stays.
    """
    pieces = [text] if isinstance(text, str) else text
    _write_pieces(path, (piece.encode("utf-8", errors="backslashreplace") for piece in pieces))


def write_bytes_whole(path: str, data: bytes) -> None:
    """Replace `path` by `data` as `write_whole` does."""
    _write_pieces(path, [data])


def _write_pieces(path: str, pieces: Iterable[bytes]) -> None:
    try:
        if (descriptor := own_descriptor(path)) is not None:
            sys.stdout.flush()
            with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(descriptor), "wb") as file:
                file.writelines(pieces)
            return
        mode = _mode(path)
        if mode is not None and stat.S_ISDIR(mode):
            raise OutputError(f"cannot write {shown_path(path)}: it is a folder; name a file in it")
        if mode is not None and not stat.S_ISREG(mode):
            with contextlib.suppress(BrokenPipeError), open(path, "wb") as file:
                file.writelines(pieces)
            return
        _replace(os.path.realpath(path), pieces, None if mode is None else stat.S_IMODE(mode))
    except OutputError:
        raise
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise OutputError(
            f"cannot write {shown_path(path)} ({reason}); free space or name a folder that you may write to"
        ) from None


def require_absent(path: str, overwrite: bool) -> None:
    """Raise OutputError if `path` exists and `overwrite` is false. Streams and folders are not checked here."""
    if os.path.lexists(path) and not overwrite and not is_stream(path) and not os.path.isdir(path):
        raise OutputError(f"{shown_path(path)} exists; --overwrite replaces it")


def require_start_or_none(path: str, start: str, what: str) -> None:
    """Raise OutputError if `path` exists and does not begin with `start`, as every file of the kind `what` does."""
    head = b""
    if not is_stream(path) and os.path.isfile(path):
        # A file that cannot be read is reported by require_writable.
        with contextlib.suppress(OSError), open(path, "rb", opener=open_regular) as file:
            head = file.read(len(start.encode()))
    if head and head != start.encode():
        raise OutputError(f"{shown_path(path)} exists and holds no {what}: give another file")


def require_writable(path: str) -> None:
    """Raise OutputError if `write_whole` could not replace `path` now. Nothing is written, no folder is created."""
    try:
        if is_stream(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        mode = _mode(path)
        if mode is not None and stat.S_ISDIR(mode):
            raise OutputError(f"cannot write {shown_path(path)}: it is a folder; name a file in it")
        if mode is not None:
            with open(path, "ab", opener=open_regular):
                pass
        folder = os.path.dirname(os.path.realpath(path))
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        # Permission bits say nothing for root or for a read-only file system.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OutputError:
        raise
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise OutputError(f"cannot write {shown_path(path)} ({reason}); name a folder that you may write to") from None


def _replace(target: str, pieces: Iterable[bytes], mode: int | None) -> None:
    folder = os.path.dirname(target)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".genkern-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.writelines(pieces)
            file.flush()
            # Without fsync, a crash of the machine can leave the new name without content.
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _mode(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "gone"
