"""Tests of genkern.packing.models.model_command: `genkern model` as a user runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command import run_here

from genkern.cli import target
from genkern.gemm.gpus import gpu_for_arch
from genkern.packing.models import model_command
from genkern.runtime.bundles.bundle import read_bundle

SMALL = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a model is, and nothing is shipped."""
    monkeypatch.setattr(model_command, "shipped_bundles", list)
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    return tmp_path


def argv(folder: Path, *more: object) -> list[object]:
    return ["model", folder, "--nsets", "1", "-o", folder / "m.genkern", "--arch", "sm_90", *more]


PREDICTED = ("--predicted", "--engine", "transformers", "--cache_dir")


def test_from_a_model_to_a_bundle(folder: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a GPU by a model's choices; again, with one size lost, that one alone is tuned."""
    whole = argv(folder, *PREDICTED, cache_dir)
    first = run_here(capsys, *whole)
    assert (first.status, first.err) == (0, ""), first
    assert "m.genkern covers 100.0% of the model's GEMM time" in first.out
    bundle = read_bundle(str(folder / "m.genkern"))
    assert {(each.problem.N, each.problem.K) for each in bundle.winners} == {
        *((512, 256), (256, 256), (1024, 256), (256, 512), (1000, 256)),
    }
    lines = (folder / "m.yaml").read_text().splitlines(keepends=True)
    (folder / "m.yaml").write_text("".join(line for line in lines if "'N': 1000" not in line))
    again = run_here(capsys, *whole)
    assert "4 of 5 sizes are in" in again.out
    assert (folder / "m.sizes.yaml").read_text().count("'M'") == 1
    assert len(read_bundle(str(folder / "m.genkern")).winners) == 5
    named = argv(folder, *PREDICTED, cache_dir, "--results", folder / "m.genkern")
    named[named.index("-o") + 1] = folder / "other.genkern"
    taken = run_here(capsys, *named)
    assert "5 of 5 sizes are in" in taken.out
    assert not (folder / "other.yaml").exists()
    assert len(read_bundle(str(folder / "other.genkern")).winners) == 5


def test_one_order_of_sums_is_tuned_for(folder: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ordinary rows that are there already are not taken for done; those of one order are, and are packed."""
    whole = argv(folder, *PREDICTED, cache_dir)
    assert run_here(capsys, *whole).status == 0
    ordered = [*whole, "--options", "--batch_invariant"]
    ran = run_here(capsys, *ordered)
    assert (ran.status, ran.err) == (0, ""), ran
    assert "one order of sums for all M" in ran.out
    assert all(winner.batch_invariant for winner in read_bundle(str(folder / "m.genkern")).winners)
    assert "5 of 5 sizes are in" in run_here(capsys, *ordered).out


def test_a_dry_run_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every size, with the layers that have it."""
    ran = run_here(capsys, *argv(folder, "--dry_run"))
    assert ran.status == 0
    assert "model.layers.0-1.self_attn       2  1x512x256   a16w16  bf16 bf16 bf16  to tune" in ran.out
    assert [path.name for path in folder.iterdir()] == ["config.json"]


@pytest.mark.parametrize("arch", ["", "sm_90", "gfx950"])
def test_a_dry_run_says_for_which_gpu_and_how_long(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    """On a machine without a GPU: the named architecture, else that of GENKERN_ARCH."""
    monkeypatch.setattr(target, "detect_devices", list)
    ran = run_here(capsys, "model", folder, "--nsets", "1,16", "--dry_run", *(("--arch", arch) if arch else ()))
    assert ran.status == 0
    assert gpu_for_arch(arch or "gfx942").name in ran.out
    (line,) = (line for line in ran.out.splitlines() if line.startswith("estimate"))
    # Seconds of the first of 8 sizes, and of each other.
    assert f"{5.2 + 7 * 1.8:.0f} s" in line


def test_a_dry_run_needs_no_name(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever lists sizes names no bundle, and a file that lies about is not read; whoever packs one names it."""
    monkeypatch.chdir(folder)
    (folder / "model.yaml").write_text("no results")
    named = argv(folder, "--dry_run")
    at = named.index("-o")
    nameless = [*named[:at], *named[at + 2 :]]
    ran = run_here(capsys, *nameless)
    assert ran.status == 0
    assert ran.out == run_here(capsys, *named).out
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.yaml"}
    nameless.remove("--dry_run")
    assert "-o FILE names the bundle" in run_here(capsys, *nameless).refusal


def test_sizes_that_a_program_calls(
    folder: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is run once; sizes are those that it wrote down."""
    monkeypatch.setenv("GENKERN_CONFIG", "others.genkern")
    program = """
import os, pathlib
folder = pathlib.Path(os.environ["GENKERN_RECORD_DIR"])
assert os.environ["GENKERN_TUNE_GEMM"] == "1" and "GENKERN_CONFIG" not in os.environ
folder.mkdir(parents=True)
types = {name: "bf16" for name in ("dtype_a", "dtype_b", "dtype_c")}
(folder / "recorded_x_1.yaml").write_text(f"- {dict(M=1, N=256, K=256, **types)}\\n")
"""
    script = folder / "program.py"
    script.write_text(program)
    command = ["model", "-o", folder / "c.genkern", "--arch", "sm_90", "--predicted", "--cache_dir", cache_dir]
    command += ["--capture", sys.executable, script]
    ran = run_here(capsys, *command)
    assert (ran.status, ran.err) == (0, ""), ran
    (winner,) = read_bundle(str(folder / "c.genkern")).winners
    assert winner.problem.size == "1x256x256"
    script.write_text("raise SystemExit('again')")
    assert "remove it to run the program again" in run_here(capsys, *command).out


@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        ({}, (), "4 of 4 sizes are not tuned, and this machine has no GPU to measure on: --predicted"),
        ({"model_type": "newest"}, ("--dry_run",), "model_type = 'newest'"),
        ({"model_type": "newest"}, ("--dry_run",), "--like llama"),
        ({"model_type": "newest"}, ("--dry_run",), "--capture"),
        ({}, ("--capture", "python"), "name a model's folder or its config.json, or a program behind --capture"),
        ({}, ("--dry_run", "--options=--no_such"), "--no_such"),
    ],
)
def test_refusals(
    folder: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], more: tuple[str, ...], said: str
) -> None:
    """One line, and nothing is written."""
    (folder / "config.json").write_text(json.dumps({**SMALL, **change}))
    assert said in run_here(capsys, *argv(folder, *more)).refusal
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_a_model_like_another(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And weights that are stored otherwise than it says."""
    (folder / "config.json").write_text(json.dumps({**SMALL, "model_type": "newest"}))
    ran = run_here(capsys, *argv(folder, "--dry_run", "--like", "llama", "--quantization", "fp8_block"))
    assert ran.out.count("a8w8_blockscale") == 4
    assert "lm_head" in ran.out


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (("no_such_program_here",), "no_such_program_here cannot be run"),
        ((sys.executable, "-c", "raise SystemExit(3)"), "ended with 3"),
        ((sys.executable, "-c", ""), "called no size through genkern"),
        ((), "name the program to run behind it"),
    ],
)
def test_programs_that_say_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], program: tuple[str, ...], said: str
) -> None:
    """A program that fails, or calls nothing, makes no bundle."""
    command = ["model", "-o", folder / "c.genkern", "--arch", "sm_90", "--predicted", "--capture", *program]
    assert said in run_here(capsys, *command).refusal
    assert not (folder / "c.genkern").exists()
