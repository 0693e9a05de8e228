"""Two runs at once: on one cache both work, on one results file the second is turned away; and damage in between."""

from __future__ import annotations

from pathlib import Path

from command import SMALL, ended, run, start
from machines import machine
from processes import until
from tiny_space import EVERYTHING, FASTER, facts_in, tiny_command, traced

from genkern.compile.cache import BinaryCache
from genkern.gemm.records import Binary


def entries(cache: Path) -> list[Path]:
    """The folders of compiled kernels in a cache."""
    return sorted(cache.glob("binaries/[0-9a-f]*/[0-9a-f]*"))


def test_two_runs_share_a_cold_cache(tmp_path: Path) -> None:
    """Both compile the same kernels at the same time: equal results, and every entry is whole and there once."""
    cache = tmp_path / "cache"
    processes, folders = [], [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        env = machine(folder, gpus=1, faster=FASTER)
        size = "- {'M': 64, 'N': 128, 'K': 256}\n"
        processes.append(start(*tiny_command(folder, cache, size), "--jobs", 1, env=env))
    runs = [ended(process) for process in processes]
    assert [(ran.status, ran.err) for ran in runs] == [(0, "")] * 2
    assert (folders[0] / "r.yaml").read_text() == (folders[1] / "r.yaml").read_text()
    assert len(entries(cache)) == 4
    binaries = BinaryCache(cache / "binaries")
    assert all(isinstance(binaries.get(entry.name), Binary) for entry in entries(cache))
    assert list((cache / "binaries" / ".unborn").iterdir()) == []
    assert list((cache / "modules").iterdir()) == []


def test_two_runs_on_one_results_file(cache_dir: Path, tmp_path: Path) -> None:
    """The second is refused in one line while the first goes on, which neither notices it nor loses anything."""
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    env = machine(tmp_path, gpus=1, trace=str(trace), faster=FASTER, gate=[10, str(gate)])
    command = [*tiny_command(tmp_path, cache_dir, SMALL), *EVERYTHING]
    first = start(*command, env=env)

    def written(fact: str, count: int) -> bool:
        return facts_in(tmp_path / "r.yaml.journal").count(fact) == count

    # No more comes of this size before the gate is open.
    until(lambda: written("screened", 9) and written("compiled", 2), first)
    files = {path: path.read_bytes() for path in tmp_path.glob("r.yaml*")}
    assert (
        f"another run is writing {tmp_path / 'r.yaml'}: wait for it, or give another -o"
        in run(*command, env=env).refusal
    )
    assert {path: path.read_bytes() for path in tmp_path.glob("r.yaml*")} == files
    gate.touch()
    assert ended(first).status == 0
    alone = [*tiny_command(tmp_path, cache_dir, SMALL, "alone.yaml"), *EVERYTHING]
    assert run(*alone, env=machine(tmp_path, gpus=1, faster=FASTER)).status == 0
    assert (tmp_path / "r.yaml").read_text() == (tmp_path / "alone.yaml").read_text()
    assert sum(event["event"].startswith("screen") for event in traced(trace)) == 3 * len(FASTER)


def test_a_cache_that_is_damaged_during_a_run(tmp_path: Path) -> None:
    """Entries cut short or changed in a bit are compiled again for the sizes that come, and the winners are the same.

    The next one is prepared already, and has looked them up.
    """
    cache, trace, gate = tmp_path / "cache", tmp_path / "trace", tmp_path / "gate"
    sizes = "".join(f"- {{'M': {m}, 'N': 128, 'K': 256}}\n" for m in (64, 128, 192))
    env = machine(tmp_path, gpus=1, trace=str(trace), faster=FASTER, gate=[1, str(gate)])
    process = start(*tiny_command(tmp_path, cache, sizes), env=env)
    # The last candidate of the first size waits at the gate, so all that it needs is compiled.
    until(lambda: len(entries(cache)) == 4 and trace.exists(), process)
    cut, flipped, *_ = entries(cache)
    (cut / "kernel.cubin").write_bytes((cut / "kernel.cubin").read_bytes()[:100])
    record = bytearray((flipped / "genkern.json").read_bytes())
    record[len(record) // 2] ^= 4
    (flipped / "genkern.json").write_bytes(record)
    gate.touch()
    ran = ended(process)
    assert (ran.status, ran.err) == (0, "")
    assert "binaries: 6 compiled, 6 from the cache, 0 refused" in ran.out
    binaries = BinaryCache(cache / "binaries")
    assert all(isinstance(binaries.get(entry.name), Binary) for entry in entries(cache))
    alone = tiny_command(tmp_path, cache, sizes, "alone.yaml")
    assert run(*alone, env=machine(tmp_path, gpus=1, faster=FASTER)).status == 0
    assert (tmp_path / "r.yaml").read_text() == (tmp_path / "alone.yaml").read_text()
