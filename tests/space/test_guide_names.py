"""Tests of genkern.space.guide_names: entries of space files in the names of NVIDIA's guide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from forms import CUTE_FORMS, FORMS, PLACES
from space_configs import configs_of

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.space.guide_names import in_guide_names, in_own_names
from genkern.space.space import Space, read_space

ENTRY = {
    "family": "cute_wgmma",
    "schedule": ["ping_pong"],
    "mma_tiler_mn": [[128, 128], [64, 96], [128, 168]],
    "cluster_shape_mn": [[1, 1], [2, 1]],
    "use_2cta_instrs": [False],
    "use_tma_store": [True, False],
    "num_stages": [4, 5],
    "GROUP_SIZE_M": [8],
}
COOPERATIVE = {**ENTRY, "schedule": ["cooperative"]}


def own(entry: object) -> list[dict[str, Any]]:
    """The entry in genkern's own names."""
    found = in_own_names(entry)
    assert all(isinstance(each, dict) for each in found)
    return found  # type: ignore[return-value]


def space_of(folder: Path, entry: object, arch: str = "sm_90") -> Space:
    """A space file that has this entry alone."""
    document = {"archs": [arch], "ops": ["a16w16"], "rules": [], "families": [entry]}
    (folder / "guide.yaml").write_text(yaml.safe_dump(document))
    return read_space(folder / "guide.yaml")


def test_an_entry_becomes_one_for_each_number_of_rows() -> None:
    """With the widths that go with these rows, and the clusters and ways to store as lists of their parameters."""
    found = own(ENTRY)
    assert [each["BLOCK_SIZE_M"] for each in found] == [[128], [64]]
    assert found[0] == {
        "family": "cute_wgmma",
        "schedule": ["ping_pong"],
        "swapped": [0],
        "cluster": ["1x1", "2x1"],
        "store": ["tma", "direct"],
        "BLOCK_SIZE_M": [128],
        "BLOCK_SIZE_N": [128, 168],
        "BLOCK_SIZE_K": [64, 128],
        "SPLIT_K": [1],
        "num_warps": [8],
        "num_stages": [4, 5],
        "GROUP_SIZE_M": [8],
    }
    one_group = own(COOPERATIVE)[1]
    assert one_group["BLOCK_SIZE_M"] == [64]
    assert one_group["num_warps"] == [4]


def test_an_entry_stands_for_all_of_its_product(tmp_path: Path) -> None:
    """Three tiles, two clusters, two ways to store, two K-blocks and two depths; each schedule has warps of its own."""
    space = space_of(tmp_path, {**ENTRY, "schedule": ["cooperative", "ping_pong"]})
    configs = list(configs_of(space))
    assert len(configs) == len(set(configs)) == space.size == 2 * 3 * 2 * 2 * 2 * 2
    assert {(config.cluster, config.store) for config in configs} == {
        (cluster, store) for cluster in ("1x1", "2x1") for store in ("tma", "direct")
    }
    low = {(config.schedule, config.num_warps) for config in configs if config.BLOCK_SIZE_M == 64}
    assert low == {("cooperative", 4), ("ping_pong", 8)}


def test_swapped_entries() -> None:
    """Pairs are [m, n] as well; one for each number of columns, along which the instruction has its rows."""
    tiles = [[40, 64], [72, 64], [224, 128]]
    swapped = {**COOPERATIVE, "swapped": [1]}
    found = own({**swapped, "mma_tiler_mn": tiles})
    assert len(found) == 2
    assert all(each["swapped"] == [1] for each in found)
    assert [found[0][key] for key in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "num_warps")] == [[40, 72], [64], [4]]
    assert [found[1][key] for key in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "num_warps")] == [[224], [128], [8]]
    three = own({**swapped, "mma_tiler_mn": [[200, 192]]})[0]
    assert [three[key] for key in ("BLOCK_SIZE_N", "num_warps")] == [[192], [12]]


def test_a_split_k(tmp_path: Path) -> None:
    """Cooperative kernels that store from registers split K; SPLIT_K is what the entry says."""
    split = {**COOPERATIVE, "use_tma_store": [False], "SPLIT_K": [2, 3]}
    assert {config.SPLIT_K for config in configs_of(space_of(tmp_path, split))} == {2, 3}
    for others in ({"use_tma_store": [True]}, {"schedule": ["ping_pong"]}):
        with pytest.raises(InputError, match=r"SPLIT_K .*\[1\]"):
            space_of(tmp_path, {**split, **others})
    config = Config("cute_wgmma", 128, 96, 64, 1, 3, 8, 4, store="direct", cluster="4x1")
    (back,) = own(in_guide_names(config))
    assert (back["family"], back["SPLIT_K"], back["cluster"]) == (config.family, [3], ["4x1"])


