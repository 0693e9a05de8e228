"""Tests of `genkern completion`: the scripts complete commands, options and their values."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from command import run_here

from genkern.cli.completion import SHELLS, script
from genkern.gemm.gpus import known_archs
from genkern.subcommands import COMMANDS


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("completion")
    found = {}
    for shell in SHELLS:
        found[shell] = folder / shell
        found[shell].write_text(script(shell))
    return found


def completed(scripts: dict[str, Path], *words: str) -> set[str]:
    """What bash offers for the last of these words."""
    listed = " ".join(f"'{word}'" for word in words)
    program = (
        f". {scripts['bash']}; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _genkern; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_values(scripts: dict[str, Path]) -> None:
    assert completed(scripts, "genkern", "") == {*COMMANDS}
    assert completed(scripts, "genkern", "do") == {"doctor"}
    assert completed(scripts, "genkern", "pack", "--over") == {"--overwrite"}
    assert completed(scripts, "genkern", "tune", "--arch", "") == {*known_archs()}
    assert completed(scripts, "genkern", "--compare_w") == {"--compare_wo_tuning"}
    assert "--compare_wo_tuning" not in completed(scripts, "genkern", "tune", "--comp")


def test_bash_completes_files(scripts: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "sizes.yaml").touch()
    assert completed(scripts, "genkern", "tune", f"{tmp_path}/si") == {f"{tmp_path}/sizes.yaml"}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_reads_its_script(shell: str, scripts: dict[str, Path]) -> None:
    """Where that shell is installed."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n", str(scripts[shell])], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_every_command_is_in_every_script(shell: str, scripts: dict[str, Path]) -> None:
    text = scripts[shell].read_text()
    assert all(
        each.summary.replace("'", "") in text.replace("'\"'\"'", "").replace("\\'", "") for each in COMMANDS.values()
    )


def test_the_command_prints_the_script(scripts: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(capsys, "completion", "bash").out == scripts["bash"].read_text()
    assert "fish" in run_here(capsys, "completion", "tcsh").refusal
