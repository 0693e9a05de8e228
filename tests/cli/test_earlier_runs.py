"""What a run says of an earlier one on the same results file: of another version, or that did otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command import SMALL, Ran, run_here
from tiny_space import TINY_AMD

from genkern.journal.header import SCHEMA

OLD = b'{"fact":"header","value":{"schema":3,"arch":"gfx942"},"crc":1}\n{"fact":"problem"}\n'
Here = Callable[..., Ran]


@pytest.fixture
def here(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Tunes three sizes into r.yaml, with these options more."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sizes.yaml").write_text(SMALL)
    quick = [
        "-i",
        "sizes.yaml",
        "--arch",
        "gfx942",
        "--profiler",
        "predict",
        "--compile",
        "--dtype_a",
        "bf16",
        "--jobs",
        1,
        "--cache_dir",
        cache_dir,
    ]

    def tune(*options: object, space: object = TINY_AMD, results: str = "r.yaml") -> Ran:
        return run_here(capsys, *quick, "--space", space, "-o", results, *options)

    return tune


def notes(ran: Ran) -> list[str]:
    assert ran.status == 0, ran
    return [line for line in ran.out.splitlines() if line.startswith("note: ")]


@pytest.mark.parametrize("options", [[], ["--all"]])
def test_the_journal_of_another_version(options: list[str], here: Here, tmp_path: Path) -> None:
    """Nothing of it can be used, so the run begins anew, says so in one line, and the file is kept."""
    (tmp_path / "r.yaml.journal").write_bytes(OLD)
    (note,) = notes(here(*options))
    assert f"r.yaml.journal is of another version of genkern (schema 3, here {SCHEMA}); " in note
    assert note.endswith("and it is kept as r.yaml.journal.replaced")
    assert (tmp_path / "r.yaml.journal.replaced").read_bytes() == OLD
    assert not (tmp_path / "r.yaml.journal").exists()
    assert notes(here()) == ["note: 3 of 3 sizes are in r.yaml already (--all tunes them again)"]


def test_the_status_of_a_run_of_another_version(here: Here, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What its results say, if it has any; else one line."""
    assert here().status == 0
    (tmp_path / "r.yaml.journal.previous").write_bytes(OLD)
    ran = run_here(capsys, "status", "r.yaml")
    lines = ran.out.splitlines()
    assert lines[0] == f"r.yaml.journal.previous is of another version of genkern (schema 3, here {SCHEMA})"
    assert lines[1].startswith("r.yaml: results of 3 sizes, written ")
    (tmp_path / "r.yaml").unlink()
    assert "another version of genkern" in run_here(capsys, "status", "r.yaml").refusal


def test_results_of_another_space_are_not_passed_off_as_done(here: Here, tmp_path: Path) -> None:
    """Nor with another tolerance: one line says what was otherwise, and how to tune again. Also where it is a CSV."""
    (tmp_path / "mine.yaml").write_text(
        "archs: [gfx942]\nops: [a16w16]\nrules: []\nfamilies:\n"
        "  - {family: tiled, BLOCK_SIZE_M: [16], BLOCK_SIZE_N: [16], BLOCK_SIZE_K: [64], num_warps: [4],\n"
        "     GROUP_SIZE_M: [1], SPLIT_K: [1], num_stages: [2], waves_per_eu: [0],\n"
        "     matrix_instr_nonkdim: [16], kpack: [1], schedule_hint: [none]}\n"
    )
    for results in ("r.yaml", "r.csv"):
        assert here(results=results).status == 0
        already = f"note: 3 of 3 sizes are in {results} already (--all tunes them again)"
        assert notes(here(results=results)) == [already]
        (compared, unchecked) = notes(here("--compare", results=results))
        assert compared.endswith("tunes them again, --compare_wo_tuning checks them)")
        why = "winners were not checked (--all tunes them again)"
        assert unchecked == f"note: 3 of these were tuned differently: {why}"
        other = notes(here("--errRatio", "0.01", results=results, space="mine.yaml"))
        assert other == [
            already,
            "note: 3 of these were tuned differently: the search space of a16w16 was tiny_amd, is mine; "
            "errRatio was 1.0, is 0.01 (--all tunes them again)",
        ]
    assert notes(here("--all", space="mine.yaml")) == []
    assert len(notes(here(space="mine.yaml"))) == 1
    # Of the sizes that are there only those that the last run tuned are known.
    (tmp_path / "sizes.yaml").write_text("- {'M': 7, 'N': 128, 'K': 256}\n")
    assert here().status == 0
    (tmp_path / "sizes.yaml").write_text("- {'M': 7, 'N': 128, 'K': 256}\n" + SMALL)
    assert "note: 1 of these was tuned differently: " in notes(here(space="mine.yaml"))[1]
