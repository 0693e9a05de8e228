"""Whole runs of the command in which genkern itself is at fault: one size ends, with one line and a log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import SMALL, Ran, run_here
from machines import machine
from processes import assert_gone
from small_gemms import needs_interpreter
from tiny_space import EVERYTHING, FASTER, NAMES, tiny_command

import genkern.compile.build_environment
import genkern.tuning.checkers
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import GeneratedModule, generate

_SPACE = """archs: [gfx942]
ops: [a16w16]
rules: []
families:
  - {family: tiled, BLOCK_SIZE_M: [16, 32], BLOCK_SIZE_N: [32], BLOCK_SIZE_K: [64], num_warps: [4],
     GROUP_SIZE_M: [1, 4], SPLIT_K: [1], num_stages: [2], waves_per_eu: [0], matrix_instr_nonkdim: [16], kpack: [1],
     schedule_hint: [none]}
"""
SIZES = "- {'M': 64, 'N': 128, 'K': 256}\n- {'M': 64, 'N': 256, 'K': 256}\n"


def changed(module: GeneratedModule, change: Callable[[str], str]) -> GeneratedModule:
    """With other texts."""
    texts = {"kernels_text": change(module.kernels_text), "measured_text": change(module.measured_text)}
    return dataclasses.replace(module, render=lambda: change(module.text), **texts)


def wrong_text(module: GeneratedModule) -> GeneratedModule:
    """A template that misspells one of Triton's functions."""
    return changed(module, lambda text: text.replace("tl.store(", "tl.stor("))


def wrong_module(module: GeneratedModule) -> GeneratedModule:
    """A template whose module is no Python."""
    return changed(module, lambda text: f"def f(:\n{text}")


def wrong_name(module: GeneratedModule) -> GeneratedModule:
    """A template that calls a helper by another name."""
    return changed(module, lambda text: text.replace("= tile_of(", "= tiles_of("))


def wrong_generator(module: GeneratedModule) -> GeneratedModule:
    """A generator that looks for what is not there."""
    return {}[module.arch]  # type: ignore[no-any-return]


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run the command over three sizes, of which those with an odd K are generated wrongly."""
    (tmp_path / "sizes.yaml").write_text(SMALL)
    (tmp_path / "tiny.yaml").write_text(_SPACE)

    def tune(wrong: Callable[[GeneratedModule], GeneratedModule], *options: object) -> Ran:
        def generated(problem: GemmProblem, configs: Sequence[Config], *given: Any) -> GeneratedModule:
            module = generate(problem, configs, *given)
            return wrong(module) if problem.K % 2 else module

        monkeypatch.setattr(genkern.compile.build_environment, "generate", generated)
        monkeypatch.setattr(genkern.tuning.checkers, "generate", generated)
        options = options or (
            "-i",
            tmp_path / "sizes.yaml",
            "-o",
            tmp_path / "r.yaml",
            "--space",
            tmp_path / "tiny.yaml",
        )
        device = (
            "--jobs",
            1,
            "--cache_dir",
            tmp_path / "cache",
            "--arch",
            "gfx942",
            "--profiler",
            "predict",
            "--compile",
        )
        return run_here(capsys, *options, *device)

    return tune


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (wrong_text, "AttributeError: module 'triton.language' has no attribute 'stor'"),
        (wrong_module, "SyntaxError"),
        (wrong_generator, "KeyError: 'gfx942'"),
    ],
)
def test_a_bug_ends_its_size_only(
    wrong: Callable[[GeneratedModule], GeneratedModule], said: str, tuned: Callable[..., Ran], tmp_path: Path
) -> None:
    """Its line says what, that it is a bug and where the rest is; the other sizes are tuned, the status is 3.

    Nothing of it is remembered: with the fault put right, the same command tunes that size.
    """
    ran = tuned(wrong)
    assert (ran.status, ran.err) == (3, "")
    (line,) = (line for line in ran.out.splitlines() if "bug in genkern" in line)
    log = tmp_path / "r.yaml.bug.log"
    assert line.startswith("33x64x4097: a bug in genkern: ")
    assert said in line
    assert line.endswith(f"{log} has details: please report it")
    assert "Traceback" in log.read_text()
    assert said in log.read_text()
    assert [entry["M"] for entry in yaml.safe_load((tmp_path / "r.yaml").read_text())] == [16, 64]
    assert "compile_failed" not in ran.out

    again = tuned(lambda module: module)
    assert (again.status, again.err) == (0, "")
    assert "2 of 3 sizes are in" in again.out
    assert [entry["M"] for entry in yaml.safe_load((tmp_path / "r.yaml").read_text())] == [16, 64, 33]


@needs_interpreter
@pytest.mark.usefixtures("fast_checks")
@pytest.mark.parametrize("wrong", [wrong_generator, wrong_name])
def test_a_bug_when_checking_a_file(
    wrong: Callable[[GeneratedModule], GeneratedModule], tuned: Callable[..., Ran], tmp_path: Path
) -> None:
    """--compare_wo_tuning goes on with the other configs, and calls none wrong that is not."""
    assert tuned(lambda module: module).status == 0
    results = tmp_path / "r.yaml"
    ran = tuned(wrong, "--compare_wo_tuning", "-i", results, "-o", tmp_path / "checked.yaml")
    assert (ran.status, ran.err) == (3, "")
    assert "WRONG" not in ran.out
    assert ran.out.count(": ok: ") == 2
    assert "33x64x4097 a16w16 bf16: a bug in genkern: " in ran.out
    assert "Traceback" in (tmp_path / "checked.yaml.bug.log").read_text()


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_bug_of_the_measured_process(
    gpus: int, cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No config failed to launch: the size ends, the process is another one for the next, and the status is 3."""
    bug = {"bug": "KeyError: 'BLOCK_SIZE_M'", "details": "Traceback: in bind\n"}
    env = machine(tmp_path, gpus=gpus, bug=bug, bug_in="64x128x256", faster=FASTER)
    ran = run_here(capsys, *tiny_command(tmp_path, cache_dir, SIZES), "--ngpus", gpus, env=env)
    assert (ran.status, ran.err) == (3, "")
    assert "64x128x256: a bug in genkern: KeyError: 'BLOCK_SIZE_M'; " in ran.out
    assert "launch_failed" not in ran.out
    assert "Traceback: in bind" in (tmp_path / "r.yaml.bug.log").read_text()
    assert [entry["N"] for entry in yaml.safe_load((tmp_path / "r.yaml").read_text())] == [256]
    assert_gone(tmp_path)


@pytest.mark.parametrize(("options", "tried"), [(EVERYTHING, len(NAMES)), ((), len(NAMES) // 2)])
def test_a_family_that_never_runs_is_a_warning(
    options: tuple[str, ...], tried: int, cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of its configs that were tried were refused by the device: once a size, with the first message; that is no
    bug. By default each binary is tried once, and the other group sizes of those that run.
    """
    env = machine(tmp_path, gpus=1, faults=dict.fromkeys(NAMES, "refused"))
    ran = run_here(capsys, *tiny_command(tmp_path, cache_dir, SIZES), *options, env=env)
    assert (ran.status, ran.err) == (1, "")
    warnings = [line for line in ran.out.splitlines() if "warning" in line]
    assert warnings == [
        f"64x{n}x256: warning: no tiled config ran (launch_failed {tried}): "
        "RuntimeError: out of resource: shared memory"
        for n in (128, 256)
    ]
    assert not (tmp_path / "r.yaml.bug.log").exists()
