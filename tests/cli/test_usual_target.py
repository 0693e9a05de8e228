"""Tests of the target of runs on a machine without a GPU: a file, GENKERN_ARCH or the user names it, never silence."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from command import run_here
from winner_factory import winner, write_results

from genkern.cli.options import parse
from genkern.cli.target import choose_target
from genkern.errors import InputError
from genkern.gemm.gpus import known_archs

SIZE = ["-m", "1", "-n", "16", "-k", "16"]


def arch_of(*argv: object) -> tuple[str, str]:
    target = choose_target(parse([str(each) for each in argv]), [])
    return target.arch, target.gpu.name


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GENKERN_ARCH", raising=False)


def test_without_any_name_a_script_is_refused_with_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, status 2, nothing written."""
    monkeypatch.setattr("genkern.cli.target.detect_devices", list)
    monkeypatch.setattr("genkern.cli.setting.detect_devices", list)
    monkeypatch.chdir(tmp_path)
    refusal = run_here(capsys, *SIZE).refusal
    assert all(arch in refusal for arch in known_archs())
    assert "GENKERN_ARCH" in refusal
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "found"),
    [("sm_80", "NVIDIA A100"), ("sm_90", "NVIDIA H200"), ("h100", "NVIDIA H100"), ("MI300X", "AMD Instinct MI300X")],
)
def test_a_variable_names_an_architecture_or_a_gpu(text: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENKERN_ARCH", text)
    assert found in arch_of(*SIZE)[1]


def test_options_come_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENKERN_ARCH", "gfx942")
    assert arch_of(*SIZE, "--arch", "sm_90")[0] == "sm_90"
    assert arch_of(*SIZE, "--device", "h100")[1] == "NVIDIA H100"


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENKERN_ARCH", "sm_9")
    with pytest.raises(InputError, match="GENKERN_ARCH"):
        arch_of(*SIZE)


def test_results_name_the_gpu_that_they_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As sizes, to be checked, or to go on with; the variable is not asked then."""
    monkeypatch.setenv("GENKERN_ARCH", "gfx942")
    path = tmp_path / "r.yaml"
    write_results(path, [winner(arch="sm_90", device="NVIDIA H100 80GB HBM3")], 132)
    for argv in (["-i", path], ["check", path], ["--compare_wo_tuning", "-i", path], [*SIZE, "-o", path]):
        assert arch_of(*argv) == ("sm_90", "NVIDIA H100")


def test_results_of_several_gpus_name_none(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    write_results(path, [winner(16), winner(32, arch="sm_90", device="NVIDIA H200")])
    with pytest.raises(InputError, match="--device"):
        arch_of("-i", path)


def test_sizes_name_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENKERN_ARCH", "sm_80")
    path = tmp_path / "sizes.yaml"
    path.write_text("- {'M': 16, 'N': 128, 'K': 256}\n")
    assert arch_of("-i", path)[0] == "sm_80"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_at_a_terminal_the_user_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the list; a wrong answer is asked again, no answer is a refusal."""
    monkeypatch.setattr("sys.stderr", said := Terminal())
    monkeypatch.setattr("sys.stdin", Terminal("sm_9\nsm_90\n"))
    assert arch_of(*SIZE)[0] == "sm_90"
    assert all(arch in said.getvalue() for arch in known_archs())
    monkeypatch.setattr("sys.stdin", Terminal(""))
    with pytest.raises(InputError):
        arch_of(*SIZE)
