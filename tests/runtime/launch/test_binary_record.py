"""Tests of genkern.runtime.launch.binary_record: what is read of a binary in the cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cute_stand_in import cubin

from genkern.errors import ResultsError
from genkern.kernels.contract.argument import Descriptor, Integer, Map
from genkern.kernels.plan import PlannedLaunch
from genkern.runtime.bundles.records import Encoding
from genkern.runtime.launch.binary_record import described

DTYPES = {"a": "bf16", "b": "fp8e4m3fn"}
SAID = {"num_warps": 12, "shared": 1024}


def entry(folder: Path, said: dict[str, object]) -> Path:
    """A folder of the cache with a kernel `k`."""
    (folder / "kernel.cubin").write_bytes(cubin("k", [128, 4]))
    (folder / "kernel.json").write_text(json.dumps(said))
    return folder


def launch(*arguments: object, symbol: str = "k") -> PlannedLaunch:
    return PlannedLaunch(symbol, (1, 1, 1), 1, False, arguments)  # type: ignore[arg-type]


def test_maps_say_themselves_how_they_are_encoded(tmp_path: Path) -> None:
    """Box and swizzle of the plan, the type of the operand."""
    given = launch(Map("b_desc", "b", (168, 128), True, 3), Integer("M", 1))
    binary, image = described(entry(tmp_path, SAID), given, DTYPES, "cuda", 32)
    assert binary.encodings == (Encoding(0, 1, (168, 128), 3),)
    assert (binary.threads, binary.shared_bytes, binary.parameter_bytes) == (384, 1024, (128, 4))
    assert image.startswith(b"\x7fELF")


def test_triton_says_it_of_descriptors(tmp_path: Path) -> None:
    """In the metadata that lies beside its binary."""
    said = {**SAID, "tensordesc_meta": [{"block_size": [64, 32], "swizzle": 2}]}
    binary, _ = described(
        entry(tmp_path, said), launch(Descriptor("a_desc", "a", (128, 64), False)), DTYPES, "cuda", 32
    )
    assert binary.encodings == (Encoding(9, 2, (64, 32), 2),)


@pytest.mark.parametrize(
    ("said", "arguments", "message"),
    [
        ({**SAID, "global_scratch_size": 8}, (), "needs scratch memory of Triton"),
        (SAID, (Descriptor("a_desc", "a", (128, 64), False),), "fewer descriptors than its plan"),
        ({**SAID, "tensordesc_meta": [{"block_size": [64, 32], "swizzle": 2}]}, (), "1 descriptors more than its plan"),
    ],
)
def test_what_no_plan_serves(
    tmp_path: Path, said: dict[str, object], arguments: tuple[object, ...], message: str
) -> None:
    """One line of what does not fit."""
    with pytest.raises(ResultsError, match=message):
        described(entry(tmp_path, said), launch(*arguments), DTYPES, "cuda", 32)


def test_another_kernel(tmp_path: Path) -> None:
    """A binary without the plan's kernel is refused."""
    with pytest.raises(ResultsError, match="parameters other"):
        described(entry(tmp_path, SAID), launch(symbol="other"), DTYPES, "cuda", 32)
