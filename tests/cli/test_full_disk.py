"""Runs that find no room for one of their files: one line, nothing lost, and with room the same command goes on.

No file may grow beyond a limit, or none be written below a folder, which needs no privileges; test_refusals.py has a
small file system, where mounting one is allowed.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import yaml
from command import run
from long_tests import spread
from machines import machine
from tiny_space import FASTER, NAMES, tiny_command, traced

from genkern.compile.cache import BinaryCache

ROWS = (16, 32, 64, 96)
SIZES = "".join(f"- {{'M': {m}, 'N': 128, 'K': 256}}\n" for m in ROWS)
# A generated module has some 14 KB at most, the journal of four sizes 22.
ROOM = {"journal": 16_000, "results": 40_000, "candidates": 40_000, "modules": 4_000}


@pytest.fixture(scope="module")
def undisturbed(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Results and candidates of a run with room enough."""
    folder = tmp_path_factory.mktemp("undisturbed")
    options = ["-o2", folder / "c.csv"]
    ran = run(*tiny_command(folder, cache_dir, SIZES), *options, env=machine(folder, gpus=1, faster=FASTER))
    assert ran.status == 0, ran
    return (folder / "r.yaml").read_text(), (folder / "c.csv").read_text()


def long_before(text: str, row: str) -> str:
    """The file as it is when many other sizes, 5000 and up, are in it already."""
    head, _, rows = text.partition("\n")
    first = rows.splitlines(keepends=True)[0]
    return head + "\n" + "".join(first.replace(row, row.replace("16", str(m))) for m in range(5000, 5500))


@pytest.mark.parametrize("full", spread([*ROOM], 4))
def test_a_full_disk_is_one_line_and_loses_nothing(
    full: str, undisturbed: tuple[str, str], cache_dir: Path, tmp_path: Path
) -> None:
    """The line names the file and the reason; what was measured before is measured once, what was written stays."""
    results, candidates, trace = tmp_path / "r.yaml", tmp_path / "c.csv", tmp_path / "trace"
    before = {
        results: long_before(undisturbed[0], "'M': 16,") if full == "results" else "",
        candidates: long_before(undisturbed[1], "16,128,") if full == "candidates" else "",
    }
    for path, text in before.items():
        if text:
            path.write_text(text)
    command = [*tiny_command(tmp_path, cache_dir, SIZES), "-o2", candidates]
    env = machine(tmp_path, gpus=1, faster=FASTER, trace=str(trace), room=ROOM[full])
    ran = run(*command, env=env)
    named = {"journal": "r.yaml.journal", "results": "r.yaml", "candidates": "c.csv", "modules": "gemm_"}
    assert os.strerror(errno.EFBIG) in ran.refusal
    assert named[full] in ran.refusal
    if before[results]:
        assert results.read_text() == before[results]
    elif results.exists():
        assert 1 <= len(yaml.safe_load(results.read_text())) < len(ROWS)
    again = run(*command, env=machine(tmp_path, gpus=1, faster=FASTER, trace=str(trace)))
    assert (again.status, again.err) == (0, "")
    expected = undisturbed[0].partition("\n")[2] if before[results] else undisturbed[0]
    assert results.read_text() == before[results] + expected
    lines = candidates.read_text().splitlines()
    assert len(lines) == len(set(lines))
    assert set(undisturbed[1].splitlines()) <= set(lines)
    # Lost at most: what the measured process had answered and nobody had read.
    screened = [event for event in traced(trace) if event["event"].startswith("screen")]
    assert len(ROWS) * len(NAMES) <= len(screened) <= len(ROWS) * len(NAMES) + 16


@pytest.mark.parametrize("room", spread([60_000, 0], 2))
def test_no_room_in_the_cache(room: int, undisturbed: tuple[str, str], tmp_path: Path) -> None:
    """No entry can be stored, or only the first few: the line names the cache, and half an entry is none."""
    cache = tmp_path / "cache" / "binaries"
    command = [*tiny_command(tmp_path, cache.parent, SIZES), "--jobs", 1]
    ran = run(*command, env=machine(tmp_path, gpus=1, faster=FASTER, full=[str(cache), room]))
    assert f"cannot write to the cache {cache}: {os.strerror(errno.ENOSPC)}; try --cache_dir" in ran.refusal
    stored = [path.parent for path in cache.rglob("genkern.json")]
    assert bool(stored) == bool(room)
    assert all(BinaryCache(cache).get(entry.name) is not None for entry in stored)
    assert not list((cache / ".unborn").iterdir())
    if not stored:
        return
    again = run(*command, env=machine(tmp_path, gpus=1, faster=FASTER))
    assert (again.status, again.err) == (0, "")
    assert (tmp_path / "r.yaml").read_text() == undisturbed[0]
    assert len({entry.name for entry in stored}) < len(list(cache.rglob("genkern.json")))
