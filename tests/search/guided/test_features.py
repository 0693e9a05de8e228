"""Features: every config of every shipped space has them all, as finite numbers that say what the config is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from forms import FORMS
from kept_configs import kept_configs

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels import catalogue
from genkern.kernels.catalogue import FAMILIES, traits_of
from genkern.kernels.contract.family import Family
from genkern.search.guided.features import features_of, physics_us, roofline_us

PROBLEMS = {
    "gfx942": GemmProblem(64, 512, 2048),
    "sm_80": GemmProblem(17, 1000, 1001, row_major_a=False, row_major_b=True, bias=True, activation="gelu"),
    "sm_90": GemmProblem(256, 1024, 2048),
    "sm_100": GemmProblem(512, 512, 512, op="grouped_gemm", own=(("groups", 4),)),
}


@pytest.mark.parametrize("arch", PROBLEMS)
def test_all_configs_have_all_of_them(arch: str) -> None:
    problem, gpu = PROBLEMS[arch], gpu_for_arch(arch)
    configs = list(kept_configs(problem, arch)[::7])
    columns = features_of(problem, configs, gpu)
    assert {len(column) for column in columns.values()} == {len(configs)}
    assert all(np.isfinite(column).all() for column in columns.values())
    assert columns["log_bm"].tolist() == [np.log2(config.BLOCK_SIZE_M) for config in configs]
    families = [name for name in columns if name.startswith("family=")]
    assert (sum(columns[name] for name in families) == 1).all()


def test_a_family_that_comes_later_is_told_from_all_others() -> None:
    problem, gpu = PROBLEMS["sm_90"], gpu_for_arch("sm_90")
    known = Config("tiled", 64, 64, 64)
    assert "family=tiled_later" not in features_of(problem, [known], gpu)
    catalogue.add(Family("tiled_later", replace(FORMS["tiled"], stem="tiled_later")))
    try:
        columns = features_of(problem, [Config("tiled_later", 64, 64, 64), known], gpu)
    finally:
        del FAMILIES["tiled_later"]
    assert columns["family=tiled_later"].tolist() == [1.0, 0.0]
    assert columns["family=tiled"].tolist() == [0.0, 1.0]


def test_physics_is_above_the_roofline() -> None:
    """In octaves, which are not negative since the predictor never goes below the peaks."""
    problem, gpu = PROBLEMS["sm_90"], gpu_for_arch("sm_90")
    configs = list(kept_configs(problem, "sm_90")[:50])
    above = features_of(problem, configs, gpu)["log_physics"]
    assert (above >= 0).all()
    assert np.allclose(2**above * roofline_us(problem, gpu), physics_us(problem, configs, gpu))


def test_formats_that_step_through_scales_are_told_from_others() -> None:
    """Blocks have a scale at each step over K, tokens one at the end."""
    gpu = gpu_for_arch("sm_90")
    of = {"dtype_a": "fp8e4m3fn", "dtype_b": "fp8e4m3fn"}
    tokens = GemmProblem(64, 512, 2048, op="a8w8", own=(("scales", "per_token"),), **of)
    blocks = GemmProblem(64, 512, 2048, op="a8w8_blockscale", **of)
    seen = [features_of(problem, list(kept_configs(problem, "sm_90")[:3]), gpu) for problem in (tokens, blocks)]
    assert [columns["step_operands"][0] for columns in seen] == [0, 2]
    assert [columns["scale_k"][0] for columns in seen] == [0, 7]


def test_copies_are_told_where_rows_must_be_realigned() -> None:
    """Of a size whose rows the copy engine cannot read: in octaves above the roofline, nought for what reads them."""
    problem, gpu = GemmProblem(256, 1024, 2047), gpu_for_arch("sm_90")
    configs = list(kept_configs(problem, "sm_90"))
    columns = features_of(problem, configs, gpu)
    realigned = np.array([traits_of(config).realigned for config in configs])
    assert realigned.any()
    assert ((columns["log_copies"] > 0) == realigned).all()
    splits = np.array([config.SPLIT_K > 1 for config in configs])
    assert (columns["log_splits"][splits] > 0).all()
