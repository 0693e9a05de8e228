"""`genkern cache` as a user meets it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from command import run_here

from genkern.compile.cache import BinaryCache, Failure
from genkern.gemm.records import Outcome, Resources
from genkern.kernels.kernel import KernelSpec

SPEC = KernelSpec("matmul", "cd" * 32, (), (), (), ())
KEYS = [f"{number:02x}" * 32 for number in range(1, 5)]


@pytest.fixture
def cache(hostile_path: Path) -> BinaryCache:
    """Three kernels of 1 MiB, used 30 days, 10 days and a minute ago, and a refused one of 20 days ago."""
    cache = BinaryCache(hostile_path / "binaries")
    for key, days in zip(KEYS, (30, 10, 0.001, 20), strict=True):
        if key == KEYS[3]:
            cache.put_failure(Failure(key, Outcome.COMPILE_FAILED, "no"))
        else:
            cache.put(key, SPEC, "matmul", Resources(), {"kernel.cubin": bytes(2**20)})
        then = time.time() - days * 86_400
        for file in cache.path(key).iterdir():
            os.utime(file, (then, then))
    return cache


def left(cache: BinaryCache) -> list[str]:
    return [key for key in KEYS if cache.path(key).exists()]


def test_a_listing_of_the_cache_removes_nothing(cache: BinaryCache, capsys: pytest.CaptureFixture[str]) -> None:
    """And removes nothing."""
    ran = run_here(capsys, "cache", "--cache_dir", cache.folder.parent)
    assert (ran.status, ran.err) == (0, "")
    assert "3 kernels and 1 refused ones, 3." in ran.out
    assert "MiB; not used for up to 30.0 days" in ran.out
    assert left(cache) == KEYS


@pytest.mark.parametrize(
    ("options", "stay", "said"),
    [
        (("--age", "15d"), KEYS[1:3], "2 removed"),
        (("--age", "72h"), KEYS[2:3], "3 removed"),
        (("--trim", "2.5M"), KEYS[1:], "1 removed"),
        (("--trim", "20G"), KEYS, "0 removed"),
        (("--trim", "0"), KEYS[2:3], "note: 1 were used in the last two hours and stay"),
    ],
)
def test_what_is_asked_for_goes(
    options: tuple[str, str], stay: list[str], said: str, cache: BinaryCache, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was used last stays; what is left can be read."""
    ran = run_here(capsys, "cache", "--cache_dir", cache.folder.parent, *options)
    assert (ran.status, ran.err) == (0, "")
    assert said in ran.out
    assert left(cache) == sorted(stay)
    assert all(cache.get(key) is not None for key in stay)


def test_what_is_damaged_goes(cache: BinaryCache, capsys: pytest.CaptureFixture[str]) -> None:
    """A bit is enough."""
    path = cache.path(KEYS[0]) / "kernel.cubin"
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    ran = run_here(capsys, "cache", "--cache_dir", cache.folder.parent, "--verify")
    assert (ran.status, ran.err) == (0, "")
    assert "1 of 4 are damaged, and go" in ran.out
    assert left(cache) == KEYS[1:]


def test_what_cannot_be_removed_is_said(
    cache: BinaryCache, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the folder of somebody else, say."""

    def refuse(source: object, target: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "rename", refuse)
    ran = run_here(capsys, "cache", "--cache_dir", cache.folder.parent, "--age", "15d")
    assert ran.status == 1
    assert "note: 2 could not be removed" in ran.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--trim", "20"), "'20' is not a size such as 500M or 20G"),
        (("--trim", "20 GB"), "'20 GB' is not a size such as 500M or 20G"),
        (("--age", "30"), "'30' is not a time such as 12h, 30d or 8w"),
        (("--cache_dir", "/nowhere"), "/nowhere/binaries: there are no compiled kernels here"),
    ],
)
def test_what_cannot_be_done_is_refused(
    options: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line."""
    assert said in run_here(capsys, "cache", *options).refusal
