"""Tests of runtime/backends/cublaslt_api.py: sizes as cublasLt.h has them, and errors that name their function."""

from __future__ import annotations

import ctypes

import pytest

from genkern.runtime.backends import cublaslt_api as api
from genkern.runtime.backends.cublaslt_api import DIALECT, Api
from genkern.runtime.backends.lt_api import R_32F, LtError, algo_of


def test_structures_are_as_large_as_the_header_says() -> None:
    """cublasLtMatmulAlgo_t has 64 bytes, cublasLtMatmulHeuristicResult_t 96, with the state behind the workspace."""
    assert ctypes.sizeof(api.Algo) == api.ALGORITHM_BYTES == 64
    assert ctypes.sizeof(api.HeuristicResult) == 96
    assert (api.HeuristicResult.workspace_size.offset, api.HeuristicResult.state.offset) == (64, 72)


def test_a_value_has_its_attributes_size(fake: Api) -> None:
    """The library refuses any other; one that it refuses can be asked about."""
    desc = fake.created("MatmulDesc", DIALECT.compute["fp32"], R_32F)
    assert DIALECT.desc_fast_accum is not None
    some = DIALECT.desc_trans[0], DIALECT.desc_bias_pointer, DIALECT.desc_fast_accum, DIALECT.desc_scale_modes[0]
    for attribute in some:
        fake.set_attribute("MatmulDesc", desc, attribute, 1)
        number, size = attribute
        with pytest.raises(LtError, match="cublasLtMatmulDescSetAttribute: invalid value"):
            fake.set_attribute("MatmulDesc", desc, (number, 12 - size), 1)
        assert not fake.try_attribute("MatmulDesc", desc, (number, 12 - size), 1)
    fake.call("MatmulDescDestroy", desc)


def test_what_the_library_does_not_say_is_nothing(fake: Api) -> None:
    """An attribute that it does not know has no number and no numbers."""
    algo = algo_of(bytes(64))
    assert fake.number("MatmulAlgoCap", algo, (77, 4)) == 0
    assert fake.numbers("MatmulAlgoCap", algo, 77) == []


def test_an_unknown_status_is_told_by_its_number(fake: Api) -> None:
    """Later libraries may have more."""
    with pytest.raises(LtError, match="cublasLtMatmul: status 4711"):
        fake.require(4711, "Matmul")
    fake.require(0, "Matmul")
