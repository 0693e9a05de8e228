"""The power-of-two key: sizes that a seed draws, pairs of a results file, races of stand-ins, what is reported."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_winners import winner, write_results

from benchmarks.search import power_of_two_key as key
from genkern.formats.gemm_entry import GemmDefaults
from genkern.formats.kind import read_results
from genkern.formats.sizes import read_sizes
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Measurement, Outcome
from genkern.journal.facts import ProblemFacts
from genkern.profiling.finals import Finals, Rounds
from genkern.tuning.autotune import rounded_up

OWN = Config("cute_wgmma", 128, 128, 64, 8, 1, 8, 5, schedule="ping_pong")
OTHER = Config("cute_wgmma", 256, 128, 64, 8, 1, 8, 4, cluster="2x1")
EXACT, ROUNDED = GemmProblem(300, 3000, 1000), GemmProblem(512, 4096, 1024)
PAIR = key.Pair(EXACT, OWN, OTHER)


def test_a_seed_gives_the_same_sizes() -> None:
    """Of rows of 16 bytes, within the range and all over it; none is its own rounding."""
    problems = key.drawn(3, 200)
    assert problems == key.drawn(3, 200)
    assert set(problems[:50]).isdisjoint(key.drawn(4, 50))
    assert len(set(problems)) == 200
    for problem in problems:
        assert problem != rounded_up(problem)
        assert not problem.N % 8
        assert not problem.K % 8
    for name in ("M", "N", "K"):
        sizes = [getattr(problem, name) for problem in problems]
        assert 256 <= min(sizes) < 300
        assert 7000 < max(sizes) <= 8192
        # Log-uniform: half of them below the middle of 2^8 and 2^13.
        assert 0.4 < sum(size < 2**10.5 for size in sizes) / 200 < 0.6


def test_written_sizes_have_their_roundings_beside_them(tmp_path: Path) -> None:
    """Every beginning of the list has whole pairs, but for its last size; nothing is in it twice."""
    path = tmp_path / "sizes.yaml"
    key.main(["--write_sizes", str(path), "--seed", "2", "--count", "30"])
    problems = list(read_sizes(str(path), GemmDefaults(), None).problems)
    assert len(set(problems)) == len(problems)
    drawn = key.drawn(2, 30)
    assert [problem for problem in problems if problem in drawn] == drawn
    for problem in drawn:
        assert problems.index(rounded_up(problem)) <= problems.index(problem) + 1


def test_pairs_are_of_what_was_tuned(tmp_path: Path) -> None:
    """Sizes without their rounding are left out, and roundings are nobody's pair."""
    path = tmp_path / "r.yaml"
    made = winner(config=OWN, device="NVIDIA H200", arch="sm_90")
    rows = [
        replace(made, problem=EXACT),
        replace(made, problem=ROUNDED, config=OTHER),
        replace(made, problem=replace(EXACT, M=600)),
    ]
    write_results(path, rows, 132)
    assert key.pairs_of(read_results(str(path))) == [PAIR]


def measured(config: Config, us: float) -> Measurement:
    return Measurement(config.name, Outcome.MEASURED, "cudagraph", duration_us=us)


@pytest.mark.parametrize(
    ("finals", "screened", "loss"),
    [
        ({OWN: 10.0, OTHER: 12.0}, {OWN: 11.0, OTHER: 11.0}, 0.2),
        ({OWN: 10.0}, {OWN: 11.0, OTHER: 16.5}, 0.5),
        ({OWN: 10.0}, {OWN: 11.0}, None),
    ],
)
def test_a_journal_has_times_of_both(
    finals: dict[Config, float], screened: dict[Config, float], loss: float | None
) -> None:
    """Of the finals where both were in them, else of the screening; a config that was left out has none."""
    facts = ProblemFacts(
        screened={config.name: measured(config, us) for config, us in screened.items()},
        finals=[measured(config, us) for config, us in finals.items()],
    )
    found = key.replayed(PAIR, facts)
    assert found.loss == (None if loss is None else pytest.approx(loss))
    assert found.why == ("" if loss is not None else key.NOT_TIMED)


def test_what_needs_no_rounds() -> None:
    """One and the same config loses nothing; one that the exact size does not allow has no time."""
    gpu = gpu_for_arch("sm_90")
    assert key.untimed(PAIR, gpu) is None
    same = key.untimed(replace(PAIR, by_key=OWN), gpu)
    assert same is not None
    assert (same.loss, same.why) == (0.0, "")
    illegal = key.untimed(replace(PAIR, problem=replace(EXACT, N=3001)), gpu)
    assert illegal is not None
    assert (illegal.loss, illegal.rounded) == (None, "512x4096x1024")
    assert "16 bytes" in illegal.why


class StandInBench:
    """Of two configs, whose products are right where `results` says 2, and whose samples are `samples`."""

    problem = EXACT

    def __init__(self, results: Mapping[str, float], samples: Mapping[str, list[float]]) -> None:
        self.results, self.samples = results, samples
        self.raced: list[str] = []

    def calls(self) -> Mapping[str, float]:
        return self.results

    def agreeing(self, calls: Mapping[str, float]) -> Mapping[str, float]:
        return {name: result for name, result in calls.items() if result == 2.0}

    def samplers(self, calls: Mapping[str, Any]) -> Mapping[str, Any]:
        return calls

    def race(self, samplers: Mapping[str, Any], rounds: Rounds) -> Finals:
        self.raced = list(samplers)
        return Finals({name: self.samples[name] for name in samplers}, {})


