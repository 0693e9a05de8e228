"""Tests of genkern/files/exchange/peers.py: whatever stands in a file, it is read or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_tests import repeats
from peer_files import AITER, AITER_NAME, TUNABLEOP, VLLM, VLLM_NAME

from genkern.errors import InputError
from genkern.files.exchange.peers import PEERS, read_peer
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.tune_gemm_yaml import read_rows, size_line

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 600),
    st.sampled_from([10**400, 2**31, 1.5, "", "64", ".cg", "x" * 5000, "\x1b[31m"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
KEYS = st.sampled_from(["1", "M_LEQ_64", "any", "small", "0", "-1", "", "9" * 30, "M_LEQ_9999999", "\n"])
FIELDS = st.sampled_from([*json.loads(AITER)["any"], "SPLIT_K", "SWAP_AB", "\x00", "xcd_remap", "schedule_hint"])


def taken(folder: Path, name: str, text: str) -> None:
    """Read, and read back what is written of it; a refusal is one line."""
    (folder / name).write_text(text, encoding="utf-8")
    refusal = ""
    try:
        imported = read_peer(str(folder / name), None)
    except InputError as error:
        refusal = str(error)
    else:
        lines = [size_line(each.problem, each.config, imported.arch) for each in imported.candidates if each.config]
        rows = read_rows("".join(lines) or "[]\n", "r", GemmDefaults())
        assert [row.config for row in rows] == [each.config for each in imported.candidates if each.config]
    assert "\n" not in refusal


@settings(max_examples=repeats(30, 60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([(VLLM_NAME, VLLM, "1"), (AITER_NAME, AITER, "any")]), KEYS, FIELDS, ODD)
def test_any_value_in_any_place(
    tmp_path: Path, file: tuple[str, str, str], key: str, field: str, value: object
) -> None:
    """A key, or one value of a config, of any type and size."""
    name, text, some = file
    config = json.loads(text)[some]
    taken(tmp_path, name, json.dumps({key: {**config, field: value}}))
    taken(tmp_path, name, json.dumps({some: value}))


@settings(max_examples=repeats(20, 40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_character_in_tunableops_lines(tmp_path: Path, data: st.DataObject) -> None:
    """Characters replaced, cut out, put in."""
    place = data.draw(st.integers(0, len(TUNABLEOP)))
    taken(tmp_path, "tunableop_x.csv", TUNABLEOP[:place] + data.draw(st.text(max_size=3)) + TUNABLEOP[place + 1 :])


@pytest.mark.parametrize(
    "name",
    [
        VLLM_NAME.replace("1536", "0"),
        VLLM_NAME.replace("1536", "9999999999"),
        VLLM_NAME.replace("[128", "[0"),
        VLLM_NAME.replace("[128", "[99999"),
        AITER_NAME.replace("256", "0"),
    ],
)
def test_names_of_impossible_sizes(name: str, tmp_path: Path) -> None:
    """Numbers in a name are checked as those in a file are, and the refusal names the file."""
    (tmp_path / name).write_text(AITER if "GEMM" in name else VLLM)
    with pytest.raises(InputError, match="=") as error:
        read_peer(str(tmp_path / name), None)
    assert str(tmp_path) in str(error.value)


def test_every_kind_has_a_name() -> None:
    """What --to takes; a name that no kind has is refused with those that are known."""
    triton = ["aiter_triton", "aiter_triton_flat", "aiter_triton_named"]
    assert list(PEERS) == ["vllm", "sglang", *triton, "aiter_fmoe", "tunableop", "flashinfer-trace"]
    with pytest.raises(InputError, match="is of no known kind of file"):
        read_peer("config.json", None)
