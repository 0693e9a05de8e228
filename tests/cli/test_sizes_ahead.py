"""The next size of a run is compiled while one is measured, and whoever looks at the run sees nothing of it."""

from __future__ import annotations

from pathlib import Path

from command import ended, start
from machines import machine
from processes import assert_gone, until
from tiny_space import FASTER, tiny_command, traced

from genkern.journal.facts import read_journal

# Two that share no kernel: one's K fits no tile.
SIZES = ["- {'M': 16, 'N': 128, 'K': 256}\n", "- {'M': 33, 'N': 64, 'K': 4097}\n"]
# One binary a size.
BLOCKS = "BLOCK_SIZE_M: [16], BLOCK_SIZE_N: [32]"


def entries(cache: Path) -> int:
    return len(list((cache / "binaries").glob("[0-9a-f][0-9a-f]/*/genkern.json")))


def test_the_next_size_is_compiled_while_one_is_measured(tmp_path: Path) -> None:
    """While the first size's first config is being measured all binaries of both come to the cache, and the journal
    knows of one size."""
    trace, gate, cache = tmp_path / "trace", tmp_path / "gate", tmp_path / "cache"
    env = machine(tmp_path, gpus=1, trace=str(trace), faster=FASTER, gate=[1, str(gate)])
    command = [*tiny_command(tmp_path, cache, "".join(SIZES)), "--jobs", 2]
    space = tmp_path / "tiny.yaml"
    space.write_text(space.read_text().replace("BLOCK_SIZE_M: [16, 32], BLOCK_SIZE_N: [32, 64]", BLOCKS))
    process = start(*command, env=env)
    until(lambda: entries(cache) == len(SIZES), process)
    until(lambda: trace.exists(), process)
    assert [event["event"] for event in traced(trace)] == ["gate"]
    begun = [facts.begun for facts in read_journal(tmp_path / "r.yaml.journal").facts.values()]
    assert sum(each is not None for each in begun) == 1
    gate.touch()
    ran = ended(process)
    assert (ran.status, ran.err) == (0, "")
    assert f"binaries: {len(SIZES)} compiled, 0 from the cache, 0 refused" in ran.out
    assert_gone(tmp_path)
