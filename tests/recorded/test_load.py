"""What was recorded comes back exactly: as a frame and as records, from tables and from journals alike."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from recorded_runs import BEST, BROKEN, CONFIGS, COPIES, FIT, NEEDS, OTHER, PROBLEM, UNITS, US, WRONG, journal

from genkern.errors import GenkernError, ResultsError
from genkern.gemm.gpus import gpu_for_device
from genkern.gemm.records import Measurement, Outcome
from genkern.journal.facts import JournalFacts
from genkern.recorded.from_journal import run_of
from genkern.recorded.load import load, recorded_problems
from genkern.recorded.parquet import add
from genkern.recorded.problem import RecordedProblem

SLOWER = 2.0


def recorded(folder: Path, *journals: JournalFacts) -> str:
    """A folder with a table of each journal's run."""
    for place, facts in enumerate(journals):
        add(run_of(facts), str(folder / "tables" / f"{place}.parquet"))
    return str(folder / "tables")


def measurements(found: RecordedProblem) -> dict[str, tuple[float | None, float | None, Outcome]]:
    """By name what a table keeps of first measurements."""
    return {
        config.name: (found.us.get(config), found.took_ms.get(config), outcome)
        for config, outcome in zip(found.configs, found.outcomes, strict=True)
    }


def test_a_journal_comes_back_exactly(tmp_path: Path) -> None:
    """Every time to the journal's last digit, every outcome, binary and check; of all formats' problems."""
    facts = journal(tmp_path / "r.yaml.journal", PROBLEM, OTHER)
    problems = list(recorded_problems(recorded(tmp_path, facts)))
    assert [found.problem for found in problems] == [PROBLEM, OTHER]
    for found in problems:
        assert found.gpu == gpu_for_device("NVIDIA H200", "sm_90")
        assert found.whole
        assert found.configs == CONFIGS
        assert list(found.units) == UNITS
        known: dict[str, Measurement] = facts.of(found.problem).screened
        screened = {name: (m.duration_us, m.took_ms, m.outcome) for name, m in known.items()}
        refused = {config.name: (None, None, Outcome.COMPILE_FAILED) for config in BROKEN}
        copies = {config.name: (None, None, Outcome.IDENTICAL) for config in COPIES}
        assert measurements(found) == {**screened, **refused, **copies}
        made = {unit: place for place, unit in enumerate(UNITS) if unit.configs != BROKEN}
        assert found.compile_s == {unit: 0.5 + place for unit, place in made.items()}
        assert found.resources == dict.fromkeys(made, NEEDS)
        assert found.final_us == {config: US[config.name] * 1.0123456789 for config in (WRONG, BEST)}
        assert found.library_us == {"torch": 9.9}
        assert found.wrong == {WRONG}
        assert found.copies == dict(zip(COPIES, FIT[15:], strict=True))


def test_journals_are_read_as_tables_are(tmp_path: Path) -> None:
    """What has not been recorded yet can be replayed too."""
    facts = journal(tmp_path / "r.yaml.journal", PROBLEM, OTHER)
    tables = recorded_problems(recorded(tmp_path, facts))
    for of_journal, of_table in zip(recorded_problems(str(tmp_path / "r.yaml")), tables, strict=True):
        assert measurements(of_journal) == measurements(of_table)
        for name in ("problem", "run", "whole", "us", "final_us", "compile_s", "resources", "wrong", "library_us"):
            assert getattr(of_journal, name) == getattr(of_table, name), name


def test_a_frame_has_every_row(tmp_path: Path) -> None:
    """With the journal's digits, whole numbers that may be missing, and where it comes from."""
    frame = load(recorded(tmp_path, journal(tmp_path / "r.journal", PROBLEM, OTHER)))
    assert len(frame) == 2 * (len(CONFIGS) + 1)
    timed = frame[frame["config"] == BEST.name]
    assert timed["screen_us"].tolist() == [US[BEST.name]] * 2
    assert timed["final_samples_us"].iloc[0].tolist()[0] == US[BEST.name] * 1.0123456789
    assert str(frame["spills"].dtype) == "Int32"
    assert frame.groupby("op", observed=True)["M"].first().to_dict() == {"a16w16": 64, "a8w8": 33}
    ((name, run),) = frame.attrs["runs"].items()
    assert set(frame["run"]) == {name}
    assert run["command"] == "genkern -i s.yaml --exhaustive"


def test_of_several_runs_the_last_whole_one_counts(tmp_path: Path) -> None:
    """Times of one problem are of one run; a later one that measured a part does not hide one that measured all."""
    early = journal(tmp_path / "early.journal", PROBLEM, OTHER)
    late = journal(tmp_path / "late.journal", PROBLEM, time_s=1.8e9, factor=SLOWER)
    part = journal(tmp_path / "part.journal", PROBLEM, time_s=1.9e9, most=5)
    folder = recorded(tmp_path, early, late, part)
    best = {found.problem: found for found in recorded_problems(folder)}
    assert len(best) == 2
    assert best[PROBLEM].us[BEST] == US[BEST.name] * SLOWER
    assert best[OTHER].us[BEST] == US[BEST.name]
    assert [len(found.us) for found in recorded_problems(folder, "all")] == [17, 17, 17, 5]
    assert len(load(folder, "all").attrs["runs"]) == 3
    assert len(load(folder).attrs["runs"]) == 2


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("config", "rm -rf", "is not a config name"),
        ("outcome", "fine", "not a valid Outcome"),
        ("M", -1, "M = "),
        ("op", "a7w7", "a7w7"),
        ("screen_us", float("inf"), "not a time"),
        ("arch", "sm_1", "sm_1"),
    ],
)
def test_values_are_checked(tmp_path: Path, column: str, value: object, said: str) -> None:
    """A table is data of somebody: what has no sense is said in one line, with the file."""
    folder = recorded(tmp_path, journal(tmp_path / "r.journal"))
    path = Path(folder) / "0.parquet"
    table = pq.read_table(path)
    place = table.column_names.index(column)
    values = [value, *table[column].to_pylist()[1:]]
    import pyarrow as pa

    pq.write_table(table.set_column(place, column, pa.array(values)), path)
    with pytest.raises(ResultsError, match=said) as error:
        list(recorded_problems(folder))
    assert "tables" in str(error.value)
    assert "\n" not in str(error.value)


def test_neither_table_nor_run_is_refused(tmp_path: Path) -> None:
    """An empty folder, and a file that is another's."""
    (tmp_path / "notes.txt").write_text("none")
    for path in (tmp_path, tmp_path / "notes.txt", tmp_path / "missing.parquet"):
        with pytest.raises(GenkernError, match=path.name):
            list(recorded_problems(str(path)))


def test_fit_configs_are_measured() -> None:
    """The journals of these tests have more than one config of every kind."""
    assert len(FIT) == len(US) == 18
