"""A strategy of one's own: one file, anywhere, and nothing else, searches a size through the whole command."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import ended, run, start
from long_tests import drawn, pairs
from machines import machine
from processes import until
from tiny_space import CONFIGS, FASTER, NAMES, tiny_command, traced

from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.records import Outcome
from genkern.journal.facts import read_journal
from genkern.journal.run_files import RunFiles
from genkern.search.strategies import chosen_strategy
from genkern.tuning.replay import replay_decisions, task_of

SIZES = "- {'M': 64, 'N': 128, 'K': 256}\n- {'M': 128, 'N': 128, 'K': 256}\n"
GPU = gpu_for_arch("sm_90")
# Hill climbing from the last unit: the next one for each that was the fastest so far, though it may be asked between
# what is told of two configs of a unit.
OWN = """
from genkern.search.strategy import Measured, Strategy, units_of


class Climbing(Strategy):
    left_out = "no step up leads there"

    def __init__(self, task):
        self.left = units_of(task.configs)
        self.asked = []
        self.wanted = 1
        self.best_us = float("inf")

    def ask(self, n):
        count = min(n, self.wanted - len(self.asked), len(self.left))
        self.asked += [self.left.pop() for _ in range(count)]
        return [*self.asked[len(self.asked) - count :]]

    def tell(self, event):
        if isinstance(event, Measured) and event.duration_us < self.best_us:
            self.best_us = event.duration_us
            place = max((n for n, unit in enumerate(self.asked, 1) if event.config in unit.configs), default=0)
            self.wanted = max(self.wanted, place + 1)


strategy = Climbing
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The strategy's file."""
    path = tmp_path / "climbing.py"
    path.write_text(OWN)
    return path


def climbed() -> set[str]:
    """The configs that it measures: from the last unit on, until one brings nothing faster."""
    units = [NAMES[i : i + 2] for i in range(0, len(NAMES), 2)][::-1]
    best_us, found = float("inf"), set()
    for unit in units:
        found |= set(unit)
        if (us := min(FASTER[name] for name in unit)) >= best_us:
            break
        best_us = us
    return found


@pytest.mark.parametrize("gpus", drawn([1, 2], 1))
def test_one_file_is_a_strategy(own: Path, cache_dir: Path, tmp_path: Path, gpus: int) -> None:
    """It decides what is compiled and measured, on one device and on several; the rest is told with its reason."""
    env = machine(tmp_path, gpus=gpus, faster=FASTER, trace=str(tmp_path / "trace"))
    candidates = tmp_path / "candidates.csv"
    options = "--ngpus", gpus, "--strategy", own, "--profile_file", candidates
    ran = run(*tiny_command(tmp_path, cache_dir, SIZES), *options, env=env)
    assert (ran.status, ran.err) == (0, "")
    for size in ("64x128x256", "128x128x256"):
        screened = [e["event"] for e in traced(tmp_path / "trace") if e["size"] == size and "screen" in e["event"]]
        assert {event.partition(" ")[2] for event in screened} == climbed() < set(NAMES)
    assert candidates.read_text().count("no step up leads there") == 2 * len(set(NAMES) - climbed())
    journal = read_journal(RunFiles(str(tmp_path / "r.yaml")).finished_journal)
    make = chosen_strategy(str(own)).make
    for problem, facts in journal.facts.items():
        assert facts.searched is not None
        assert facts.searched.strategy.startswith("climbing.py ")
        assert set(facts.searched.configs) == set(CONFIGS)
        assert replay_decisions(make, facts.searched, problem, GPU) == facts.searched.steps
        assert task_of(facts.searched, problem, GPU).problem == problem
        assert facts.ended is not None
        assert facts.ended.outcomes[Outcome.PREDICTED_OUT] == len(set(NAMES) - climbed())


def test_another_text_is_another_run(own: Path, cache_dir: Path, tmp_path: Path) -> None:
    """What it had measured was another one's choice: an interrupted run goes on with the same file only."""
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    command = [*tiny_command(tmp_path, cache_dir, SIZES), "--strategy", own]
    process = start(*command, env=machine(tmp_path, gpus=1, faster=FASTER, trace=str(trace), gate=[2, str(gate)]))
    until(lambda: any(event["event"] == "gate" for event in traced(trace)), process)
    process.kill()
    ended(process)
    env = machine(tmp_path, gpus=1, faster=FASTER)
    own.write_text(OWN.replace("wanted = 1", "wanted = 2"))
    ran = run(*command, env=env)
    assert ran.status == 2
    assert "strategy was 'climbing.py " in ran.err
    own.write_text(OWN)
    assert run(*command, env=env).status == 0


MISTAKES = [
    ("return [", "return 1 / 0, [", "line 17: ZeroDivisionError: division by zero"),
    ("self.best_us = event", "self.best = self.bust", "line 21: AttributeError: 'Climbing' object"),
    ("strategy = Climbing", "strategy = lambda task: 7", "strategy(task) gave 7"),
    ("strategy = Climbing", "", "strategy(task)"),
]


@pytest.mark.parametrize(("mistake", "gpus"), pairs(MISTAKES, [1, 2]))
def test_mistakes_in_a_strategys_file_are_one_line(
    mistake: tuple[str, str, str], gpus: int, own: Path, cache_dir: Path, tmp_path: Path
) -> None:
    """In one line, with file and line, and exit status 2: no bug of genkern's."""
    old, new, said = mistake
    own.write_text(OWN.replace(old, new))
    env = machine(tmp_path, gpus=gpus, faster=FASTER)
    ran = run(*tiny_command(tmp_path, cache_dir, SIZES), "--ngpus", gpus, "--strategy", own, env=env)
    assert ran.status == 2
    (line,) = ran.err.splitlines()
    assert said in line
    assert "climbing.py" in line