def test_both_race_in_the_same_rounds() -> None:
    """The library does not; of who dropped out later only the rounds of both count."""
    samples = {OWN.name: [10.0, 10.0, 10.0, 30.0, 30.0, 30.0], OTHER.name: [12.0, 11.0, 12.0]}
    bench = StandInBench({"vendor": 2.0, OWN.name: 2.0, OTHER.name: 2.0}, samples)
    found = key.race(bench, PAIR)  # type: ignore[arg-type]
    assert bench.raced == [OWN.name, OTHER.name]
    assert (found.own_us, found.key_us, found.why) == (10.0, 12.0, "")
    assert found.loss == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("results", "samples", "why"),
    [
        ({OWN.name: 2.0, OTHER.name: 3.0}, [1.0], key.WRONG),
        ({OWN.name: 3.0, OTHER.name: 2.0}, [1.0], key.WRONG),
        ({OWN.name: 2.0}, [1.0], key.NOT_TIMED),
        ({OWN.name: 2.0, OTHER.name: 2.0}, [], key.NOT_TIMED),
    ],
)
def test_what_has_no_time_says_why(results: Mapping[str, float], samples: list[float], why: str) -> None:
    """Another result, a binary that is not there, no sample."""
    found = key.race(StandInBench(results, {OWN.name: samples, OTHER.name: samples}), PAIR)  # type: ignore[arg-type]
    assert (found.why, found.loss) == (why, None)


def test_the_report() -> None:
    """The worst first; one config for both counts as no loss; who has no time is named and counted apart."""
    sizes = "300x3000x1000", "512x4096x1024"
    text = key.report(
        [
            key.Found(*sizes, "one", "two", 10.0, 11.0),
            key.Found(*sizes, "one", "two", 10.0, 14.4),
            key.Found(*sizes, "one", "one"),
            key.Found(*sizes, "one", "two", why="rows of C are off 16 bytes"),
            key.Found(*sizes, "one", "two", why=key.NOT_TIMED),
        ]
    )
    lines = text.splitlines()
    assert lines[2] == "| 300x3000x1000 | 512x4096x1024 | 10.00 | 14.40 | 0.440 | one | two |"
    assert lines[3].split(" | ")[4] == "0.100"
    assert "300x3000x1000: two, the winner of 512x4096x1024: rows of C are off 16 bytes" in lines
    # (1.1 * 1.44 * 1) ** (1 / 3)
    assert lines[-2] == "pow2_key_loss: 0.166 (worst 0.440; 3 sizes, 2 lose over 0.05, for 1 both are one config)"
    assert lines[-1] == "not legal for the exact size: 1; computes something else or not timed: 1"
    assert "pow2_key_loss" not in key.report([])


def test_every_pair_is_in_the_table_and_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one whose size cannot be opened, which costs itself only."""
    samples = {OWN.name: [10.0], OTHER.name: [12.0]}

    @contextlib.contextmanager
    def open_(problem: GemmProblem, configs: object) -> Iterator[StandInBench]:
        if problem.M == 301:
            raise MemoryError("full")
        yield StandInBench({OWN.name: 2.0, OTHER.name: 2.0}, samples)

    @contextlib.contextmanager
    def workbench(arguments: object) -> Iterator[SimpleNamespace]:
        target = SimpleNamespace(gpu=gpu_for_arch("sm_90"))
        yield SimpleNamespace(open=open_, setting=SimpleNamespace(target=target))

    monkeypatch.setattr(key, "workbench", workbench)
    monkeypatch.setattr(key, "versions_line", lambda _bench: "an H200")
    results, data = tmp_path / "r.yaml", tmp_path / "full.jsonl"
    made = winner(config=OWN, device="NVIDIA H200", arch="sm_90", problem=EXACT)
    others = [replace(made, problem=replace(EXACT, M=301)), replace(made, problem=ROUNDED, config=OTHER)]
    write_results(results, [made, *others], 132)
    key.main([str(results), "-o", str(data)])
    said = capsys.readouterr()
    assert "pow2_key_loss: 0.200 (worst 0.200; 1 sizes, 1 lose over 0.05, for 0 both are one config)" in said.out
    assert "301x3000x1000: MemoryError: full" in said.err
    entries = [json.loads(line) for line in data.read_text().splitlines()]
    assert [(entry["size"], entry["why"]) for entry in entries] == [
        ("300x3000x1000", ""),
        ("301x3000x1000", key.NOT_TIMED),
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "give the results to time, or --write_sizes FILE, or --journal FILE\n"),
        (["r.yaml", "--write_sizes", "s.yaml"], "give the results to time, or --write_sizes FILE, or --journal FILE\n"),
        (["--write_sizes", "s.yaml", "--count", "0"], "--count is a number from 1\n"),
        (["--journal", "none.journal"], "none.journal: No such file or directory\n"),
    ],
)
def test_what_does_not_fit_is_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With status 2."""
    with pytest.raises(SystemExit) as ended:
        key.main(argv)
    assert ended.value.code == 2
    assert capsys.readouterr().err == message


def test_results_without_pairs_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before a GPU is asked for."""
    path = tmp_path / "r.yaml"
    write_results(path, [winner(16, 10.0)])
    with pytest.raises(SystemExit):
        key.main([str(path)])
    assert capsys.readouterr().err == f"{path}: no size is tuned together with what it rounds up to\n"
