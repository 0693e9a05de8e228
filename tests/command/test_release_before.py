"""A run that the release before began, and was ended in: the same command goes on, with the sizes that are done."""

from __future__ import annotations

import csv
import json
import re
import shutil
import zlib
from pathlib import Path

import pytest
import yaml
from command import run
from machines import machine
from tiny_space import facts_in, traced

from genkern.formats.kind import read_results
from genkern.gemm.config import Config
from genkern.journal.batch import restored, shortened
from genkern.journal.line import entry_of, journal_line

# Of a file of someone's own, which nobody rewrote: tiled_swapped is what it was called then.
SPACE = """archs: [sm_90]
ops: [a16w16]
rules: []
families:
  - {family: tiled_swapped, BLOCK_SIZE_M: [16, 32], BLOCK_SIZE_N: [64], BLOCK_SIZE_K: [64], num_warps: [4],
     GROUP_SIZE_M: [1, 4], SPLIT_K: [1], num_stages: [2]}
"""
SIZES = "- {'M': 16, 'N': 128, 'K': 256}\n- {'M': 64, 'N': 128, 'K': 256}\n"
CONFIGS = [
    Config("tiled", m, 64, 64, group, 1, 4, 2, reduce="semaphore", swapped=1) for m in (16, 32) for group in (1, 4)
]
TIMES = {config.name: 100.0 + zlib.crc32(config.name.encode()) % 97 for config in CONFIGS}
NAME = re.compile(r"\btiled_(BM\w+)_semaphore_swapped\b")


def name_before(name: str) -> str:
    return NAME.sub(r"tiled_swapped_\1", name)


def line_before(line: bytes) -> bytes:
    """The line of a journal with the names of then, or none; a space had a digest of another text."""
    entry = entry_of(line)
    if entry["fact"] in ("searched", "coded"):
        # Neither the order of a search was kept, nor of which code facts are.
        return b""
    for group in entry["value"] if entry["fact"] == "unfit" else [entry["value"]]:
        if entry["fact"] in ("unfit", "screened", "retimed"):
            group["config"] = shortened(map(name_before, restored(group["config"])))
    value = json.loads(name_before(json.dumps(entry["value"])))
    if entry["fact"] == "header":
        value["genkern"] = "0.1.0"
        del value["generator"]
        value["space"] = {op: {"name": said["name"], "digest": "0" * 16} for op, said in value["space"].items()}
    if entry["fact"] == "started":
        value["pid"] = 1
        del value["generator"]
    return journal_line(entry["fact"], value, entry.get("problem"))


def row_before(row: str) -> str:
    """The row of results with the keys of then."""
    for key in ("'reduce': 'semaphore', ", "'swapped': 1, "):
        assert key in row
        row = row.replace(key, "")
    row = re.sub(r"'source': '[0-9a-f]*', ", "", row)
    return name_before(row).replace("'family': 'tiled'", "'family': 'tiled_swapped'")


@pytest.fixture
def command(tmp_path: Path, cache_dir: Path) -> list[object]:
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / "sizes.yaml").write_text(SIZES)
    files = ["-i", tmp_path / "sizes.yaml", "-o", tmp_path / "r.yaml", "-o2", tmp_path / "c.csv"]
    return [*files, "--space", tmp_path / "space.yaml", "--cache_dir", cache_dir]


def test_a_run_goes_on(command: list[object], tmp_path: Path) -> None:
    """One size is done, the other is screened and timed: of what code nobody wrote down, so it is measured anew.

    Rows and lines of then stay; what is written has the names of today.
    """
    env = machine(tmp_path, gpus=1, faster=TIMES)
    assert run(*command, env=env).status == 0
    results, journal, table = tmp_path / "r.yaml", tmp_path / "r.yaml.journal", tmp_path / "c.csv"
    whole = results.read_text()
    head, first, second = whole.splitlines(keepends=True)
    lines = (tmp_path / "r.yaml.journal.previous").read_bytes().splitlines()
    facts = [entry_of(line) for line in lines]
    last_size = max(entry.get("problem", 0) for entry in facts)
    cut = next(n for n, each in enumerate(facts) if (each.get("problem"), each["fact"]) == (last_size, "checked"))
    then = b"".join(map(line_before, lines[:cut]))
    assert b"tiled_swapped_BM" in then
    for path in tmp_path.glob("r.yaml*"):
        path.unlink()
    journal.write_bytes(then)
    results.write_text(head + row_before(first))
    table.unlink()

    trace = tmp_path / "trace"
    ran = run(*command, env=machine(tmp_path, gpus=1, faster=TIMES, trace=str(trace)))
    assert (ran.status, ran.err) == (0, ""), ran
    screened = [(event["size"], event["event"]) for event in traced(trace) if event["event"].startswith("screen")]
    assert sorted(screened) == sorted(("64x128x256", f"screen {config.name}") for config in CONFIGS)
    assert results.read_text() == head + row_before(first) + second
    assert {row.config for row in read_results(str(results))} <= set(CONFIGS)
    entry = yaml.safe_load(results.read_text())[1]
    assert (entry["family"], entry["swapped"], entry["reduce"]) == ("tiled", 1, "semaphore")
    assert entry["config"] == second.partition("'config': '")[2].partition("'")[0]
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["config"] for row in rows} == {config.name for config in CONFIGS}
    previous = (tmp_path / "r.yaml.journal.previous").read_bytes()
    assert previous.startswith(then)
    assert b"_swapped_BM" not in previous.removeprefix(then)
    assert facts_in(tmp_path / "r.yaml.journal.previous").count("screened") == 3 * len(CONFIGS)


def test_status_reads_a_journal_of_the_release_before(command: list[object], tmp_path: Path) -> None:
    """Of a run in the midst, by a journal with the names of then; and --all tunes anew."""
    env = machine(tmp_path, gpus=1, faster=TIMES)
    assert run(*command, env=env).status == 0
    previous, results = tmp_path / "r.yaml.journal.previous", tmp_path / "r.yaml"
    said = run("status", results, env=env).out
    previous.write_bytes(b"".join(map(line_before, previous.read_bytes().splitlines())))
    results.write_text("".join(map(row_before, results.read_text().splitlines(keepends=True)[1:])))
    now = run("status", results, env=env)
    assert now.status == 0, now
    assert NAME.search(now.out) or NAME.search(said) is None
    note = run(*command, env=env).out
    assert "2 of 2 sizes are in" in note
    assert "were tuned differently" not in note
    shutil.copy(results, tmp_path / "kept.yaml")
    assert run(*command, "--all", env=env).status == 0
    assert "tiled_swapped" not in results.read_text()
    assert {row.config for row in read_results(str(results))} == {
        row.config for row in read_results(str(tmp_path / "kept.yaml"))
    }
