"""A cache that several users share: umask and setgid decide who reads and writes, and nobody runs another's code."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from command import run_here
from other_users import FIRST, SECOND, as_user, folder_of_the_group, needs_root

from genkern.compile.binary.code_object import code_sha256
from genkern.compile.cache import BinaryCache, Failure, _sealed
from genkern.compile.cache_entries import IN_USE_S, entries, entries_to_remove
from genkern.gemm.records import Binary, Outcome, Resources
from genkern.journal.run_folder import modules_folder
from genkern.kernels.kernel import KernelSpec
from genkern.private_folders import is_private, private_subfolder, replacement_risk

KEYS = ["ab" + f"{number:062x}" for number in range(4)]
SPEC = KernelSpec("f", "cd" * 32, (("a_ptr", "*bf16"),), (), (), ())
FILES = {"kernel.cubin": b"code", "kernel.json": b"{}"}


@pytest.fixture
def shared() -> Iterator[Path]:
    with folder_of_the_group() as folder:
        yield folder


def put(folder: Path, key: str, own: Path | None = None) -> str:
    """Store an entry; returns its folder."""
    return BinaryCache(folder, own=own).put(key, SPEC, "f", Resources(), FILES).path


def got(folder: Path, key: str, own: Path | None = None) -> str | None:
    """The folder of an entry, as it is found."""
    found = BinaryCache(folder, own=own).get(key)
    return found.path if isinstance(found, Binary) else None


@needs_root
def test_two_users_share_a_cache(shared: Path) -> None:
    """Each reads what the other has stored, replaces what is damaged and removes what is not needed."""
    cache = shared / "binaries"
    first = as_user(FIRST, lambda: put(cache, KEYS[0]))
    assert as_user(SECOND, lambda: got(cache, KEYS[0])) == first
    assert as_user(SECOND, lambda: put(cache, KEYS[1])) == str(BinaryCache(cache).path(KEYS[1]))
    assert as_user(FIRST, lambda: got(cache, KEYS[1])) is not None
    (Path(first) / "kernel.cubin").write_bytes(b"damaged")
    assert as_user(SECOND, lambda: got(cache, KEYS[0])) is None
    assert as_user(SECOND, lambda: put(cache, KEYS[0])) == first
    assert as_user(FIRST, lambda: got(cache, KEYS[0])) == first
    assert as_user(FIRST, lambda: [each.refused for each in entries(cache)]) == [False, False]
    assert as_user(FIRST, lambda: BinaryCache(cache).remove(KEYS[1]))
    assert not BinaryCache(cache).path(KEYS[1]).exists()


@needs_root
@pytest.mark.parametrize(("umask", "folder", "file"), [(0o002, 0o2775, 0o664), (0o022, 0o2755, 0o644)])
def test_umask_and_setgid_decide_the_modes(shared: Path, umask: int, folder: int, file: int) -> None:
    """As of everything else that a user makes there."""
    made = Path(as_user(FIRST, lambda: put(shared / "binaries", KEYS[0]), umask))
    assert {stat.S_IMODE(each.stat().st_mode) for each in (made, made.parent, made.parent.parent)} == {folder}
    assert {stat.S_IMODE(each.stat().st_mode) for each in made.iterdir()} == {file}
    assert {each.stat().st_gid for each in (made, *made.iterdir())} == {shared.stat().st_gid}


@needs_root
def test_a_cache_that_another_user_can_only_read(shared: Path) -> None:
    """What it has is used; what it lacks is kept in the user's own cache, and found there by the next run."""
    cache = shared / "binaries"
    first = as_user(FIRST, lambda: put(cache, KEYS[0]), 0o022)
    with folder_of_the_group(0o700, SECOND) as own:
        assert as_user(SECOND, lambda: got(cache, KEYS[0], own)) == first
        kept = as_user(SECOND, lambda: put(cache, KEYS[1], own))
        assert Path(kept).is_relative_to(own)
        assert as_user(SECOND, lambda: got(cache, KEYS[1], own)) == kept
        assert as_user(SECOND, lambda: str(BinaryCache(cache, own=own).kept_elsewhere)) == str(own)
        assert as_user(FIRST, lambda: BinaryCache(cache).kept_elsewhere) is None
        refused = Failure(KEYS[2], Outcome.COMPILE_FAILED, "no")
        as_user(SECOND, lambda: BinaryCache(cache, own=own).put_failure(refused))
        assert as_user(SECOND, lambda: BinaryCache(cache, own=own).get(KEYS[2]) == refused)


@needs_root
def test_entries_that_a_umask_hides_are_counted(shared: Path) -> None:
    """An entry that cannot be read is compiled again, and is no reason to say that the cache is empty."""
    cache = shared / "binaries"
    as_user(FIRST, lambda: put(cache, KEYS[0]), 0o002)
    Path(as_user(FIRST, lambda: put(cache, KEYS[1]), 0o002)).chmod(0o700)
    assert as_user(SECOND, lambda: [each.readable for each in entries(cache)]) == [True, False]
    with folder_of_the_group(0o700, SECOND) as own:
        assert as_user(SECOND, lambda: got(cache, KEYS[1], own)) is None
        assert Path(as_user(SECOND, lambda: put(cache, KEYS[1], own))).is_relative_to(own)


