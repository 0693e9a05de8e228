"""Tests of genkern.compile.cache: an entry is whole and right, or it is not there."""

from __future__ import annotations

import dataclasses
import errno
import json
import multiprocessing
import os
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from cached_specs import read_spec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_tests import repeats

from genkern.compile.cache import BinaryCache, Failure, _sealed
from genkern.errors import OutputError
from genkern.gemm.records import Binary, Outcome, Resources
from genkern.kernels.kernel import KernelSpec

KEY = "ab" + "0" * 62
SPEC = KernelSpec(
    "matmul_tiled",
    "cd" * 32,
    (("a_ptr", "*bf16"), ("M", "i32")),
    (("BINARY", "BM64"), ("BLOCK_SIZE_M", 64)),
    (("a_ptr", 16), ("M", 8)),
    (("num_warps", 4), ("schedule_hint", "none")),
)
RESOURCES = Resources(registers=96, spills=0, shared_bytes=16384)
FILES = {"kernel.cubin": bytes(range(256)) * 8, "kernel.json": b'{"name": "matmul_tiled_BM64"}'}


@pytest.fixture
def cache(hostile_path: Path) -> BinaryCache:
    """An empty cache in a folder with an awkward name."""
    return BinaryCache(hostile_path / "binaries")


def put(cache: BinaryCache, key: str = KEY) -> Binary:
    """Store the sample entry."""
    return cache.put(key, SPEC, "matmul_tiled_BM64", RESOURCES, FILES)


def test_what_is_put_is_got(cache: BinaryCache) -> None:
    """An entry comes back equal, from this or another object, with its files and the spec it was made from."""
    assert cache.get(KEY) is None
    stored = put(cache)
    assert stored == Binary(KEY, str(cache.path(KEY)), "matmul_tiled_BM64", RESOURCES)
    assert BinaryCache(cache.folder).get(KEY) == stored
    assert {name: (Path(stored.path) / name).read_bytes() for name in FILES} == FILES
    assert read_spec(stored.path) == SPEC
    assert BinaryCache(cache.folder).get("cd" + KEY[2:]) is None


def test_nothing_but_the_entry_is_left(cache: BinaryCache) -> None:
    """Storing leaves no temporary file, and storing again changes nothing."""
    put(cache)
    before = sorted(cache.folder.rglob("*"))
    inode = cache.path(KEY).stat().st_ino
    put(cache)
    assert sorted(cache.folder.rglob("*")) == before
    assert cache.path(KEY).stat().st_ino == inode
    assert len([path for path in before if path.is_file()]) == len(FILES) + 1


