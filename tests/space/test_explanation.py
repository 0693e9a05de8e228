"""Tests of genkern.space.explanation: what --explain says of parameters."""

from __future__ import annotations

from genkern.space.explanation import parameters_table
from genkern.space.space import load_space


def test_parameters_of_the_space_with_what_they_mean() -> None:
    """Each that is listed off its neutral value, once a family, with all values that any entry lists."""
    lines = parameters_table(load_space(None, "sm_90", "a16w16")).splitlines()
    said = {tuple(line.split(" = ")[0].split()): line for line in lines[1:]}
    assert len(said) == len(lines) - 1
    assert {("tiled_tma", "reduce"), ("warp_specialized", "cluster_k"), ("warp_specialized", "cluster")} <= set(said)
    assert "1, 2, 3, 4, 5, 8" in said["warp_specialized", "cluster_k"]
    assert said["warp_specialized", "cluster_k"].endswith("programs of a cluster that share K of one tile")
    assert not any(parameter in ("BLOCK_SIZE_M", "waves_per_eu", "cache_modifier") for _, parameter in said)


def test_nothing_where_all_is_neutral() -> None:
    """Of AMD's options 0 is Triton's own choice, and no line."""
    assert parameters_table(load_space("nvidia_quick", "sm_90", "a16w16")) == ""
    assert "matrix_instr_nonkdim = 16, 32" in parameters_table(load_space("amd", "gfx942", "a16w16"))
