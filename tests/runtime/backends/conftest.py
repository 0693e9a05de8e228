"""A cuBLASLt and hipBLASLts without a GPU for the tests of this folder."""

from __future__ import annotations

import pytest
from fake_cublaslt import build
from fake_hipblaslt import build as build_hip

from genkern.runtime.backends import hipblaslt_api
from genkern.runtime.backends.cublaslt_api import Api


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Api:
    """Version 13.10.0."""
    return build(tmp_path_factory.mktemp("cublaslt"))


@pytest.fixture(scope="session")
def fake_hip(tmp_path_factory: pytest.TempPathFactory) -> hipblaslt_api.Api:
    """Version 1.2.2."""
    return build_hip(tmp_path_factory.mktemp("hipblaslt"))


@pytest.fixture(scope="session")
def old_hip(tmp_path_factory: pytest.TempPathFactory) -> hipblaslt_api.Api:
    """One that has no C++ functions by names that are known, and no modes of scales."""
    return build_hip(tmp_path_factory.mktemp("old_hipblaslt"), old=True)
