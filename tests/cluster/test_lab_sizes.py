"""Tests of genkern.cluster.lab_sizes: every size ends once, whatever nodes do."""

from __future__ import annotations

import random

import pytest

from genkern.cluster.lab_sizes import LabSizes, Place
from genkern.gemm.problem import GemmProblem


def sizes_of(count: int, *archs: str) -> LabSizes:
    return LabSizes.of({arch: [GemmProblem(16 * (i + 1), 64, 64) for i in range(count)] for arch in archs})


def test_large_sizes_go_first_and_shares_shrink() -> None:
    """So that the last ones of a run are with all GPUs."""
    sizes = sizes_of(40, "sm_90")
    gpus = {Place("a", "sm_90"): 1, Place("b", "sm_90"): 1}
    (one, _, first), (_, _, second) = sizes.take(gpus)
    assert first[0].M == 640
    assert (len(first), len(second)) == (10, 7)
    assert sizes.take(gpus) == []
    lengths = []
    while not sizes.is_done:
        for problem in list(sizes.in_flight[one][1]):
            sizes.finished(one, problem)
        assert sizes.ended(one) == []
        lengths += [len(share) for _, _, share in sizes.take(gpus)]
        one = min(sizes.in_flight, default=0)
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 1


def test_a_gpu_has_one_share_at_a_time() -> None:
    """Of its own architecture."""
    sizes = sizes_of(3, "sm_90", "sm_80")
    gpus = {Place("a", "sm_90"): 2, Place("b", "sm_80"): 1, Place("c", "gfx942"): 1}
    shares = sizes.take(gpus)
    assert [place for _, place, _ in shares] == [Place("a", "sm_90")] * 2 + [Place("b", "sm_80")]
    assert sizes.take(gpus) == []
    assert sizes.waiting() == ["sm_90", "sm_80"]


def test_what_a_lost_node_had_is_others_but_for_what_has_its_result() -> None:
    sizes = sizes_of(4, "sm_90")
    ((number, _, share),) = sizes.take({Place("a", "sm_90"): 1})
    sizes.finished(number, share[0])
    sizes.lost(number)
    ((_, _, again),) = sizes.take({Place("b", "sm_90"): 1})
    assert again[0] == share[1]
    assert share[0] not in again


def test_a_size_that_nodes_die_of_is_given_up() -> None:
    """Those that were to come after it are tuned."""
    sizes = sizes_of(2, "sm_90")
    for _ in range(3):
        ((number, _, share),) = sizes.take({Place("a", "sm_90"): 1})
        sizes.lost(number)
    assert sizes.given_up == [("sm_90", share[0])]
    ((number, _, left),) = sizes.take({Place("a", "sm_90"): 1})
    assert left != share
    assert sizes.ended(number) == list(left)
    assert sizes.is_done


@pytest.mark.parametrize("seed", range(20))
def test_every_size_ends_once(seed: int) -> None:
    """Nodes come, go in the middle of a share, and finish, in any order."""
    draw = random.Random(seed)
    sizes, ended = sizes_of(30, "sm_90", "sm_80"), []
    while not sizes.is_done:
        gpus = {Place(f"{draw.random()}", draw.choice(["sm_90", "sm_80"])): draw.randint(1, 3) for _ in range(4)}
        sizes.take(gpus)
        for number in draw.sample(sorted(sizes.in_flight), k=min(3, len(sizes.in_flight))):
            place, share = sizes.in_flight[number]
            for problem in share[: draw.randint(0, len(share))]:
                sizes.finished(number, problem)
                sizes.finished(number, problem)
                ended.append((place.arch, problem))
            if draw.random() < 0.3:
                sizes.lost(number)
            else:
                ended += [(place.arch, problem) for problem in sizes.ended(number)]
    ended += sizes.given_up
    assert len(ended) == len({*ended}) == 60
