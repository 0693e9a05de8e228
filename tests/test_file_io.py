from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from genkern.errors import InputError, OutputError, ResultsError
from genkern.file_io import read_text, require_writable, write_whole


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text
    assert "\n" not in text
    return text


def test_written_text_is_read_back(tmp_path: Path) -> None:
    """What is written is what is read, in folders that did not exist, with names that need quoting."""
    path = tmp_path / "a b" / "it's\n" / "out.yaml"
    write_whole(str(path), "M: 1 é\n")
    assert read_text(str(path)) == "M: 1 é\n"
    assert os.listdir(path.parent) == ["out.yaml"]


def test_relative_path_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare file name is written to the current folder."""
    monkeypatch.chdir(tmp_path)
    write_whole("out.csv", "x")
    assert (tmp_path / "out.csv").read_text() == "x"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody may ever write to it; one that a shell connects has a number."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is a pipe"):
        read_text(str(tmp_path / "pipe"))
    with pytest.raises(InputError, match="a device"):
        read_text("/dev/zero")
    assert read_text("/dev/null") == ""
    reader, writer = os.pipe()
    os.write(writer, b"text")
    os.close(writer)
    assert read_text(f"/dev/fd/{reader}") == "text"
    os.close(reader)


def test_permission_bits_are_kept(tmp_path: Path) -> None:
    """Replacing a file leaves its mode; a new file gets the mode that open() would give."""
    path = tmp_path / "out"
    path.write_text("old")
    path.chmod(0o640)
    write_whole(str(path), "new")
    assert path.stat().st_mode & 0o777 == 0o640
    (tmp_path / "plain").write_text("")
    write_whole(str(tmp_path / "fresh"), "")
    assert (tmp_path / "fresh").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_links_are_followed(tmp_path: Path) -> None:
    """A link stays a link; the file it points to is replaced."""
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_whole(str(tmp_path / "link"), "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """When the disk fills up at any step, the old file is intact, no temporary file stays, the error is one line."""
    path = tmp_path / "out.yaml"
    path.write_text("old")

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(f"genkern.file_io.os.{step}", full)
    with pytest.raises(OutputError) as caught:
        write_whole(str(path), "new")
    assert "No space left" in one_line(caught.value)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.yaml"]


def test_full_device_is_one_line() -> None:
    """A device that takes no byte gives OutputError, and is not replaced by a file."""
    with pytest.raises(OutputError, match="No space left"):
        write_whole("/dev/full", "text")
    assert not os.path.isfile("/dev/full")


def test_interrupt_removes_the_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control-C during the write passes through and leaves no temporary file."""

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("genkern.file_io.os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(str(tmp_path / "out"), "text")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["", "file/below", "bad\0name", "x" * 300])
def test_impossible_targets_are_one_line(tmp_path: Path, name: str) -> None:
    """A folder, a file in the way, a NUL or an overlong name: OutputError in one line."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError) as caught:
        write_whole(f"{tmp_path}/{name}", "text")
    one_line(caught.value)


def test_permission_error_names_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that may not be written to gives OutputError with the path and the reason."""
    original = open

    def refused(path: object, mode: str = "r", *args: object, **kwargs: object) -> object:
        if "x" in mode:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return original(path, mode, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", refused)
    with pytest.raises(OutputError) as caught:
        write_whole(str(tmp_path / "out"), "text")
    assert f"{tmp_path}/out (Permission denied)" in one_line(caught.value)


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"\xff\xfeM\0", "UTF-8"), (b"ab\xe9", "byte 2"), (b"a\0b", "NUL"), (b"x" * 101, "longer than 100 bytes")],
)
def test_unusable_content_is_one_line(tmp_path: Path, data: bytes, expected: str) -> None:
    """UTF-16, Latin-1, binary and overlong files are refused with the reason."""
    path = tmp_path / "in"
    path.write_bytes(data)
    with pytest.raises(InputError, match=expected):
        read_text(str(path), max_bytes=100)


@pytest.mark.parametrize("name", ["missing", "", "bad\0name", "new\nline"])
def test_unreadable_paths_raise_the_given_error(tmp_path: Path, name: str) -> None:
    """A missing file, a folder and an impossible name raise the caller's error in one line."""
    with pytest.raises(ResultsError) as caught:
        read_text(f"{tmp_path}/{name}", ResultsError)
    one_line(caught.value)


def test_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    """A UTF-8 byte order mark is not part of the text."""
    (tmp_path / "in").write_bytes(b"\xef\xbb\xbfM,N,K")
    assert read_text(str(tmp_path / "in")) == "M,N,K"


def test_what_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    """A folder, a path below a file, a place where nothing can be made; nothing is written to find out."""
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("no/such/folder/file")
    for path in ("file", "new", "no/such/folder/file", "link"):
        require_writable(str(tmp_path / path))
    require_writable("/dev/null")
    for path in (str(tmp_path), str(tmp_path / "file" / "x"), "/proc/no/x", "a\0b"):
        with pytest.raises(OutputError, match="cannot write"):
            require_writable(path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
    assert (tmp_path / "file").read_text() == "old"
