"""Tests of genkern.space.guide_names: entries of space files in the names of NVIDIA's guide."""

from __future__ import annotations

import pytest

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.kernels.cute import dense_sm100
from genkern.kernels.cute.dense import FORMS
from genkern.space.guide_names import in_guide_names, in_own_names

ENTRY = {
    "family": "cute_ping_pong",
    "mma_tiler_mn": [[128, 128], [64, 96], [128, 168]],
    "cluster_shape_mn": [[1, 1], [2, 1]],
    "use_2cta_instrs": [False],
    "use_tma_store": [True, False],
    "num_stages": [4, 5],
    "GROUP_SIZE_M": [8],
}


def test_an_entry_becomes_families() -> None:
    """One for each cluster, way to store and number of rows, with the widths that go with these rows."""
    found = in_own_names(ENTRY)
    assert len(found) == 2 * 2 * 2
    assert {entry["family"] for entry in found} == {  # type: ignore[index]
        "cute_ping_pong",
        "cute_ping_pong_direct",
        "cute_ping_pong_2x1",
        "cute_ping_pong_2x1_direct",
    } & set(FORMS)
    assert found[0] == {
        "family": "cute_ping_pong",
        "BLOCK_SIZE_M": [128],
        "BLOCK_SIZE_N": [128, 168],
        "BLOCK_SIZE_K": [64, 128],
        "SPLIT_K": [1],
        "num_warps": [8],
        "num_stages": [4, 5],
        "GROUP_SIZE_M": [8],
    }
    one_group = in_own_names({**ENTRY, "family": "cute_cooperative"})[1]
    assert one_group["BLOCK_SIZE_M"] == [64]  # type: ignore[index]
    assert one_group["num_warps"] == [4]  # type: ignore[index]


def test_swapped_entries() -> None:
    """Pairs are [m, n] as well; one family for each number of columns, along which the instruction has its rows."""
    tiles = [[40, 64], [72, 64], [224, 128]]
    found = in_own_names({**ENTRY, "family": "cute_cooperative_swapped", "mma_tiler_mn": tiles})
    assert len(found) == 2 * 2 * 2
    assert [found[0][key] for key in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "num_warps")] == [[40, 72], [64], [4]]  # type: ignore[index]
    assert [found[1][key] for key in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "num_warps")] == [[224], [128], [8]]  # type: ignore[index]
    three = in_own_names({**ENTRY, "family": "cute_cooperative_swapped", "mma_tiler_mn": [[200, 192]]})[0]
    assert [three[key] for key in ("BLOCK_SIZE_N", "num_warps")] == [[192], [12]]  # type: ignore[index]


def test_a_split_k() -> None:
    """One way to store, whose families have no word for it; SPLIT_K is what the entry says."""
    found = in_own_names({**ENTRY, "family": "cute_split", "use_tma_store": [False], "SPLIT_K": [2, 3]})
    assert {each["family"] for each in found} == {"cute_split", "cute_split_2x1"} <= set(FORMS)  # type: ignore[index]
    assert {tuple(each["SPLIT_K"]) for each in found} == {(2, 3)}  # type: ignore[index]
    config = Config("cute_wgmma", 128, 96, 64, 1, 3, 8, 4, store="direct", cluster="4x1")
    (back,) = in_own_names(in_guide_names(config))
    assert (back["family"], back["SPLIT_K"]) == (config.family, [3])  # type: ignore[index]


