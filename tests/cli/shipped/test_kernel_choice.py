"""Which kernels are chosen for sizes that are given."""

from __future__ import annotations

import pytest
from small_gemms import target_of

from genkern.cli.kernel_cache.kernel_choice import Ranking, WantedUnit, chosen
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.space.space import load_space

SIZES = [GemmProblem(m, 64, 64) for m in (16, 32, 48)]


def units(*names: str) -> list[WantedUnit]:
    """Units whose binaries are the letters of these words."""
    return [WantedUnit(Config("tiled", 16 * (1 + number), 32, 64), tuple(name)) for number, name in enumerate(names)]


WANTED = dict(zip(SIZES, (units("a", "b", "cd", "x"), units("a", "e", "b"), units("f", "b", "g")), strict=True))


@pytest.mark.parametrize(
    ("count", "keys", "first"),
    [
        (0, "", 0),
        (1, "a", 0),
        (2, "af", 1),
        # Of the second place that first which two sizes want, though it is another's turn.
        (3, "abf", 1),
        (4, "abef", 2),
        # Both binaries of a unit, or none: and then nothing that stands behind it.
        (5, "abef", 2),
        (6, "abcdef", 2),
        (7, "abcdefg", 3),
        (99, "abcdefgx", 4),
    ],
)
def test_each_sizes_first_come_first(count: int, keys: str, first: int) -> None:
    """Then each one's second, and so on; of one place those that most sizes want; never more than there may be."""
    choice = chosen(WANTED, count)
    assert "".join(sorted(choice.keys)) == keys
    assert choice.first == first


def test_a_size_compiles_what_nobody_did_before() -> None:
    """Each binary has one size that has it made."""
    choice = chosen(WANTED, 99)
    made = [key for size, configs in choice.configs.items() for key in of(size, configs)]
    assert set(made) == set(choice.keys)
    assert choice.configs[SIZES[1]] == [WANTED[SIZES[1]][1].config]


def of(size: GemmProblem, configs: object) -> list[str]:
    assert isinstance(configs, list)
    return [key for unit in WANTED[size] if unit.config in configs for key in unit.keys]


def test_without_sizes_nothing_is_chosen() -> None:
    """Nor for a size that no config suits."""
    assert chosen({}, 5).keys == chosen({SIZES[0]: []}, 5).keys == frozenset()


def test_a_ranking_names_the_binaries_of_a_sizes_first_units() -> None:
    """Each unit once, as many as are wanted; equal sizes with equal masks share binaries."""
    ranking = Ranking(
        gpu_for_arch("gfx942"), target_of("gfx942"), "3.6.0", {"a16w16": load_space("amd_quick", "gfx942", "a16w16")}, 3
    )
    one, other = (ranking.of(GemmProblem(m, 128, 256)) for m in (64, 128))
    assert len(one) == len({unit.keys for unit in one}) == 3
    assert all(len(key) == 64 for unit in one for key in unit.keys)
    assert {unit.keys for unit in one} & {unit.keys for unit in other}
