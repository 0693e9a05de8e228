"""Tests of genkern/journal/journal.py."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import resource
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from long_tests import in_turns

from genkern.errors import OutputError, ResultsError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import NOT_CHECKED, Check, Measurement, Outcome, Unfit
from genkern.journal.facts import Begun, Compiled, Ended, Start, read_journal
from genkern.journal.header import SCHEMA, UnusableJournal
from genkern.journal.journal import Journal
from genkern.journal.journal_line import chained_line, checksums, journal_line
from genkern.result.result import Proof, Result

HEADER = {"triton": "3.7.0", "device": "NVIDIA H200", "budget": {"final_rounds": 60}}
NARROW = {op: {"name": "narrow", "digest": "23"} for op in ("a16w16", "a8w8")}
PROBLEM = GemmProblem(64, 1280, 8192)
OTHER = GemmProblem(64, 1280, 4096, bias=True, activation="gelu")
CONFIG = Config("tiled", 64, 64, 32)
NAME = CONFIG.name
SCREENED = Measurement(NAME, Outcome.MEASURED, "cudagraph", "screen", 12.5, (12.5,))
CRASHED = Measurement("tiled_BM1", Outcome.CRASHED, "cudagraph", message='lost: "killed" \r\n | é')
FINALS = [
    Measurement(
        NAME,
        Outcome.MEASURED,
        "cudagraph",
        "final",
        12.25,
        (12.0, 12.25, 13.0),
        discarded=3,
        usual_mhz=1755.5,
        watts=688.25,
    ),
    Measurement("vendor", Outcome.MEASURED, "cudagraph", "final", 14.0, (14.0,)),
]
CHECK = Check(NAME, False, 1.0, float("inf"), "64x1280x8192", "gpu", "NaN")
LOST = Check("tiled_BM2", False, 1.0, float("inf"), "64x1280x8192", NOT_CHECKED, "killed", Outcome.CRASHED)
HANGING = Unfit(Outcome.COMPILE_TIMED_OUT, "no result after 1 s")
START = Start((PROBLEM, OTHER), "python -m genkern -i 'a b'", "/folder", "node7", 42, 1.25)
WINNER = Result(
    PROBLEM,
    CONFIG,
    choice="vendor",
    arch="sm_90",
    device="NVIDIA H200",
    duration_us=12.25,
    time_source="cudagraph",
    spread_us=0.5,
    interval_us=(12.0, 13.0),
    samples=3,
    discarded=3,
    vendor_us=14.0,
    vendor_interval_us=(14.0, 14.5),
    runner_up="tiled_BM2",
    runner_up_us=12.5,
    check=Proof("gpu", "", 0.0, 0.001, "64x1280x8192"),
    versions=(("triton", "3.7.0"),),
)


def opened(path: Path, header: dict[str, object] | None = None) -> Journal:
    return Journal(path, HEADER if header is None else header)


def filled(path: Path) -> Journal:
    """A journal with every kind of fact, closed."""
    journal = opened(path)
    journal.started(START)
    journal.add_begun(PROBLEM, Begun(672, 1, 1.5))
    journal.add_unfit(PROBLEM, ["tiled_BM3", "tiled_BM4"], HANGING)
    journal.add_compiled(PROBLEM, Compiled(8, 1, 4))
    journal.add_screened(PROBLEM, SCREENED)
    journal.add_screened(PROBLEM, CRASHED)
    journal.add_screened(PROBLEM, replace(CRASHED, config="innocent"))
    journal.add_retraction(PROBLEM, ["innocent", "unknown"])
    journal.add_retimed(PROBLEM, FINALS)
    journal.add_confirmed(PROBLEM, FINALS[:1])
    journal.add_check(PROBLEM, CHECK)
    journal.add_check(PROBLEM, LOST)
    journal.add_winner(WINNER)
    journal.add_end(PROBLEM, Ended({Outcome.MEASURED: 670, Outcome.CRASHED: 2}, ""))
    journal.add_screened(OTHER, SCREENED, "0123456789abcdef")
    journal.add_unfit(OTHER, ["tiled_BM3", "tiled_BM4"], HANGING, "fedcba9876543210")
    journal.close()
    return journal


def test_every_fact_survives(hostile_path: Path) -> None:
    """A journal that is opened again knows what the first one knew: intervals, choice and discarded samples too."""
    path = hostile_path / "new" / "results.yaml.journal"
    first = filled(path)
    again = opened(path)
    assert again.facts == first.facts
    assert again.starts == first.starts == [START]
    assert again.of(PROBLEM).screened == {NAME: SCREENED, CRASHED.config: CRASHED}
    assert again.of(PROBLEM).unfit == {"tiled_BM3": HANGING, "tiled_BM4": HANGING}
    assert again.of(PROBLEM).begun == Begun(672, 1, 1.5)
    assert again.of(PROBLEM).compiled == Compiled(8, 1, 4)
    assert again.of(PROBLEM).ended == Ended({Outcome.MEASURED: 670, Outcome.CRASHED: 2}, "")
    assert again.of(PROBLEM).winner == WINNER
    assert again.of(PROBLEM).finals == FINALS
    assert again.of(PROBLEM).confirmed == FINALS[:1]
    assert again.of(PROBLEM).checks == {NAME: CHECK}
    assert again.of(PROBLEM).unchecked == {LOST.config: LOST}
    assert again.of(OTHER).winner is None
    codes = {NAME: "0123456789abcdef", "tiled_BM3": "fedcba9876543210", "tiled_BM4": "fedcba9876543210"}
    assert (again.of(PROBLEM).codes, again.of(OTHER).codes) == ({}, codes)
    assert again.winners() == [WINNER]
    again.close()


def test_a_winner_without_intervals_survives(tmp_path: Path) -> None:
    """Predicted times have none, and an unchecked winner has no check."""
    winner = replace(WINNER, interval_us=None, vendor_interval_us=None, vendor_us=None, check=None, choice="config")
    journal = opened(tmp_path / "j")
    journal.add_winner(winner)
    journal.close()
    assert opened(tmp_path / "j").of(PROBLEM).winner == winner


def test_a_cut_anywhere_loses_the_last_fact_at_most(tmp_path: Path) -> None:
    """Cut after any number of bytes, the journal opens, holds the whole lines, and goes on from there."""
    path = tmp_path / "whole"
    filled(path)
    data = path.read_bytes()
    cut = tmp_path / "cut"
    for length in range(0, len(data), 7):
        cut.write_bytes(data[:length])
        journal = opened(cut)
        journal.add_screened(OTHER, CRASHED)
        journal.close()
        whole = data[: data[:length].rfind(b"\n") + 1]
        assert cut.read_bytes().startswith(whole)
        assert opened(cut).of(OTHER).screened[CRASHED.config] == CRASHED


def test_a_problem_is_written_once(tmp_path: Path) -> None:
    """Thousands of facts of one size do not repeat it, in one run or over several."""
    path = tmp_path / "j"
    for _ in range(2):
        filled(path)
    assert path.read_bytes().count(b'"K":8192') == 1
    assert opened(path).facts == filled(tmp_path / "once").facts


@pytest.mark.parametrize(
    "line",
    [
        b"not JSON\n",
        b"\n",
        b"{}\n",
        b'{"fact":"retracted","problem":0,"value":[]}\n',
        b'{"fact":"retracted","problem":0,"value":[],"crc":1}\n',
        journal_line("screened", None),
        journal_line("dance", 1, 0),
        journal_line("checked", 1, 7),
        journal_line("unfit", [{"config": 1, "outcome": "crashed", "message": ""}], 0),
        journal_line("screened", {"kinds": [], "config": ["=a"], "us": [1.0]}, 0),
        journal_line("problem", {"M": 1, "N": 1, "K": 0}),
        journal_line("started", {"problems": [9]}),
        journal_line("ended", {"outcomes": {"lost": 1}, "message": ""}, 0),
    ],
)
def test_damage_is_refused_with_its_place(tmp_path: Path, line: bytes) -> None:
    """A line that makes no sense is no reason to guess, nor is one without its checksum, or with another's."""
    path = tmp_path / "j"
    filled(path)
    lines = path.read_bytes().splitlines(keepends=True)
    with contextlib.suppress(ValueError):
        # In its place, so that it is refused for what it says.
        line = chained_line(line[:-1], checksums(lines[2][:-1])[1]) + b"\n" if checksums(line[:-1])[1] != 1 else line
    path.write_bytes(b"".join([*lines[:3], line, *lines[3:]]))
    with pytest.raises(UnusableJournal, match=r"j, line 4: damaged; .*--all") as caught:
        opened(path)
    assert caught.value.reason == f"{path}, line 4: damaged"


