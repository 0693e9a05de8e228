"""The load that compiles in the background: which processes it is, and that it stands still when told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.timing import compile_load


def test_descendants_are_all_generations() -> None:
    """Children of children belong to the tree, siblings and parents do not."""
    parents = {2: 1, 3: 2, 4: 3, 5: 2, 6: 1, 1: 0}
    assert sorted(compile_load.descendants(2, parents)) == [2, 3, 4, 5]


def test_stat_of_a_process_with_a_hostile_name() -> None:
    """A name with spaces and parentheses does not shift the fields."""
    text = "42 (a ) b (c) S 7 42 42 0 -1 0 1 2 3 4 100 20 3 4 20 0 1 0"
    assert compile_load.read_stat(text) == (7, "S", 127.0)


@pytest.mark.slow
def test_load_compiles_stands_and_ends(tmp_path: Path) -> None:
    """The load uses processor time until it is paused, none while it is, some again after, and leaves nothing."""
    load = compile_load.CompileLoad("sm_90", 1, str(tmp_path))
    try:
        load.pause()
        tree = list(load._tree())
        standing_s = load.cpu_s()
        before_s = time.process_time()
        while time.process_time() - before_s < 0.3:
            pass
        assert load.cpu_s() == standing_s
        load.resume()
        ends_s = time.monotonic() + 60
        while load.cpu_s() < standing_s + 0.2:
            assert time.monotonic() < ends_s, "the load does not go on"
    finally:
        load.close()
    assert len(tree) > 1
    states = [stat[1] for pid, stat in compile_load.processes().items() if pid in tree]
    # Whoever adopted them may not have looked at them yet.
    assert set(states) <= {"Z", "X"}
