"""Tests of genkern.space.languages: which families are tried, by the libraries that may win."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkern.errors import InputError
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import CUTE, FAMILIES
from genkern.space.languages import space_for_libraries
from genkern.space.prune import prune
from genkern.space.space import Space, load_space

DEFAULT = load_space(None, "sm_90", "a16w16")


def languages(space: Space) -> set[str]:
    return {FAMILIES[family.family].language for family in space.families}


@pytest.mark.parametrize(
    ("libraries", "expected"),
    [
        (["triton", "torch", "cublaslt"], {"triton"}),
        (["triton", "cute", "torch"], {"triton", "cute"}),
        (["cute"], {"cute"}),
        # No kernel of genkern's may win: Triton's are tried, as ever.
        (["torch"], {"triton"}),
    ],
)
def test_the_default_space(libraries: list[str], expected: set[str]) -> None:
    """Has the families whose language may win; what is Triton's alone is the default as it was."""
    space = space_for_libraries(None, "sm_90", "a16w16", libraries)
    assert languages(space) == expected
    if expected == {"triton"}:
        assert space == DEFAULT


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_the_families_in_cute_keep_their_rules(arch: str) -> None:
    """In one space with others, whose rules are not asked of them, pruning leaves the same of each."""
    problem, gpu = GemmProblem(4096, 6144, 4096), gpu_for_arch(arch)
    both, alone = (
        prune(space_for_libraries(None, arch, "a16w16", libraries), problem, gpu).kept
        for libraries in (["triton", "cute"], ["cute"])
    )
    default = load_space(None, arch, "a16w16")
    assert [config for config in both if config.family in CUTE] == alone != []
    assert [config for config in both if config.family not in CUTE] == prune(default, problem, gpu).kept


@pytest.mark.parametrize(("arch", "op"), [("gfx942", "a16w16"), ("sm_120", "a16w16"), ("sm_90", "a16w4")])
def test_where_there_is_none(arch: str, op: str) -> None:
    """Other targets and formats are as they were; asked for alone, that is refused in one line."""
    assert space_for_libraries(None, arch, op, ["triton", "cute"]) == load_space(None, arch, op)
    with pytest.raises(InputError, match="has no families in cute"):
        space_for_libraries(None, arch, op, ["cute"])


def test_a_space_that_was_asked_for(tmp_path: Path) -> None:
    """Gets no more families, and keeps those that may win."""
    assert languages(space_for_libraries("nvidia_sm90_cute", "sm_90", "a16w16", ["cute", "triton"])) == {"cute"}
    with pytest.raises(InputError, match=r"nvidia_sm90_cute .*triton"):
        space_for_libraries("nvidia_sm90_cute", "sm_90", "a16w16", ["triton"])
