"""Tests of runtime/backends/cublaslt_search.py: what is found runs, is new, and costs what it may cost."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from itertools import islice

from lt_problems import operands_of, pointers_of, variable

from genkern.gemm.problem import GemmProblem
from genkern.runtime.backends import cublaslt_search as search
from genkern.runtime.backends.cublaslt_api import DIALECT, Api
from genkern.runtime.backends.lt_api import algo_of
from genkern.runtime.backends.lt_matmul import WORKSPACE_BYTES, Matmul, Pointers
from genkern.runtime.backends.lt_operation import operation_of

PLAIN = GemmProblem(5, 7, 9)
POINTERS = Pointers(512, 1024, 2048)


def matmul_of(fake: Api, problem: GemmProblem = PLAIN) -> Matmul:
    return Matmul(fake, operation_of(problem, DIALECT), 0)


def test_the_heuristic_is_asked_as_the_operation_is(fake: Api) -> None:
    """With the workspace, the alignment of each matrix, and the reductions that leave the result what it is."""
    matmul = matmul_of(fake)
    matmul.heuristic(Pointers(a=16, b=512, c=48), 4 << 20, search.ASKED)
    words = variable(fake, "fake_preference", ctypes.c_uint32 * 7)
    assert list(words) == [4 << 20, 0, 2, 256, 16, 16, 16]


def test_only_algorithms_that_run_are_taken(fake: Api) -> None:
    """One in the list whose state says otherwise is none, and neither is one that needs more than there is."""
    matmul = matmul_of(fake)
    found = matmul.heuristic(POINTERS, WORKSPACE_BYTES, search.ASKED)
    assert len(found) == 7
    assert [algorithm.workspace_bytes for algorithm in found] == [0] * 6 + [4 << 20]
    assert len(matmul.heuristic(POINTERS, 1 << 20, search.ASKED)) == 6
    assert len(matmul.heuristic(POINTERS, WORKSPACE_BYTES, 3)) == 3


def test_what_enumeration_finds_is_new_and_runs(fake: Api) -> None:
    """Every one is accepted by the library's check, none is the heuristic's, none is there twice, and all are asked."""
    matmul = matmul_of(fake)
    known = matmul.heuristic(POINTERS, WORKSPACE_BYTES, search.ASKED)
    found = search.beyond(matmul, POINTERS, known, 40)
    assert len(found) == 40
    assert len({algorithm.data for algorithm in [*known, *found]}) == 47
    assert all(search.checked(matmul, algorithm, POINTERS) for algorithm in found)
    assert {algorithm.source for algorithm in found} == {"enumerated"}
    configs = [search.config_of(fake, algo_of(algorithm.data)) for algorithm in found]
    # The heuristic names one id; the library has another, and one that it does not have for these types.
    assert {config.id for config in configs} == {66, 21}
    assert all(any(getattr(config, name) for config in configs) for name in ("cluster", "swizzle", "custom"))
    assert {config.reduction for config in configs} <= {0, 2}


def test_checks_are_bounded(fake: Api) -> None:
    """Each costs the host some microseconds, and most configs do not run; workspace is bounded too."""
    matmul = matmul_of(fake)
    known = matmul.heuristic(POINTERS, WORKSPACE_BYTES, search.ASKED)
    before = variable(fake, "fake_checks").value
    found = search.beyond(matmul, POINTERS, known, 10_000, most_checks=100)
    assert variable(fake, "fake_checks").value - before <= 100
    assert 0 < len(found) < 100
    everything = search.beyond(matmul, POINTERS, known, 10_000, workspace_bytes=3 << 20)
    assert max(algorithm.workspace_bytes for algorithm in everything) == 3 << 20
    assert len(everything) < 10_000


def test_splits_come_with_a_scheme_that_is_right(fake: Api) -> None:
    """Of bf16 the one that adds in float32; of a float32 output each that the library has."""
    for dtype_c, schemes in (("bf16", {2}), ("fp32", {1, 2, 4})):
        matmul = matmul_of(fake, replace(PLAIN, dtype_c=dtype_c))
        able = search.capabilities(matmul, 66)
        assert able is not None
        near = list(search.neighbours(search.AlgorithmConfig(66, tile=20, stages=35), able))
        assert {config.reduction for config in near if config.split_k > 1} == schemes
        assert not any(config.reduction for config in near if config.split_k == 1)


def test_neighbours_differ_in_one_field_and_take_turns(fake: Api) -> None:
    """Splits come with their scheme; a field with many values does not keep the others waiting."""
    able = search.capabilities(matmul_of(fake), 66)
    assert able is not None
    config = search.AlgorithmConfig(66, tile=20, stages=35, cluster=3)
    near = list(search.neighbours(config, able))
    for other in near:
        changed = {name for name in vars(config) if getattr(config, name) != getattr(other, name)}
        assert len(changed - {"reduction"}) == 1
    assert {config.tile for config in near} == set(able.tiles)
    first = list(islice(near, 8))
    assert len({name for other in first for name in vars(config) if getattr(config, name) != getattr(other, name)}) >= 4


def test_a_config_says_what_it_is(fake: Api) -> None:
    """It is read from the opaque structure, can be made again, and is text for people."""
    matmul = matmul_of(fake)
    config = search.AlgorithmConfig(66, tile=23, stages=35, split_k=4, reduction=2, cluster=5)
    algo = search.algorithm_of_config(matmul, config)
    assert algo is not None
    assert search.config_of(fake, algo) == config
    assert str(config) == "id 66 tile 23 split_k 4 reduction 2 stages 35 cluster 5"
    assert search.algorithm_of_config(matmul, search.AlgorithmConfig(99)) is None


def test_real_operands_have_alignments(fake: Api) -> None:
    """PyTorch's allocations are aligned beyond what the library asks."""
    operands = operands_of(PLAIN)
    assert len(matmul_of(fake).heuristic(pointers_of(operands), WORKSPACE_BYTES, search.ASKED)) == 7