def test_every_bit_counts(tmp_path: Path) -> None:
    """Whichever bit of a journal is another: it is refused, or the last line is dropped as one that was cut short.

    One bit of each byte, another one of the next; all eight in `make test-long`.
    """
    path = tmp_path / "j"
    filled(path)
    data = path.read_bytes()
    last = data[:-1].rfind(b"\n") + 1

    path.write_bytes(data[:last])
    without_last = read_journal(path).facts
    path.write_bytes(data)
    accepted = []
    with path.open("r+b", buffering=0) as file:
        for place, byte in enumerate(data):
            for bit in in_turns(range(8), 8, place):
                os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), place)
                with contextlib.suppress(UnusableJournal):
                    assert read_journal(path).facts == without_last
                    accepted.append(place)
            os.pwrite(file.fileno(), bytes([byte]), place)
    assert set(accepted) == {len(data) - 1}


def test_a_journal_of_another_version_is_not_called_damaged(tmp_path: Path) -> None:
    """Its lines may end otherwise, as they did before they had a checksum."""
    path = tmp_path / "j"
    path.write_bytes(b'{"fact":"header","value":{"schema":2}}\n{"fact":"problem","value":{}}\n')
    with pytest.raises(UnusableJournal, match=rf"schema 2.*{SCHEMA}"):
        read_journal(path)


