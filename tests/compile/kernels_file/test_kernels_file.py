"""Compiled kernels in one file: what is written is read, and what is damaged or strange is not believed."""

from __future__ import annotations

import json
import multiprocessing
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.kernels_file import KernelsFile, MadeFor, write_kernels
from genkern.errors import InputError
from genkern.gemm.records import Binary, Outcome, Resources
from genkern.kernels.kernel import KernelSpec, Target

MADE_FOR = MadeFor.here(Target("cuda", 90, 32), "3.7.1")
KEYS = [f"{number:064x}" for number in range(20)]
REFUSED = "ff" * 32


@pytest.fixture
def cache(hostile_path: Path) -> BinaryCache:
    """Twenty binaries and a kernel that is refused."""
    cache = BinaryCache(hostile_path / "cache")
    for number, key in enumerate(KEYS):
        spec = KernelSpec(f"kernel_{number}", "", (), (), (), ())
        files = {"kernel.cubin": bytes([number]) * 1000, "kernel.json": json.dumps({"name": f"k{number % 3}"}).encode()}
        cache.put(key, spec, f"kernel_{number}", Resources(registers=number), files)
    cache.put_failure(Failure(REFUSED, Outcome.COMPILE_FAILED, "too many registers"))
    return cache


@pytest.fixture
def path(cache: BinaryCache, hostile_path: Path) -> str:
    """All of the cache as a file."""
    path = str(hostile_path / "all.kernels")
    length = write_kernels(path, {key: cache.files(key) for key in (*KEYS, REFUSED)}, MADE_FOR)
    assert length == Path(path).stat().st_size
    return path


def test_a_cold_cache_finds_all_that_is_in_the_file(cache: BinaryCache, path: str, hostile_path: Path) -> None:
    """Each entry comes when it is asked for, whole, and stays; a kernel that is refused is known to be."""
    kernels = KernelsFile(path)
    cold = BinaryCache(hostile_path / "cold", kernels)
    assert len(kernels) == len(KEYS) + 1
    assert kernels.made_for == MADE_FOR
    for key in KEYS:
        assert cold.offers(key)
        assert not cold.path(key).exists()
        expected = replace(cache.get(key), path=str(cold.path(key)))  # type: ignore[type-var]
        assert cold.get(key) == expected
        assert cold.files(key) == cache.files(key)
    assert cold.get(REFUSED) == Failure(REFUSED, Outcome.COMPILE_FAILED, "too many registers")
    assert not cold.offers("ab" * 32)
    assert cold.get("ab" * 32) is None
    alone = BinaryCache(hostile_path / "cold")
    assert [alone.get(key) for key in KEYS] == [cold.get(key) for key in KEYS]
    assert not any(cold.folder.joinpath(".unborn").iterdir())


def test_equal_kernels_make_equal_files(cache: BinaryCache, path: str, hostile_path: Path) -> None:
    """Whenever and in whatever order they are written."""
    again = str(hostile_path / "again.kernels")
    write_kernels(again, {key: cache.files(key) for key in (REFUSED, *reversed(KEYS))}, MADE_FOR)
    assert Path(again).read_bytes() == Path(path).read_bytes()


def test_the_time_of_a_compile_is_not_in_the_file(hostile_path: Path) -> None:
    """Equal kernels make equal files on machines of other speed."""
    written = []
    for compile_s in (0.5, 0.7):
        cache = BinaryCache(hostile_path / f"cache {compile_s}")
        spec, files = KernelSpec("kernel", "", (), (), (), ()), {"kernel.cubin": b"code", "kernel.json": b"{}"}
        cache.put(KEYS[0], spec, "kernel", Resources(), files, compile_s)
        path = hostile_path / f"{compile_s}.kernels"
        write_kernels(str(path), {KEYS[0]: cache.files(KEYS[0])}, MADE_FOR)
        written.append(path.read_bytes())
        found = BinaryCache(hostile_path / f"cold {compile_s}", KernelsFile(str(path))).get(KEYS[0])
        assert isinstance(found, Binary)
        assert found.symbol == "kernel"
    assert written[0] == written[1]


def test_no_flipped_bit_is_more_than_a_missing_kernel(hostile_path: Path) -> None:
    """Of a small file, each bit of each header, and some of its contents: the file is refused in one line, or its
    kernels are as they were or missing.
    """
    key, written = KEYS[0], BinaryCache(hostile_path / "cache")
    files = {"kernel.cubin": b"code", "kernel.json": b"{}"}
    written.put(key, KernelSpec("kernel", "", (), (), (), ()), "kernel", Resources(), files)
    path, damaged = hostile_path / "one.kernels", hostile_path / "damaged.kernels"
    write_kernels(str(path), {key: written.files(key)}, MADE_FOR)
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        starts, directory = [info.header_offset for info in archive.infolist()], archive.start_dir
    headers = [at for start in starts for at in range(start, start + 36)]
    contents = range(60, directory, 60)
    refused = missing = 0
    for at in sorted({*headers, *contents, *range(directory, len(data))}):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            damaged.write_bytes(changed)
            try:
                found = KernelsFile(str(damaged)).files(key)
            except InputError:
                refused += 1
                continue
            missing += found is None
            assert found in (None, written.files(key))
    assert refused
    assert missing


def test_an_entry_that_is_damaged_in_the_cache_is_taken_from_the_file(
    cache: BinaryCache, path: str, hostile_path: Path
) -> None:
    """As if it were not there."""
    damaged = BinaryCache(cache.folder, KernelsFile(path))
    (cache.path(KEYS[0]) / "kernel.cubin").write_bytes(b"cut")
    assert cache.get(KEYS[0]) is None
    assert damaged.get(KEYS[0]) is not None
    assert cache.get(KEYS[0]) is not None


