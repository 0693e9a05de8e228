"""Runs on several devices through the whole command: who measures what, and what is said and done when one is lost."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import pytest
from command import Ran, ended, run, start
from long_tests import spread
from machines import machine
from processes import assert_gone, until
from tiny_space import EVERYTHING, FASTER, tiny_command, traced

# In the order of their work, the largest last.
ROWS = (16, 32, 48, 64, 96, 128)
SIZES = "".join(f"- {{'M': {m}, 'N': 128, 'K': 256}}\n" for m in ROWS)


@pytest.fixture(scope="module")
def alone(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The results with one device."""
    folder = tmp_path_factory.mktemp("alone")
    ran = run(*tiny_command(folder, cache_dir, SIZES), env=machine(folder, gpus=1, faster=FASTER))
    assert ran.status == 0, ran
    return (folder / "r.yaml").read_text()


def sizes_of(trace: Path) -> dict[str, list[int]]:
    """The sizes (their M) that each device was given, in the order in which it began them."""
    given: dict[str, dict[int, None]] = defaultdict(dict)
    for event in traced(trace):
        given[event["device"]][int(event["size"].partition("x")[0])] = None
    return {device: list(sizes) for device, sizes in given.items()}


def on_devices(count: int, folder: Path, cache: Path, *options: object, **what: object) -> Ran:
    env = machine(folder, gpus=count, trace=str(folder / "trace"), faster=FASTER, **what)
    return run(*tiny_command(folder, cache, SIZES), "--ngpus", count, *options, env=env)


@pytest.mark.parametrize("count", spread([2, 4], 2))
def test_each_size_has_one_device(count: int, alone: str, cache_dir: Path, tmp_path: Path) -> None:
    """One process a device; all of a size on one; each takes the largest that is left; results as with one.

    What one takes over from another at the end may be larger.
    """
    ran = on_devices(count, tmp_path, cache_dir)
    assert (ran.status, ran.err) == (0, "")
    assert (tmp_path / "r.yaml").read_text() == alone
    given = sizes_of(tmp_path / "trace")
    assert sorted(size for sizes in given.values() for size in sizes) == list(ROWS)
    for sizes in given.values():
        assert sizes[:-1] == sorted(sizes[:-1], reverse=True)
    assert len({event["pid"] for event in traced(tmp_path / "trace")}) == len(given) <= count
    assert "is lost" not in ran.out
    assert_gone(tmp_path)


def test_one_compile_job_serves_all_devices(alone: str, tmp_path: Path) -> None:
    """With --jobs 1 and a cold cache the devices share one compile process, and no compile is lost between them."""
    ran = on_devices(2, tmp_path, tmp_path / "cache", "--jobs", 1)
    assert (ran.status, ran.err) == (0, "")
    # Not by the summary: how many came from the cache hangs on which device had prepared what another took over.
    assert len(list((tmp_path / "cache" / "binaries").glob("*/*/genkern.json"))) == 6
    assert ", 0 refused" in ran.out
    assert (tmp_path / "r.yaml").read_text() == alone


def test_a_free_device_takes_the_next_size(alone: str, cache_dir: Path, tmp_path: Path) -> None:
    """While one device is busy with its size, the other tunes all the rest, largest first.

    At last also the size that the busy one has prepared.
    """
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    env = machine(tmp_path, gpus=2, trace=str(trace), faster=FASTER, gate=[2, str(gate), "0"])
    process = start(*tiny_command(tmp_path, cache_dir, SIZES), "--gpu_ids", "0,1", env=env)
    until(lambda: len(sizes_of(trace).get("1", ())) == len(ROWS) - 1 and "gate" in trace.read_text(), process)
    gate.touch()
    assert ended(process).status == 0
    given = sizes_of(trace)
    assert len(given["0"]) == 1
    assert given["0"][0] in ROWS[-2:]
    *in_turn, taken_over = given["1"]
    assert in_turn == sorted(set(ROWS) - {*given["0"], taken_over}, reverse=True)
    assert (tmp_path / "r.yaml").read_text() == alone


def test_a_lost_device_is_told_and_its_sizes_go_to_the_others(alone: str, cache_dir: Path, tmp_path: Path) -> None:
    """One of two breaks in the middle of a size: one line says which and why, and all sizes are tuned.

    Of what was lost with it only the first config counts as crashed: it may have broken the device.
    """
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    what = {"broken": {"1": 3}, "gate": [1, str(gate), "0"]}
    env = machine(tmp_path, gpus=2, trace=str(trace), faster=FASTER, **what)
    options = [*EVERYTHING, "--ngpus", 2, "-o2", tmp_path / "candidates.csv"]
    command = [*tiny_command(tmp_path, cache_dir, SIZES), *options]
    process = start(*command, env=env)
    until(lambda: [event["event"] for event in traced(trace)].count("fault") > 5, process)
    gate.touch()
    ran = ended(process)
    assert (ran.status, ran.err) == (0, "")
    (line,) = (line for line in ran.out.splitlines() if "is lost" in line)
    assert line.startswith("device 1 is lost, its sizes go to the 1 other device: GPU 1 is broken: 5 measured")
    assert "an illegal memory access was encountered" in line
    faults_s = [event["monotonic_s"] for event in traced(trace) if event["event"] == "fault"]
    print(f"a broken device is given up after {faults_s[-1] - faults_s[0]:.2f} s")
    given = sizes_of(tmp_path / "trace")
    assert set(given["0"]) == set(ROWS)
    with open(tmp_path / "candidates.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(ROWS) * len(FASTER)
    lost = [row for row in rows if row["outcome"] != "measured"]
    assert [(row["M"], row["outcome"]) for row in lost] == [(str(given["1"][-1]), "crashed")]
    fastest = min(FASTER, key=FASTER.__getitem__)
    if lost[0]["config"] != fastest:
        assert (tmp_path / "r.yaml").read_text() == alone
    assert_gone(tmp_path)


def test_without_a_device_left_the_run_ends_and_can_go_on(alone: str, cache_dir: Path, tmp_path: Path) -> None:
    """The first loss is told, the second one ends the run in one line; on sound devices the same command goes on."""
    ran = on_devices(2, tmp_path, cache_dir, broken={"0": 12, "1": 12})
    assert "is broken: 5 measured processes in a row were lost" in ran.refusal
    assert sum("is lost" in line for line in ran.out.splitlines()) == 1
    assert_gone(tmp_path)
    before = len(traced(tmp_path / "trace"))
    resumed = on_devices(2, tmp_path, cache_dir)
    assert (resumed.status, resumed.err) == (0, "")
    screened = [event["event"] for event in traced(tmp_path / "trace")[before:] if event["event"].startswith("screen")]
    assert len(screened) < len(ROWS) * len(FASTER) - 12
    assert len((tmp_path / "r.yaml").read_text().splitlines()) == len(alone.splitlines())