def test_another_header_is_refused_with_the_difference(tmp_path: Path) -> None:
    """What a fact depended on is compared; the message names what differs and what to do."""
    path = tmp_path / "j"
    known = {**HEADER, "space": {"a16w16": {"name": "default", "digest": "01"}}}
    opened(path, known).close()
    with pytest.raises(ResultsError) as caught:
        opened(path, {**known, "triton": "3.9.0", "icache": True})
    text = str(caught.value)
    assert "triton was '3.7.0', is '3.9.0'" in text
    assert "icache was None, is True" in text
    assert "device" not in text
    with pytest.raises(ResultsError) as caught:
        opened(path, {**HEADER, "space": NARROW, "budget": {**HEADER["budget"], "final_rounds": 7}})
    text = str(caught.value)
    assert "the search space of a16w16 was default, is narrow; the search space of a8w8 was none, is narrow" in text
    assert "final_rounds was 60, is 7" in text
    assert "finals_s" not in text
    assert "--all" in text
    with pytest.raises(ResultsError, match="default of a16w16"):
        opened(path, {**known, "space": {"a16w16": {"name": "default", "digest": "02"}}})
    path.write_bytes(journal_line("screened", {}))
    with pytest.raises(UnusableJournal, match="triton was None"):
        opened(path)


def test_another_search_is_another_run(tmp_path: Path) -> None:
    """A journal of before names none where it had the default, and goes on with what that was."""
    path = tmp_path / "j"
    opened(path, {**HEADER, "patience": 9}).close()
    opened(path, {**HEADER, "strategy": "patience:9"}).close()
    with pytest.raises(ResultsError, match=r"strategy.*'patience:9'.*'racing'"):
        opened(path, {**HEADER, "strategy": "racing"})
    path.unlink()
    opened(path).close()
    opened(path, {**HEADER, "strategy": "predicted"}).close()
    with pytest.raises(ResultsError, match=r"strategy.*'predicted'.*'predicted:16'"):
        opened(path, {**HEADER, "strategy": "predicted:16"})


def test_another_driver_or_other_clocks_are_another_run(tmp_path: Path) -> None:
    """Both are said as they were and are. Fewer devices, others of the same clocks, and a silent tool go on."""
    path = tmp_path / "j"
    clocks = {"sm_clock_max_mhz": 1980, "memory_clock_max_mhz": 3201}
    header = {**HEADER, "driver": "570.86.15", "devices": {"0": clocks, "1": clocks}}
    opened(path, header).close()
    assert read_journal(path).header["devices"]["1"]["sm_clock_max_mhz"] == 1980
    for devices in ({"0": clocks}, {"0": clocks, "2": clocks}, {"0": {"sm_clock_max_mhz": 1980}}, {"0": {}}):
        opened(path, {**header, "devices": devices}).close()
    opened(path, {**HEADER, "devices": {"0": clocks}}).close()
    with pytest.raises(ResultsError, match=r"driver.*'570\.86\.15'.*'580\.1'"):
        opened(path, {**header, "driver": "580.1"})
    slower = {**header, "devices": {"0": clocks, "5": {**clocks, "sm_clock_max_mhz": 1755}}}
    with pytest.raises(ResultsError, match=r"sm_clock_max_mhz.* 1980.* 1755.* 5"):
        opened(path, slower)


def test_a_start_forgets_who_was_at_work(tmp_path: Path) -> None:
    """What is begun and ended is of the last start; what was measured is of all."""
    path = tmp_path / "j"
    filled(path)
    again = opened(path)
    again.started(replace(START, pid=43))
    again.close()
    facts = read_journal(path)
    assert [start.pid for start in facts.starts] == [42, 43]
    assert (facts.of(PROBLEM).begun, facts.of(PROBLEM).compiled, facts.of(PROBLEM).ended) == (None, None, None)
    assert facts.of(PROBLEM).winner == WINNER
    assert facts.of(PROBLEM).screened == again.of(PROBLEM).screened
    assert facts.of(PROBLEM).unfit == again.of(PROBLEM).unfit


