"""Which fp8 a target takes operands in."""

from __future__ import annotations

import pytest

from genkern.gemm.dtypes import DTYPES
from genkern.ops.float8 import fp8_refusal, has_fp8


@pytest.mark.parametrize(
    ("dtype", "arch", "said"),
    [
        ("fp8e4m3fn", "sm_90", ""),
        ("fp8e5m2", "gfx950", ""),
        ("fp8e4m3fnuz", "gfx942", ""),
        ("fp8e4m3fn", "gfx942", "does not compute in fp8e4m3fn: use fp8e4m3fnuz"),
        ("fp8e5m2fnuz", "sm_90", "does not compute in fp8e5m2fnuz"),
        ("fp8e4m3fn", "sm_80", "sm_80 has no fp8"),
        ("int8", "sm_80", ""),
        ("fp8e4m3fn", "", ""),
    ],
)
def test_a_target_has_its_own_encodings(dtype: str, arch: str, said: str) -> None:
    """Or none at all; of a result that does not say its target nothing is refused."""
    reason = fp8_refusal(DTYPES[dtype], arch)
    assert said in reason
    assert bool(said) == bool(reason)
    assert has_fp8(arch) is (arch != "sm_80")
