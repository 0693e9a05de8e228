"""Tests of cli/new_machine/proving.py: which kernels a first run proves and times."""

from __future__ import annotations

from pathlib import Path

import pytest
from long_tests import drawn

from genkern.cli.new_machine import proving
from genkern.cli.new_machine.proving import TIMED, main, proofs, timed
from genkern.cli.options import parse
from genkern.cli.setting import Setting, make_setting
from genkern.cli.verify import read_own_results
from genkern.files.gemm_entry import GemmDefaults
from genkern.kernels.catalogue import traits_of
from genkern.kernels.legality import legal


def setting_of(arch: str, *more: str) -> Setting:
    return make_setting(parse(["-m", "1", "-n", "1", "-k", "1", "--arch", arch, *more]))


@pytest.mark.parametrize("arch", drawn(["gfx942", "sm_90"], 1))
def test_each_kind_of_kernel_is_proved_once(arch: str) -> None:
    """Every form of every family, with and without a split of K, tiles of few rows apart; all legal."""
    setting = setting_of(arch)
    ((problem, configs),) = proofs(setting, ["a16w16"])
    kinds = [(traits_of(c).stem, c.SPLIT_K > 1, c.BLOCK_SIZE_M < 16) for c in configs]
    assert len({*kinds}) == len(kinds) > 1
    assert any(splits for _, splits, _ in kinds)
    assert [legal(problem, config, setting.target.gpu) for config in configs] == [""] * len(configs)
    found = list(timed(setting, TIMED))
    assert [(p.M, p.N, p.K) for p, _ in found] == list(TIMED)


def test_what_it_writes_is_what_a_check_reads(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results without times; their kernels are in the cache, and a format without a space is named."""
    monkeypatch.setattr(proving, "SIZE", {"M": 16, "N": 32, "K": 64})
    monkeypatch.setattr(proving, "TIMED", ((16, 32, 64),))
    space = str(Path(__file__).parents[2] / "tiny_amd.yaml")
    options = ["--arch", "gfx942", "--space", space, "--cache_dir", str(cache_dir), "--jobs", "1"]
    assert main([str(tmp_path), "--ops", "a16w16,a16w4", *options]) == 0
    said = capsys.readouterr().out
    assert "a16w4: left out: " in said
    assert "a16w16 16x32x64: 1 kernels, tiled" in said
    assert "not compiled" not in said
    results = read_own_results(str(tmp_path / "proof.yaml"), GemmDefaults()).results
    assert [(each.problem.size, each.arch, each.known_config.family) for each in results] == [
        ("16x32x64", "gfx942", "tiled")
    ]
    assert (tmp_path / "timed.yaml").read_text().count("\n") == 1