@needs_root
def test_modules_lie_where_no_other_user_can_change_them(shared: Path, tmp_path: Path) -> None:
    """Whatever others have made in a shared cache, and whoever owns a folder on the way to it."""
    (shared / "modules").mkdir(mode=0o777)
    (shared / "modules").chmod(0o777)

    def made() -> list[object]:
        with modules_folder(shared) as folder:
            return [str(folder), stat.S_IMODE(folder.stat().st_mode), replacement_risk(folder)]

    for user in (FIRST, SECOND):
        folder, mode, said = as_user(user, made)
        assert not Path(folder).is_relative_to(shared)
        assert (mode, said) == (0o700, "")
    with folder_of_the_group(0o755, FIRST) as own:
        assert as_user(FIRST, lambda: is_private(own / "modules"))
        assert not as_user(SECOND, lambda: is_private(own / "modules"))
        (own / "binaries").mkdir(mode=0o777)
        (own / "binaries").chmod(0o777)
        assert "binaries can be written by others" in as_user(FIRST, lambda: replacement_risk(own / "binaries"))


@needs_root
def test_packed_results_of_a_shared_cache_are_kept_apart(shared: Path) -> None:
    """A bundle that another user has put into the cache is not taken for one's own."""
    with folder_of_the_group(0o755, SECOND) as own:

        def place() -> str:
            os.environ["XDG_CACHE_HOME"] = str(own)
            return str(private_subfolder(shared, "bundles"))

        assert as_user(SECOND, place) == str(own / "genkern-private" / "bundles")


def test_a_time_in_the_future_is_now(tmp_path: Path) -> None:
    """An entry that a wrong clock has marked is not for ever in use: it grows old from the first look on."""
    cache, now_s = BinaryCache(tmp_path / "binaries"), time.time()
    for key in KEYS[:2]:
        put(cache.folder, key)
        for path in cache.path(key).iterdir():
            os.utime(path, (now_s + 1e9, now_s + 1e9))
    assert cache.get(KEYS[0]) is not None
    assert all(each.used_s <= time.time() for each in entries(cache.folder))
    later_s = time.time() + IN_USE_S + 60
    assert {each.key for each in entries_to_remove(entries(cache.folder), later_s, 0, None)} == set(KEYS[:2])
    (abandoned := cache.unborn("x")).joinpath("file").touch()
    os.utime(abandoned, (now_s + 1e9, now_s + 1e9))
    cache.remove_abandoned()
    assert abandoned.stat().st_mtime <= time.time()


def test_the_command_counts_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`genkern cache` of a folder whose entries have times in the future."""
    put(tmp_path / "binaries", KEYS[0])
    os.utime(BinaryCache(tmp_path / "binaries").path(KEYS[0]) / "genkern.json", (2e10, 2e10))
    done = run_here(capsys, "cache", "--cache_dir", tmp_path)
    assert "1 kernels" in done.out
    assert "up to 0.0 days" in done.out


def cubin(text: bytes) -> bytes:
    """An ELF file with a section of machine code."""
    names = b"\0.text.f\0.shstrtab\0"
    head = 64
    sections = [(0, 0, 0), (1, head, len(text)), (9, head + len(text), len(names))]
    table = head + len(text) + len(names)
    body = b"\x7fELF\x02\x01".ljust(16, b"\0")
    body += (2).to_bytes(2, "little") + (190).to_bytes(2, "little") + bytes(4) + bytes(16)
    body += table.to_bytes(8, "little") + bytes(4) + (64).to_bytes(2, "little") + bytes(4)
    body += (64).to_bytes(2, "little") + (3).to_bytes(2, "little") + (2).to_bytes(2, "little")
    body += text + names
    for name, offset, size in sections:
        body += name.to_bytes(4, "little") + bytes(20) + offset.to_bytes(8, "little") + size.to_bytes(8, "little")
        body += bytes(24)
    return body


def test_the_digest_of_code_is_computed_from_the_bytes(tmp_path: Path) -> None:
    """An entry whose binary was changed, and whose record was sealed anew, does not keep the digest of the old code."""
    cache, code = BinaryCache(tmp_path), cubin(b"right" * 8)
    assert code_sha256(code) not in (None, code_sha256(cubin(b"wrong" * 8)))
    needs = Resources(registers=3, code_sha256=code_sha256(code))
    cache.put(KEYS[0], SPEC, "f", needs, {**FILES, "kernel.cubin": code})
    assert isinstance(found := cache.get(KEYS[0]), Binary)
    assert found.resources == needs
    path = cache.path(KEYS[0])
    (path / "kernel.cubin").write_bytes(poisoned := cubin(b"wrong" * 8))
    record = json.loads((path / "genkern.json").read_bytes())
    del record["seal"]
    record["sha256"]["kernel.cubin"] = hashlib.sha256(poisoned).hexdigest()
    (path / "genkern.json").write_bytes(_sealed(record))
    assert cache.get(KEYS[0]) is None
    assert cache.is_damaged(KEYS[0])
    record["resources"]["code_sha256"] = None
    (path / "genkern.json").write_bytes(_sealed(record))
    assert isinstance(found := cache.get(KEYS[0]), Binary)
    assert found.resources == replace(needs, code_sha256=code_sha256(poisoned))


def test_a_read_only_file_system_is_read(tmp_path: Path) -> None:
    """For root too, whom permissions do not keep out."""
    cache = tmp_path / "binaries"
    put(cache, KEYS[0])
    done = subprocess.run(["mount", "--bind", "-o", "ro", cache, cache], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("this user may not mount a file system")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", cache], check=True, capture_output=True)
        assert got(cache, KEYS[0], tmp_path / "own") is not None
        assert Path(put(cache, KEYS[1], tmp_path / "own")).is_relative_to(tmp_path / "own")
    finally:
        subprocess.run(["umount", "-l", cache], check=True)
