"""Lanes: several sizes are under way on a GPU, of which one at a time is measured."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from command import ended, start
from machines import machine
from processes import assert_gone, until
from tiny_space import FASTER, tiny_command, traced

from genkern.cli.options import LANES, parse
from genkern.cli.setting import Setting
from genkern.cli.target import RunTarget
from genkern.cli.tuning_pass import lanes_of
from genkern.errors import InputError
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.journal.facts import read_journal
from genkern.search.limit import NO_LIMIT, Limit
from genkern.timing.session import Budget

SMALL = GemmProblem(16, 4096, 4096)
# 8 GB of operands: those of an H200 have room for two of it.
LARGE = GemmProblem(65536, 65536, 64)
SIZES = ["- {'M': 16, 'N': 128, 'K': 256}\n", "- {'M': 33, 'N': 64, 'K': 4097}\n", "- {'M': 16, 'N': 64, 'K': 128}\n"]


def setting(jobs: int = 16, gpu_ids: tuple[int, ...] = (0,), lanes: int = LANES, **changed: Any) -> Setting:
    """Of a run on H100s whose options say nothing but --jobs and --lanes, and what is `changed`."""
    gpu = gpu_for_arch("sm_90")
    options = argparse.Namespace(jobs=jobs, lanes=lanes, profiler="auto")
    known = {"options": options, "target": RunTarget("sm_90", gpu, gpu.name, gpu_ids), "limit": NO_LIMIT}
    known |= {"budget": Budget(), "device_indices": gpu_ids or (0,), **changed}
    return cast(Setting, SimpleNamespace(**known))


@pytest.mark.parametrize(
    ("of", "problems", "lanes"),
    [
        (setting(), [SMALL] * 8, LANES),
        (setting(), [SMALL, LARGE] * 4, 2),
        (setting(jobs=8), [SMALL] * 8, 2),
        (setting(jobs=8, gpu_ids=(0, 1)), [SMALL] * 8, 1),
        (setting(jobs=1), [SMALL] * 8, 1),
        (setting(lanes=1), [SMALL] * 8, 1),
        (setting(jobs=64, lanes=8), [SMALL] * 8, 8),
        (setting(lanes=8), [SMALL] * 8, 4),
        (setting(gpu_ids=()), [SMALL] * 8, 1),
        (setting(), [SMALL], 1),
        (setting(jobs=32, gpu_ids=(0, 1)), [SMALL] * 3, 2),
        (setting(limit=Limit(seconds=30.0)), [SMALL] * 8, 1),
        (setting(limit=Limit(binaries=30)), [SMALL] * 8, LANES),
        (setting(budget=replace(Budget(), exhaustive=True)), [SMALL] * 8, 1),
    ],
)
def test_as_many_as_there_is_room_for(of: Setting, problems: list[GemmProblem], lanes: int) -> None:
    """By --lanes, CPUs and memory; one where lanes would change what is found, or nothing is measured."""
    assert lanes_of(of, problems) == lanes


def test_lanes_are_a_number() -> None:
    """A whole one, of one lane or more; three where nobody says."""
    size = ["-m", "1", "-n", "64", "-k", "64"]
    assert [parse([*size, *lanes]).lanes for lanes in ([], ["--lanes", "1"])] == [3, 1]
    for wrong in ("0", "-1", "1.5", "many", ""):
        with pytest.raises(InputError, match="--lanes"):
            parse([*size, "--lanes", wrong])


def test_while_one_size_is_measured_another_is_in_hand(tmp_path: Path) -> None:
    """Of two that have begun nothing of the second is measured before the first gives the device away."""
    trace, gate, cache = tmp_path / "trace", tmp_path / "gate", tmp_path / "cache"
    env = machine(tmp_path, gpus=1, trace=str(trace), faster=FASTER, gate=[1, str(gate)])
    process = start(*tiny_command(tmp_path, cache, "".join(SIZES)), "--jobs", 8, env=env)
    journal = tmp_path / "r.yaml.journal"

    def begun() -> int:
        facts = read_journal(journal).facts.values() if journal.exists() else ()
        return sum(each.begun is not None for each in facts)

    until(lambda: trace.exists() and begun() == 2, process)
    assert [event["event"] for event in traced(trace)] == ["gate"]
    gate.touch()
    ran = ended(process)
    assert (ran.status, ran.err) == (0, "")
    assert len({event["pid"] for event in traced(trace)}) == 2
    assert len({event["size"] for event in traced(trace)}) == len(SIZES)
    assert_gone(tmp_path)