def rewritten(path: str, member: str, change: bytes) -> str:
    """The same file with other contents of one member."""
    other = f"{path}.other"
    with zipfile.ZipFile(path) as read, zipfile.ZipFile(other, "w", zipfile.ZIP_LZMA) as archive:
        for name in read.namelist():
            archive.writestr(name, change if name == member else read.read(name))
    return other


def test_a_damaged_member_costs_its_kernels_only(path: str, hostile_path: Path) -> None:
    """They are compiled: no byte of them reaches the cache."""
    data = bytearray(Path(path).read_bytes())
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("block_0").header_offset
    data[start + 60 : start + 90] = bytes(30)
    Path(path).write_bytes(data)
    cold = BinaryCache(hostile_path / "cold", KernelsFile(path))
    found = [key for key in (*KEYS, REFUSED) if cold.get(key) is not None]
    assert len(found) == len(KEYS) + 1 - 8
    assert len(list(cold.folder.glob("??/*"))) == len(found)


@pytest.mark.parametrize(
    "block",
    [
        b"[]\n",
        b"not JSON",
        json.dumps({KEYS[0]: {"../../../evil": 4}}).encode() + b"\nevil",
        json.dumps({KEYS[0]: {"genkern.json": -1}}).encode() + b"\n",
        json.dumps({KEYS[0]: {"genkern.json": 10**9}}).encode() + b"\n{}",
        json.dumps({KEYS[0]: {"genkern.json": 2}}).encode() + b"\n{}",
        json.dumps({KEYS[0]: 7}).encode() + b"\n",
    ],
)
def test_a_block_without_sense_has_nothing(block: bytes, path: str, hostile_path: Path) -> None:
    """Nor does it write anywhere."""
    with zipfile.ZipFile(path) as archive:
        blocks = json.loads(archive.read("index.json"))["blocks"]
    number = next(number for number, keys in enumerate(blocks) if KEYS[0] in keys)
    cold = BinaryCache(hostile_path / "cold", KernelsFile(rewritten(path, f"block_{number}", block)))
    before = set(hostile_path.rglob("*"))
    assert cold.get(KEYS[0]) is None
    assert set(hostile_path.rglob("*")) == before


def test_an_entry_under_another_key_is_not_believed(path: str, hostile_path: Path) -> None:
    """A record says whose it is."""
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if KEYS[1].encode() in archive.read(name)[:4000])
        swapped = archive.read(name).replace(KEYS[1].encode(), b"\0" * 64, 1).replace(b"\0" * 64, b"ee" * 32, 1)
        index = archive.read("index.json").replace(KEYS[1].encode(), b"ee" * 32)
    other = rewritten(rewritten(path, name, swapped), "index.json", index)
    cold = BinaryCache(hostile_path / "cold", KernelsFile(other))
    assert cold.offers("ee" * 32)
    assert cold.get("ee" * 32) is None


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (b"", "is not a file of compiled kernels"),
        (b"- {M: 1}\n", "is not a file of compiled kernels"),
        (None, "no such file; `genkern kernels -o FILE` writes one"),
        ({"schema": 7}, "is of another version of genkern .schema 7"),
        ({"schema": 1, "made_for": {"target": "cuda 90"}, "blocks": []}, "is not a file of compiled kernels"),
        ({"schema": 1, "made_for": {}, "blocks": 3}, "is not a file of compiled kernels"),
        ([1], "is not a file of compiled kernels"),
    ],
)
def test_what_is_no_such_file_is_refused(contents: object, said: str, hostile_path: Path) -> None:
    """In one line that says what to try."""
    path = hostile_path / "strange.kernels"
    if isinstance(contents, bytes):
        path.write_bytes(contents)
    elif contents is not None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("index.json", json.dumps(contents))
    with pytest.raises(InputError, match=said):
        KernelsFile(str(path))
    with pytest.raises(InputError, match="is a folder"):
        KernelsFile(str(hostile_path))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"target": "hip gfx942"}, "it is for hip gfx942, this run for cuda 90: none of its kernels fit"),
        ({"triton": "3.6.0"}, "made with Triton 3.6.0, here 3.7.1: the kernels made with it are not found"),
        ({"lowering": "other"}, "made with another version of genkern: the kernels made with it are not found"),
        ({"environment": "TRITON_X=1"}, "made with other settings of Triton: the kernels made with it are not found"),
        (
            {"triton": "3.6.0", "cute": "1.0"},
            f"made with Triton 3.6.0, here 3.7.1 and CuTe DSL 1.0, here {MADE_FOR.cute}: "
            "the kernels made with it are not found",
        ),
    ],
)
def test_what_it_was_made_for_is_compared(changes: dict[str, str], said: str) -> None:
    """A run says it where kernels of the file will not be found."""
    assert replace(MADE_FOR, **changes).mismatch(MADE_FOR) == said


def read(kernels: KernelsFile, keys: list[str], found: multiprocessing.SimpleQueue[int]) -> None:
    found.put(sum(kernels.files(key) is not None for _ in range(20) for key in keys))


def test_processes_that_were_forked_read_at_the_same_time(path: str) -> None:
    """As drivers of several devices do, with a file that is open already."""
    fork = multiprocessing.get_context("fork")
    kernels, found = KernelsFile(path), fork.SimpleQueue()
    processes = [fork.Process(target=read, args=(kernels, KEYS[start::2], found)) for start in range(2)]
    for process in processes:
        process.start()
    read(kernels, KEYS[:10], found)
    for process in processes:
        process.join()
    assert [found.get() for _ in range(3)] == [200] * 3
