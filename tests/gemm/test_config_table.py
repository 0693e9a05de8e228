"""Tables of configs: their columns, their order, and parts of them are those of the configs one by one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import repeats

from genkern.gemm.config import Config
from genkern.gemm.config_table import ConfigTable, tables_of
from genkern.gemm.parameter import Value

NAMES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps", "cache_modifier", "num_stages", "SPLIT_K")
VALUES = {name: (".cg", "none", ".ca") if name == "cache_modifier" else (1, 2, 4, 8) for name in NAMES}
RANGES = st.tuples(
    *(st.lists(st.sampled_from(VALUES[name]), min_size=1, max_size=3, unique=True) for name in NAMES)
).map(lambda lists: [*zip(NAMES, lists, strict=True), ("GROUP_SIZE_M", [4])])


def one_by_one(ranges: Sequence[tuple[str, Sequence[Value]]], **shared: Value) -> list[Config]:
    """Every combination of values as a config, the last parameter fastest."""
    names = [name for name, _ in ranges]
    products = itertools.product(*(values for _, values in ranges))
    return [Config("tiled", **dict(zip(names, values, strict=True)), **shared) for values in products]  # type: ignore[arg-type]


@given(RANGES, st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=repeats(60, 400), deadline=None)
def test_a_product_has_the_combinations_in_order(
    ranges: list[tuple[str, list[Value]]], swap: bool, random: object
) -> None:
    """Also the columns of what a mask leaves, and words that are neutral values."""
    others = (("swapped", 1),) if swap else ()
    table = ConfigTable.product("tiled", others, ranges)
    configs = one_by_one(ranges, **dict(others))
    assert table.configs() == configs
    assert table.size == len(configs)
    kept = np.array([random.random() < 0.5 for _ in configs]).reshape(table.shape)  # type: ignore[attr-defined]
    left = table.rows(kept)
    assert left.configs() == [config for config, keeps in zip(configs, kept.ravel(), strict=True) if keeps]
    for name in (*NAMES, "swapped", "kpack"):
        column = np.broadcast_to(getattr(table, name), table.shape).ravel().tolist()
        assert column == [getattr(config, name) for config in configs]


def test_a_single_config_has_plain_numbers() -> None:
    """Expressions on it need no NumPy, and are exact for numbers of any size."""
    config = Config("tiled", 64, 32, 16, 8, 2, 4, 3, cache_modifier=".cg")
    table = ConfigTable.of(config)
    assert (table.BLOCK_SIZE_M, table.SPLIT_K, table.cache_modifier, table.shape) == (64, 2, ".cg", ())
    assert table.configs() == [config]
    assert table.with_values(num_stages=4).num_stages == 4
    assert not hasattr(table, "BLOCK_M")


def test_configs_of_any_families_become_tables() -> None:
    """One for each family with its own parameters; the places say where each config stood."""
    configs = [Config("tiled", 64, 64, 64), Config("gemv", 1, 4, 256), Config("tiled", 32, 64, 64)]
    configs.append(Config("tiled", 64, 64, 64, swapped=1))
    found: dict[int, Config] = {}
    for table, places in tables_of(configs):
        found |= dict(zip(places, table.configs(), strict=True))
    assert [found[place] for place in range(len(configs))] == configs


def test_parameters_can_be_taken_out() -> None:
    """Each combination of the others is left once."""
    table = ConfigTable.product("tiled", (), [("BLOCK_SIZE_M", [16, 32]), ("SPLIT_K", [1, 2, 3])])
    assert table.without("SPLIT_K").size == 2
    assert table.without("SPLIT_K").SPLIT_K == 1