@pytest.mark.parametrize("entry", [{"family": "tiled", "BLOCK_SIZE_M": [64]}, "no entry", {}])
def test_other_entries_stay(entry: object) -> None:
    """Whatever they are: who reads them says what is wrong."""
    assert in_own_names(entry) == [entry]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "tiled"}, "are for cute_wgmma and cute_tcgen05, not for 'tiled'"),
        ({"family": None}, "not for 'None'"),
        ({"use_2cta_instrs": [True]}, r"use_2cta_instrs must be \[false\]: wgmma"),
        ({"use_2cta_instrs": "no"}, "use_2cta_instrs is not a list of true and false"),
        ({"mma_tiler_mn": [128, 128]}, r"mma_tiler_mn: 128 is no pair of whole numbers \[m, n\]"),
        ({"mma_tiler_mn": [[128, True]]}, "is no pair"),
        ({"mma_tiler_mn": []}, "is not a list of pairs"),
        ({"cluster_shape_mn": [[0, 5]]}, "cluster_shape_mn: .0, 5. is no pair of whole numbers"),
        ({"cluster_shape_mn": [[-1, -1]]}, "is no pair"),
        ({"mma_tiler_mn": [[64, 64], [64, 64]]}, "is listed twice"),
        ({"schedule": "ping_pong"}, "cute_wgmma: schedule = ping_pong is not a list of values"),
        ({"use_tma_store": [True, True]}, "use_tma_store: True is listed twice"),
        ({"BLOCK_SIZE_N": [64]}, "cute_wgmma: BLOCK_SIZE_N is already given by NVIDIA's names"),
        ({"cluster": ["2x1"]}, "cluster is already given by NVIDIA's names"),
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": ["slow"]}, "schedule: 'slow' is not one of cooperative, ping_pong"),
        ({"schedule": [["ping_pong"]]}, "schedule: a list is not one of cooperative"),
        ({"swapped": [2]}, "swapped: 2 is not one of 0, 1"),
        ({"cluster_shape_mn": [[3, 1]]}, "cluster: '3x1' is not one of 1x1, 2x1"),
        ({"mma_tiler_mn": [[96, 64]]}, "BLOCK_SIZE_M: 96 is not a multiple of 64"),
        ({"mma_tiler_mn": [[64, 500]]}, "BLOCK_SIZE_N: 500 is not a multiple of 8 up to 256"),
    ],
)
def test_what_the_reader_says(tmp_path: Path, change: dict[str, object], message: str) -> None:
    """Values that no parameter has are not left out: the file is refused in one line."""
    with pytest.raises(InputError, match=message) as caught:
        space_of(tmp_path, {**ENTRY, **change})
    assert "\n" not in str(caught.value)


def test_two_programs_for_a_tile() -> None:
    """Of tcgen05's all of the guide's four names are lists; what does not go together is left out, as in the guide."""
    without = {key: value for key, value in ENTRY.items() if key != "schedule"}
    entry = {
        **without,
        "family": "cute_tcgen05",
        "mma_tiler_mn": [[64, 128], [128, 128], [256, 192]],
        "cluster_shape_mn": [[1, 1], [2, 1]],
        "use_2cta_instrs": [True, False],
        "use_tma_store": [True],
    }
    found = {(each["ctas"][0], each["BLOCK_SIZE_M"][0], tuple(each["cluster"])) for each in own(entry)}
    both = ("1x1", "2x1")
    assert found == {(1, 64, both), (1, 128, both), (2, 128, ("2x1",)), (2, 256, ("2x1",))}
    assert {each["num_warps"][0] for each in own(entry)} == {4}
    # A number of rows that no tile has is not left out, but refused by whoever reads the entry.
    assert own({**entry, "mma_tiler_mn": [[96, 128]]}) != []
    with pytest.raises(InputError, match=r"tiles.*clusters"):
        own({**entry, "cluster_shape_mn": [[1, 1]], "use_2cta_instrs": [True]})


@pytest.mark.parametrize("stem", CUTE_FORMS)
def test_there_and_back(stem: str, tmp_path: Path) -> None:
    """The entry of a config is that config's alone."""
    (family, others), traits = PLACES[stem], FORMS[stem]
    arch, warps = ("sm_90", 8) if family == "cute_wgmma" else ("sm_100", 4)
    sides = (64, 128) if traits.swapped else (128, 64)
    # The second has neither the K-block nor the warps that an entry without them stands for.
    for block_k, num_warps in ((64, warps), (32, 2 * warps)):
        splits = 2 if traits.splits_k else 1
        config = Config(family, *sides, block_k, 8, splits, num_warps, 4, others)
        assert list(configs_of(space_of(tmp_path, in_guide_names(config), arch))) == [config]
