"""A cuBLASLt without a GPU for the tests of this folder."""

from __future__ import annotations

import pytest
from fake_cublaslt import build

from genkern.runtime.backends.cublaslt_api import Api


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Api:
    """Version 13.10.0."""
    return build(tmp_path_factory.mktemp("cublaslt"))