def test_reading_changes_nothing(tmp_path: Path) -> None:
    """Any run's journal, at any moment: half a line stays where it is, and the header is not compared."""
    path = tmp_path / "j"
    filled(path)
    data = path.read_bytes()
    for length in range(len(data) - 40, len(data), 7):
        path.write_bytes(data[:length])
        before = path.stat().st_mtime_ns
        assert read_journal(path).of(PROBLEM).winner == WINNER
        assert (path.read_bytes(), path.stat().st_mtime_ns) == (data[:length], before)
    with pytest.raises(FileNotFoundError):
        read_journal(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@contextlib.contextmanager
def no_more_room(path: Path) -> Iterator[None]:
    """In the block the file cannot grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_is_said(tmp_path: Path) -> None:
    """The fact is refused in one line, and closing afterwards raises nothing more."""
    journal = opened(tmp_path / "j")
    with no_more_room(tmp_path / "j"):
        with pytest.raises(OutputError, match=os.strerror(errno.EFBIG)):
            journal.add_begun(PROBLEM, Begun(672, 1, 1.5))
        journal.close()


def test_a_disk_that_fills_while_facts_wait_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next fact: whoever added those that waited has gone on."""
    monkeypatch.setattr("genkern.journal.journal.BATCH_S", 0.01)
    journal = opened(tmp_path / "j")

    def go_on() -> None:
        for _ in range(500):
            journal.add_screened(PROBLEM, SCREENED)
            time.sleep(0.01)

    with no_more_room(tmp_path / "j"):
        with pytest.raises(OutputError, match=os.strerror(errno.EFBIG)):
            go_on()
        journal.close()


def test_a_winner_is_on_the_disk_before_it_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that was found before it. A crash of the machine may lose measurements, but no result."""
    journal, path = opened(tmp_path / "j"), tmp_path / "j"
    synced_bytes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced_bytes.append(os.fstat(descriptor).st_size))
    journal.add_screened(PROBLEM, SCREENED)
    journal.flush()
    assert synced_bytes == []
    journal.add_winner(WINNER)
    assert synced_bytes == [path.stat().st_size]
    assert read_journal(path).of(PROBLEM).winner == WINNER
    journal.close()


def test_facts_wait_no_longer_than_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed run loses the last moment's measurements, though none comes after them; a closed one loses nothing."""
    monkeypatch.setattr("genkern.journal.journal.BATCH_S", 0.05)
    journal = opened(tmp_path / "j")
    journal.add_screened(PROBLEM, SCREENED)
    journal.add_unfit(PROBLEM, ["tiled_BM3"], HANGING)
    deadline_s = time.monotonic() + 5
    while not (facts := read_journal(tmp_path / "j").of(PROBLEM)).screened:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert (facts.screened, facts.unfit) == ({NAME: SCREENED}, {"tiled_BM3": HANGING})
    monkeypatch.setattr("genkern.journal.journal.BATCH_S", 1e6)
    journal.add_screened(OTHER, SCREENED)
    assert not read_journal(tmp_path / "j").of(OTHER).screened
    journal.close()
    assert read_journal(tmp_path / "j").of(OTHER).screened == {NAME: SCREENED}


def test_a_candidate_costs_few_bytes(tmp_path: Path) -> None:
    """Of a space with its siblings, in the order of a run, with times of five digits."""
    names = [
        Config("tiled", *tile, group, split, warps, stages).name
        for tile in itertools.product((16, 32, 64, 128), (32, 64, 128, 256), (32, 64))
        for split, warps, stages in itertools.product((1, 2), (4, 8), (2, 3, 4))
        for group in (8, 4, 1, 16)
    ]
    draw = random.Random(3)
    journal = opened(tmp_path / "j")
    journal.add_begun(PROBLEM, Begun(len(names), 0, 1.5))
    before = journal.path.stat().st_size
    for name in names:
        us = float(f"{draw.lognormvariate(3, 1):.5g}")
        journal.add_screened(PROBLEM, Measurement(name, Outcome.MEASURED, "cudagraph", "screen", us, (us,)))
    journal.close()
    assert len(names) == 1536
    assert (journal.path.stat().st_size - before) / len(names) < 7
    assert read_journal(journal.path).of(PROBLEM) == journal.of(PROBLEM)


def test_a_journal_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A folder in its place is no traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write the journal"):
        opened(tmp_path / "file" / "j")


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    """Tuners of several GPUs write one journal; every line is whole and every fact there."""
    path = tmp_path / "j"
    journal = opened(path)

    def write(number: int) -> None:
        for i in range(100):
            journal.add_screened(PROBLEM, replace(SCREENED, config=f"c{number}_{i}", message="x" * 500))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    assert opened(path).of(PROBLEM).screened == journal.of(PROBLEM).screened
    assert len(journal.of(PROBLEM).screened) == 400
