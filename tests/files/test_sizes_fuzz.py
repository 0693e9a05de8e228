"""10,000 files that nobody wrote: the answer is a SizeList or one line of InputError, whatever the bytes are."""

from __future__ import annotations

import random
from pathlib import Path

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_tests import repeats

from genkern.errors import InputError
from genkern.files.sizes import GemmDefaults, read_sizes

ROW = "- {'M': 16, 'N': 4096, 'K': 8192}\n"
FUZZ = settings(
    max_examples=repeats(120, 2500),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(1, 8192),
    st.floats(),
    st.text(max_size=12),
    st.dates(),
    st.binary(max_size=6),
    st.sampled_from(
        ["T", "N", "bf16", "fp8", "int8", "a8w8", "a16w16", "{{ M }}", "1; import os", "torch.int8", "relu"]
    ),
)
KEYS = st.one_of(
    st.sampled_from(["M", "N", "K", "rowMajorA", "rowMajorB", "op", "dtype_a", "dtype_c", "bias", "activation"]),
    st.sampled_from(["BLOCK_SIZE_M", "family"]),
    st.text(max_size=8),
    st.integers(),
    st.none(),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))
SIZE = st.fixed_dictionaries(
    {key: SCALARS | st.integers(1, 8192) for key in ("M", "N", "K")},
    optional={
        "rowMajorA": SCALARS,
        "op": SCALARS,
        "dtype_a": SCALARS,
        "dtype_b": SCALARS,
        "bias": SCALARS,
        "activation": SCALARS,
    },
)
VALID = [
    (
        ROW * 3
        + "- {M: 1, N: 2, K: 3, op: a8w8, dtype_a: int8, bias: true, activation: gelu, versions: {triton: '3.7'}}\n"
    ).encode(),
    b"M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle\n"
    + b"1, 2, 3,False,torch.bfloat16,torch.float32,False,False\n" * 2,
]


def only_input_error(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        sizes = read_sizes(str(path), GemmDefaults(), "sm_90")
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 (both ends are right; this one has a form)
        assert path.name in str(error)  # noqa: PT017
    else:
        assert sizes.problems


@FUZZ
@given(data=st.one_of(st.lists(SIZE | VALUES, max_size=4), VALUES))
def test_fuzz_yaml_values(tmp_path: Path, data: object) -> None:
    """Any value that YAML can hold, near or far from a size list."""
    only_input_error(tmp_path / "sizes.yaml", yaml.safe_dump(data, allow_unicode=True).encode("utf-8", "replace"))


@FUZZ
@given(text=st.one_of(st.text(max_size=200), st.text("-{}[]'\"MNK:,#&*!|>? \n0123", max_size=80)), table=st.booleans())
def test_fuzz_text(tmp_path: Path, text: str, table: bool) -> None:
    """Any text, and text made of the formats' own characters, as YAML and as CSV."""
    only_input_error(tmp_path / ("a.csv" if table else "a.yaml"), text.encode("utf-8", "replace"))


@FUZZ
@given(data=st.binary(max_size=200), table=st.booleans())
def test_fuzz_bytes(tmp_path: Path, data: bytes, table: bool) -> None:
    """Any bytes, as YAML and as CSV."""
    only_input_error(tmp_path / ("a.csv" if table else "a.yaml"), data)


def test_mutations_start_from_valid_files(tmp_path: Path) -> None:
    """The files that are mutated below are accepted as they stand."""
    for data, name in zip(VALID, ("a.yaml", "a.csv"), strict=True):
        (tmp_path / name).write_bytes(data)
        assert read_sizes(str(tmp_path / name), GemmDefaults(), "sm_90").problems


@FUZZ
@given(seed=st.integers(0, 2**32), cuts=st.integers(1, 4), which=st.sampled_from([0, 1]))
def test_fuzz_mutated_files(tmp_path: Path, seed: int, cuts: int, which: int) -> None:
    """Valid files with bytes deleted, doubled and replaced, which get deeper than random text does."""
    source = random.Random(seed)
    data = bytearray(VALID[which])
    for _ in range(cuts):
        at = source.randrange(len(data))
        width = source.randrange(1, 6)
        junk = bytes(source.choice(b"0123456789-.,:{}[]'\"!&*<\n \xff\x00MNKTe") for _ in range(source.randrange(4)))
        data[at : at + width] = source.choice([b"", junk, data[at : at + width] * 2])
        data = data or bytearray(b" ")
    only_input_error(tmp_path / ("a.csv" if which else "a.yaml"), bytes(data))