@pytest.mark.parametrize("entry", [{"family": "tiled", "BLOCK_SIZE_M": [64]}, "no entry", {}])
def test_other_entries_stay(entry: object) -> None:
    """Whatever they are: who reads them says what is wrong."""
    assert in_own_names(entry) == [entry]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "tiled"}, r"are for cute_cooperative, cute_ping_pong, .*, cute_tcgen05, not for 'tiled'"),
        ({"family": None}, "not for 'None'"),
        ({"use_2cta_instrs": [True]}, r"use_2cta_instrs is \[false\]: wgmma"),
        ({"use_2cta_instrs": "no"}, "use_2cta_instrs is not a list of true and false"),
        ({"mma_tiler_mn": [128, 128]}, r"mma_tiler_mn: 128 is no pair of whole numbers \[m, n\]"),
        ({"mma_tiler_mn": [[128, True]]}, "is no pair"),
        ({"mma_tiler_mn": []}, "is not a list of pairs"),
        ({"cluster_shape_mn": [[0, 5]]}, "cluster_shape_mn: .0, 5. is no pair of whole numbers"),
        ({"cluster_shape_mn": [[-1, -1]]}, "is no pair"),
        ({"mma_tiler_mn": [[64, 64], [64, 64]]}, "is listed twice"),
        ({"family": "cute_split"}, r"cute_split: use_tma_store is \[false\]: what it stores is sums"),
        ({"family": "cute_split", "use_tma_store": [False]}, "SPLIT_K is a list of numbers from 2 on"),
        ({"family": "cute_split", "use_tma_store": [False], "SPLIT_K": [1, 2]}, "SPLIT_K is a list of numbers from 2"),
        ({"use_tma_store": [True, True]}, "use_tma_store: True is listed twice"),
        ({"BLOCK_SIZE_N": [64]}, "mma_tiler_mn says BLOCK_SIZE_N already"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, object], message: str) -> None:
    """In one line that names the key."""
    with pytest.raises(InputError, match=message):
        in_own_names({**ENTRY, **change})


def test_missing_keys() -> None:
    """use_2cta_instrs may be left out, the others not."""
    assert in_own_names({key: value for key, value in ENTRY.items() if key != "use_2cta_instrs"}) == in_own_names(ENTRY)
    with pytest.raises(InputError, match="field 'use_tma_store' is missing"):
        in_own_names({key: value for key, value in ENTRY.items() if key != "use_tma_store"})


def test_two_programs_for_a_tile() -> None:
    """Of tcgen05's all of the guide's four names are lists; what does not go together is left out, as in the guide."""
    entry = {
        **ENTRY,
        "family": "cute_tcgen05",
        "mma_tiler_mn": [[64, 128], [128, 128], [256, 192]],
        "cluster_shape_mn": [[1, 1], [2, 1]],
        "use_2cta_instrs": [True, False],
        "use_tma_store": [True],
    }
    found = {(each["family"], each["BLOCK_SIZE_M"][0]) for each in in_own_names(entry)}  # type: ignore[index]
    assert found == {
        *(("cute_tcgen05", 64), ("cute_tcgen05", 128), ("cute_tcgen05_2x1", 64), ("cute_tcgen05_2x1", 128)),
        *(("cute_tcgen05_2cta_2x1", 128), ("cute_tcgen05_2cta_2x1", 256)),
    }
    assert {each["num_warps"][0] for each in in_own_names(entry)} == {4}  # type: ignore[index]
    # A number of rows that no tile has is not left out, but refused by whoever reads the entry.
    assert in_own_names({**entry, "mma_tiler_mn": [[96, 128]]}) != []
    with pytest.raises(InputError, match="none of these tiles goes with any of these clusters"):
        in_own_names({**entry, "cluster_shape_mn": [[1, 1]], "use_2cta_instrs": [True]})


@pytest.mark.parametrize("family", [*FORMS, *dense_sm100.FORMS])
def test_there_and_back(family: str) -> None:
    """The entry of a config is that config's alone."""
    sides, warps = (128, 64), 4
    if family in FORMS:
        sides, warps = FORMS[family].sides(128, 64), 8
    # The second has neither the K-block nor the warps that an entry without them stands for.
    for block_k, num_warps in ((64, warps), (32, 2 * warps)):
        splits = 2 if family in FORMS and FORMS[family].split else 1
        config = Config(family, *sides, block_k, 8, splits, num_warps, 4)
        (entry,) = in_own_names(in_guide_names(config))
        assert isinstance(entry, dict)
        assert {key: [getattr(config, key)] for key in entry if key != "family"} | {"family": family} == entry
