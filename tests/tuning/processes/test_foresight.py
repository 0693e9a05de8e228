"""Foresight: a process prunes and asks the model as the driver would, is done without where it is lost, and ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence

import pytest

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.search.guided.guided import foresee
from genkern.space.shares import Shares
from genkern.space.space import load_space
from genkern.tuning.processes.foresight import Foresight, foreseen, foresights

PROBLEM, GPU = GemmProblem(64, 256, 512), gpu_for_arch("gfx942")
SPACE = load_space("amd_quick", "gfx942", PROBLEM.op)


def said(problem: GemmProblem, configs: Sequence[Config], gpu: Gpu, shares: Shares | None = None) -> object:
    """Of a size; some make it fail."""
    if problem.M == 1:
        raise InputError("not this one")
    return len(configs), gpu.name, os.getpid()


@pytest.fixture
def process() -> Iterator[Foresight]:
    """One that asks `said`."""
    with foresights(1, 2, said) as (one,):
        assert one is not None
        yield one


def test_it_foresees_what_the_driver_would(process: Foresight) -> None:
    """Elsewhere, with functions that nobody could import, of any number of sizes."""
    here = foreseen(SPACE, PROBLEM, GPU, said)
    for _ in range(2):
        there = process.of(SPACE, PROBLEM, GPU, said)
        assert there.pruned == here.pruned
        assert isinstance(there.model, tuple)
        assert there.model[:2] == (len(here.pruned.kept), GPU.name)
        assert there.model[2] != os.getpid()


def test_the_model_of_guided_comes_through_the_pipe() -> None:
    """Of the configs that pruning left, by which `Guided` knows that it is theirs."""
    here = foreseen(SPACE, PROBLEM, GPU, foresee)
    with foresights(1, 2, foresee) as (one,):
        assert one is not None
        there = one.of(SPACE, PROBLEM, GPU, foresee)
    (rows, prior), (its, other) = here.model, there.model  # type: ignore[misc]
    assert rows == its
    assert (prior.octaves == other.octaves).all()
    assert (prior.alike(0) == other.alike(0)).all()


def test_what_it_cannot_do_is_told(process: Foresight) -> None:
    """And the next is answered."""
    with pytest.raises(InputError, match="not this one"):
        process.of(SPACE, GemmProblem(1, 256, 512), GPU, said)
    assert process.of(SPACE, PROBLEM, GPU, said).pruned.kept


def test_a_lost_process_is_done_without(process: Foresight) -> None:
    """Whoever asks finds out by itself."""
    os.kill(process._process.pid or 0, signal.SIGKILL)
    assert process.of(SPACE, PROBLEM, GPU, said).model == (
        len(foreseen(SPACE, PROBLEM, GPU, None).pruned.kept),
        GPU.name,
        os.getpid(),
    )


def test_nothing_is_foreseen_of_a_single_size() -> None:
    with foresights(2, 1, said) as none:
        assert list(none) == [None, None]
