"""GPUs of one's own, by YAML alone: the example of docs/your_own_gpu.md, through the whole command, with Triton."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from command import run
from long_tests import drawn

from genkern.files.file_kind import read_results
from genkern.gemm.gpu_table import ENVIRONMENT, read_table

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "your_own_gpu.md"
SIZE = ("-m", 64, "-n", 256, "-k", 256)
SPACE = """archs: [{arch}]
ops: [a16w16]
rules: []
families:
  - {{family: tiled, BLOCK_SIZE_M: [64], BLOCK_SIZE_N: [64], BLOCK_SIZE_K: [64], GROUP_SIZE_M: [1], SPLIT_K: [1],
     num_warps: [4], num_stages: [2]{more}}}
"""
AMD = ", waves_per_eu: [0], matrix_instr_nonkdim: [16], kpack: [1], schedule_hint: [none]"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """The environment with the document's file."""
    ((name, text),) = re.findall(r"^`(\S+)`:\n\n```yaml\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / name).write_text(text)
    return {ENVIRONMENT: str(tmp_path / name)}


@pytest.mark.parametrize(
    ("arch", "like", "name", "more", "compiled_for"),
    drawn(
        [("sm_103", "sm_100", "NVIDIA B300", "", 103), ("gfx1200", "gfx1201", "AMD Radeon RX 9060 XT", AMD, "gfx1200")],
        1,
    ),
)
def test_a_new_architecture_is_compiled_for(
    arch: str, like: str, name: str, more: str, compiled_for: object, files: dict[str, str], tmp_path: Path
) -> None:
    """By Triton, from a space of the one that it is like; the results are of the new one."""
    (tmp_path / "space.yaml").write_text(SPACE.format(arch=like, more=more))
    results = tmp_path / "results.yaml"
    given = ("--space", tmp_path / "space.yaml", "-o", results, "--cache_dir", tmp_path / "cache")
    ran = run(*SIZE, "--arch", arch, "--compile", *given, env={**os.environ, **files})
    assert ran.status == 0, ran
    assert f"{name} ({arch})" in ran.out
    (row,) = read_results(str(results))
    assert (row.arch, row.config is not None) == (arch, True)
    (binary,) = (tmp_path / "cache").rglob("kernel.json")
    assert json.loads(binary.read_text())["target"]["arch"] == compiled_for


def test_a_new_architecture_has_the_spaces_of_the_one_it_is_like(files: dict[str, str]) -> None:
    """Where nobody says another: with the families whose instructions it has."""
    ran = run(*SIZE, "--arch", "sm_103", "--explain", "--libtype", "triton,cute", env={**os.environ, **files})
    assert ran.status == 0, ran
    assert "NVIDIA B300, space nvidia_sm100+nvidia_sm100_cute" in ran.out


def test_a_new_device_has_its_own_figures(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rest of its architecture's."""
    monkeypatch.setenv(ENVIRONMENT, files[ENVIRONMENT])
    h200, *_, (match, h20) = (device for device in read_table()["sm_90"].devices)
    assert match == {"h20"}
    assert (h20.compute_units, h20.peak_tflops["fp16"]) == (78, pytest.approx(146.2, rel=0.01))
    assert h20.has == h200[1].has


def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    """One line, and status 2."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("sm_103: {like: sm_100, devices: [{name: B300}]}\n")
    ran = run(*SIZE, "--explain", env={**os.environ, ENVIRONMENT: str(bad)})
    assert (ran.status, ran.err) == (2, f"genkern: {bad}: sm_103: B300 has no clock_mhz\n")


def test_what_is_compiled_for_it_is_in_the_table_of_formats(files: dict[str, str]) -> None:
    """As for what it is like."""
    ran = run("ops", env={**os.environ, **files})
    states: dict[str, list[str]] = {}
    for part in ran.out.split("\n\n"):
        head, *rows = (re.split("  +", line) for line in part.splitlines())
        for place, arch in enumerate(head):
            states[arch] = [row[place] for row in rows if len(row) == len(head)]
    assert "compiled" in states["sm_103"]
    assert states["sm_103"] == states["sm_100"]