@settings(max_examples=repeats(60, 150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_noticed_and_mended(cache: BinaryCache, data: st.DataObject) -> None:
    """An entry with any file cut short, changed in a bit or gone counts as missing, and can be stored again."""
    stored = put(cache)
    folder = cache.path(KEY)
    path = folder / data.draw(st.sampled_from(sorted(os.listdir(folder))))
    content = bytearray(path.read_bytes())
    how = data.draw(st.sampled_from(["cut", "flip", "gone"]))
    if how == "cut":
        path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    elif how == "flip":
        position = data.draw(st.integers(0, 8 * len(content) - 1))
        content[position // 8] ^= 1 << position % 8
        path.write_bytes(content)
    else:
        path.unlink()
    assert cache.get(KEY) is None
    assert put(cache) == stored
    assert cache.get(KEY) == stored


def test_deep_records_are_damage(cache: BinaryCache) -> None:
    """JSON that is nested too deep to be read is no bug of ours."""
    for opening in (b"[", b'{"seal":'):
        put(cache)
        (cache.path(KEY) / "genkern.json").write_bytes(opening * 200_000)
        assert cache.get(KEY) is None


def test_an_entry_under_another_key_is_not_believed(cache: BinaryCache) -> None:
    """Entries that have changed places are each compiled again; those of before keys stood in them are taken."""
    other = "cd" + KEY[2:]
    put(cache)
    cache.put_failure(Failure(other, Outcome.COMPILE_FAILED, "no"))
    first, second = cache.path(KEY), cache.path(other)
    first.rename(first.with_name("aside"))
    second.rename(first)
    first.with_name("aside").rename(second)
    assert cache.get(KEY) is None
    assert cache.get(other) is None
    assert put(cache) == cache.get(KEY)
    path = first / "genkern.json"
    path.write_bytes(_sealed({k: v for k, v in json.loads(path.read_bytes()).items() if k not in ("seal", "key")}))
    assert cache.get(KEY) is not None


@pytest.mark.parametrize("text", ["", "[]", "1", "null", "{}", '{"outcome": null}', '{"seal": 1}'])
def test_foreign_records_count_as_missing(cache: BinaryCache, text: str) -> None:
    """A record that is not genkern's is never an error."""
    put(cache)
    (cache.path(KEY) / "genkern.json").write_text(text)
    assert cache.get(KEY) is None


def test_a_record_of_newer_fields_counts_as_missing(cache: BinaryCache) -> None:
    """An entry that another version of genkern wrote, with resources unknown here, is compiled again."""
    put(cache)
    path = cache.path(KEY) / "genkern.json"
    record = json.loads(path.read_text())
    del record["seal"]
    record["resources"]["new_kind"] = 1
    path.write_bytes(_sealed(record))
    assert cache.get(KEY) is None


def test_entries_from_before_the_digest_are_read(cache: BinaryCache) -> None:
    """An entry without a digest of its code is used as it is; its code is unknown, so it equals no other."""
    put(cache)
    path = cache.path(KEY) / "genkern.json"
    record = json.loads(path.read_text())
    del record["seal"], record["resources"]["code_sha256"]
    path.write_bytes(_sealed(record))
    found = cache.get(KEY)
    assert isinstance(found, Binary)
    assert found.resources == RESOURCES
    assert found.resources.code_sha256 is None


def test_failures_are_remembered(cache: BinaryCache) -> None:
    """A refused kernel is an entry too; a later success does not replace it, since equal keys are equal work."""
    failure = Failure(KEY, Outcome.COMPILE_FAILED, "ValueError: 'quotes' \"and\" \n newlines")
    cache.put_failure(failure)
    assert BinaryCache(cache.folder).get(KEY) == failure
    put(cache)
    assert cache.get(KEY) == failure


def _store_many(folder: str, barrier: Barrier, keys: list[str]) -> None:
    cache = BinaryCache(folder)
    for key in keys:
        barrier.wait(30)
        assert isinstance(put(cache, key), Binary)
        assert isinstance(cache.get(key), Binary)


def test_two_processes_may_store_the_same(cache: BinaryCache) -> None:
    """Processes that store the same key at the same moment both succeed, and one whole entry is there."""
    keys = [f"{number:064x}" for number in range(100)]
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [context.Process(target=_store_many, args=(str(cache.folder), barrier, keys)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert all(cache.get(key) == put(cache, key) for key in keys)
    assert len([path for path in cache.folder.rglob("*") if path.is_file()]) == 100 * (len(FILES) + 1)


def test_what_a_killed_store_left_goes_when_it_is_old(cache: BinaryCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may die between the files of an entry; one that is at it now, on any node, is not disturbed."""

    def die(path: Path, data: bytes) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", die)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    for key in (KEY, "cd" + KEY[2:]):
        with pytest.raises(KeyboardInterrupt):
            put(cache, key)
    monkeypatch.undo()
    unborn = cache.folder / ".unborn"
    old, young = sorted(unborn.iterdir())
    hours_ago = time.time() - 2 * 3600
    os.utime(old, (hours_ago, hours_ago))
    put(cache)
    cache.remove_abandoned()
    assert list(unborn.iterdir()) == [young]
    assert cache.get(KEY) == put(cache)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_full_disk_is_an_output_error(cache: BinaryCache, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A write that fails is one OutputError with the folder, the reason and the option; nothing half stays behind."""

    def full(path: Path, data: bytes) -> int:
        with open(path, "wb") as file:
            file.write(data[:3])
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    for store in (lambda: put(cache), lambda: cache.put_failure(Failure(KEY, Outcome.COMPILE_FAILED, "no"))):
        with pytest.raises(OutputError) as caught:
            store()
        message = str(caught.value)
        assert os.strerror(code) in message
        assert str(cache.folder) in message
        assert "--cache_dir" in message
    assert cache.get(KEY) is None
    assert [path for path in cache.folder.rglob("*") if path.is_file()] == []


def test_full_disk_at_the_first_step(cache: BinaryCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the temporary folder can be made: the same one error."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(OutputError, match="No space left"):
        put(cache)


def test_unusable_folder_is_named(hostile_path: Path) -> None:
    """A cache folder that is a file, or lies below one, is refused at once with the option to change it."""
    (hostile_path / "file").write_text("")
    for folder in (hostile_path / "file", hostile_path / "file" / "below"):
        with pytest.raises(OutputError, match="--cache_dir"):
            BinaryCache(folder)


def test_an_entry_that_cannot_be_replaced_is_named(cache: BinaryCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged entry that does not go away is an OutputError that says which to delete."""
    put(cache)
    (cache.path(KEY) / "kernel.cubin").write_bytes(b"damaged")

    def refuse(source: object, target: object) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OutputError, match=KEY):
        put(cache)


def test_a_damaged_entry_is_replaced_though_a_file_of_it_is_open(
    cache: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS a folder with an open file cannot be emptied: the entry goes out of the way as it is."""
    put(cache)
    (cache.path(KEY) / "kernel.cubin").write_bytes(b"damaged")
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    assert put(cache) == cache.get(KEY)


def test_use_is_noted_by_the_hour(cache: BinaryCache) -> None:
    """An entry's record says when it was used last, with an hour of doubt."""
    put(cache)
    record = cache.path(KEY) / "genkern.json"
    for ago_s, is_marked in ((1800, False), (7200, True)):
        then = time.time() - ago_s
        os.utime(record, (then, then))
        assert cache.get(KEY) is not None
        assert (record.stat().st_mtime > then + 1) == is_marked


def test_what_is_damaged_is_told_from_what_is_gone_and_what_is_anothers(cache: BinaryCache) -> None:
    """Only what is not as it was stored is damaged: not an entry of a genkern with other fields, nor none."""
    assert not cache.is_damaged(KEY)
    put(cache)
    path = cache.path(KEY) / "genkern.json"
    record = json.loads(path.read_text())
    del record["seal"]
    path.write_bytes(_sealed({**record, "resources": {"new_kind": 1}}))
    assert cache.get(KEY) is None
    assert not cache.is_damaged(KEY)
    (cache.path(KEY) / "kernel.json").unlink()
    assert cache.is_damaged(KEY)
    assert cache.remove(KEY)
    assert not cache.path(KEY).exists()
    assert cache.remove(KEY)
    assert list((cache.folder / ".unborn").iterdir()) == []


def test_every_resource_survives(cache: BinaryCache) -> None:
    """Unknown resources stay unknown (None), known ones keep their value, 0 included."""
    known = Resources(0, 1, 2, 3, 4, 5, None, 7)
    for number, resources in enumerate([Resources(), known, dataclasses.replace(known, spills=None)]):
        key = f"{number:064x}"
        cache.put(key, SPEC, "s", resources, FILES)
        found = cache.get(key)
        assert isinstance(found, Binary)
        assert found.resources == resources
