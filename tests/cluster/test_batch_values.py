"""Tests of genkern.cluster.batch_values: nothing comes through that a shell or sbatch would take apart."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from genkern.cluster.batch_values import absolute, account, duration, gpus, partitions, require_plain
from genkern.errors import InputError

_HOSTILE = "a b", "$(id)", "a;b", "a\nb", "a`b`", "", "-p", "a'b", 'a"b', "a#b", "{{ 7 * 7 }}", "a/b", "é"


@pytest.mark.parametrize("read", [partitions, account, duration, gpus])
def test_hostile_values_are_refused(read: Callable[[str], str]) -> None:
    for text in _HOSTILE:
        with pytest.raises(argparse.ArgumentTypeError, match="is not "):
            read(text)


def test_values_of_slurm_are_taken() -> None:
    """As its manual has them."""
    for read, texts in (
        (partitions, ("cpu", "cpu,big.mem-2")),
        (account, ("proj_1",)),
        (duration, ("90", "10:00", "12:30:00", "2-12", "2-12:30", "2-12:30:00")),
        (gpus, ("1", "h200:4", "a100-sxm4-80gb:8")),
    ):
        for text in texts:
            assert read(text) == text


def test_files_that_options_name_are_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of shipped spaces and strategies stay as they are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").touch()
    given = ["--space", "own.yaml", "--search=predicted:4", "--kernels=own.yaml", "--compare", "--cache-dir", "gone"]
    own = str(tmp_path / "own.yaml")
    assert absolute(given) == ["--space", own, "--search=predicted:4", f"--kernels={own}", *given[4:]]
    assert absolute(["--space", "amd"]) == ["--space", "amd"]


def test_paths_of_more_than_a_line_are_refused() -> None:
    assert require_plain("a 'b' $(c)", "the path") == "a 'b' $(c)"
    with pytest.raises(InputError, match="unprintable"):
        require_plain("a\n#SBATCH --wrap=id", "the path")
