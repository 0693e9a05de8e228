"""Tests of a farm for kernels that were compiled elsewhere."""

from __future__ import annotations

from pathlib import Path

from small_gemms import TRITON_VERSION, target_of
from trouble_kernels import trouble_spec

from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.farm import Farm
from genkern.gemm.records import Binary, Resources


def test_a_farm_that_may_not_compile_says_so(tmp_path: Path) -> None:
    """What the cache has is there; the rest fails from outside, which no cache keeps, and no time is counted."""
    cache = BinaryCache(tmp_path)
    farm = Farm(cache, target_of("gfx942"), TRITON_VERSION, jobs=2, timeout_s=60.0, may_compile=False)
    known, missing = (trouble_spec(name) for name in ("plain_0", "plain_1"))
    cache.put(farm.key(known), known, "plain", Resources(), {})
    results = {result.key: result for result in farm.compile("nowhere.py", [known, missing])}
    assert isinstance(results[farm.key(known)], Binary)
    failure = results[farm.key(missing)]
    assert isinstance(failure, Failure)
    assert failure.from_outside
    assert "nothing is compiled here" in failure.message
    assert cache.get(farm.key(missing)) is None
    assert (farm.counts.cached, farm.counts.failed, farm.counts.compile_s) == (1, 1, 0.0)
    farm.close()
