"""The stand-in notices mistakes in the loop that fills a ring (templates/gemm/fill.py.j2), and in what is begun.

Mistakes are planted in the generated text: one of each kind that a change of the templates could make.
"""

from __future__ import annotations

import re

import pytest
from gluon_cases import assert_noticed, block_scaled, changed, fp16_problem, made, said_to, text_of
from gluon_groups import grouped, said_of_groups
from gluon_memory import LATE
from long_tests import drawn

from genkern.gemm.problem import GemmProblem

WRONG, EARLY, HANG = "wrong", "read before what it needs has arrived", "a barrier that nobody completes"
IN_USE, TOO_MANY, TWICE = "while it is in use", "an arrival too many", "an element of C is written twice"
UNSEEN, OUTSIDE, UNMADE = (
    "where nobody else may have seen it",
    "an address outside the ring",
    "a barrier that is not made",
)
OTHER_KIND, BARRIERS, BEYOND = "of the other kind", "barriers are overwritten", "beyond the memory"
NOT_ITS_TURN, BEHIND = f"{IN_USE}|{TOO_MANY}|{HANG}|{LATE}", f"{OUTSIDE}|{UNMADE}|{BARRIERS}|{HANG}|{BEYOND}"
Mistakes = dict[str, tuple[str, str, str]]
# How many K-blocks the kernel begins with, and how many the loading warp takes to have been begun.
KERNELS, WARPS = "begun_of(blocks, sources, STAGES, LANES)", "begun_of(count, sources, STAGES, LANES)"
# The first K-block of a tile whose scales lanes copy.
FROM_LANES = "range(gl.where(sources[2] > 0, count, 0)"
# The buffers that the kernel begins whose scales lanes copy, and what it begins them with.
FOR_LANES = "range(gl.where(sources[2] > 0, 0, begun))"
BUFFERS = "barriers + (STAGES + slot) * 8, ring + slot * buffer_size(ROWS, WIDTH, SWAPPED), (block + slot) * 128"
ELECTED = '        "elect.sync _|one, -1;",\n        "@!one bra filled;",\n        "mov.u32 left, $1;",'

# What runs from one buffer to the next, and from one turn of the ring to the next.
LOOP: Mistakes = {
    "runs as long as there are K-blocks": (
        '"min.u32 run, run, left;"',
        '"mov.u32 run, left;"',
        BEHIND,
    ),
    "runs to the ring's end": (', "min.u32 run, run, left;"', "", NOT_ITS_TURN),
    "runs of a whole ring": (
        "sub.u32 run, {stages}, slot;",
        "mov.u32 run, {stages};",
        BEHIND,
    ),
    "turns before the last buffer": ("sub.u32 run, {stages}, slot;", "sub.u32 run, {stages - 1}, slot;", NOT_ITS_TURN),
    "turns behind the last buffer": (
        "sub.u32 run, {stages}, slot;",
        "sub.u32 run, {stages + 1}, slot;",
        BEHIND,
    ),
    "a run counts as one": ('"sub.u32 left, left, run;"', '"sub.u32 left, left, 1;"', f"{NOT_ITS_TURN}|{BEYOND}"),
    "ends with the ring": ('"sub.u32 left, left, run;"', '"mov.u32 left, 0;"', HANG),
    "one a run": (
        '"setp.ne.u32 one, run, 0;"',
        '"setp.eq.u32 one, run, 0;"',
        f"{BEHIND}|does not end",
    ),
    "ends where it should turn": (
        '            "setp.ne.u32 one, left, 0;"',
        '            "setp.eq.u32 one, left, 0;"',
        f"{HANG}|{NOT_ITS_TURN}",
    ),
    "begins with the first buffer": ('"mov.u32 slot, $2;"', '"mov.u32 slot, 0;"', NOT_ITS_TURN),
    "a turn begins where the first run did": ('            "mov.u32 slot, 0;",\n', "", f"{OUTSIDE}|{NOT_ITS_TURN}"),
    "begins with the ring's first parity": ('"mov.u32 parity, $3;"', '"mov.u32 parity, 1;"', NOT_ITS_TURN),
    "every turn has one parity": ('            "xor.b32 parity, parity, 1;",\n', "", NOT_ITS_TURN),
    "other parity": ("((step // STAGES) & 1) ^ 1", "(step // STAGES) & 1", NOT_ITS_TURN),
    "a step too far": ("(count, step % STAGES", "(count, (step + 1) % STAGES", f"{NOT_ITS_TURN}|{OUTSIDE}"),
    "full barriers from the first on": (
        "mad.lo.u32 full, slot, 8, $4;",
        "mov.u32 full, $4;",
        f"{NOT_ITS_TURN}|{UNMADE}|{OTHER_KIND}",
    ),
    "the same barrier again": ('"add.u32 full, full, 8;"', '"add.u32 full, full, 0;"', f"{NOT_ITS_TURN}|{EARLY}"),
    "barriers go on behind the last": (
        '            f"add.u32 full, $4, {8 * stages};",\n',
        "",
        f"{UNMADE}|{NOT_ITS_TURN}",
    ),
    "buffers from the first on": ("mad.lo.u32 buffer, slot, {size}, $5;", "mov.u32 buffer, $5;", f"{IN_USE}|{EARLY}"),
    "the same buffer again": (
        'f"add.u32 buffer, buffer, {size};"',
        'f"add.u32 buffer, buffer, 0;"',
        f"{IN_USE}|{EARLY}",
    ),
    "buffers go on behind the last": ('            "mov.u32 buffer, $5;",\n', "", f"{BARRIERS}|{OUTSIDE}|{IN_USE}"),
    "the same K-block again": ('"add.u32 k, k, 128;"', '"add.u32 k, k, 0;"', WRONG),
    "half a K-block further": ('"add.u32 k, k, 128;"', '"add.u32 k, k, 64;"', WRONG),
    "always the first K-block": ('"mul.lo.u32 k, $6, 128;"', '"mul.lo.u32 k, $6, 0;"', WRONG),
    "rows and columns exchanged": ('"k", "$7", "$8")', '"k", "$8", "$7")', WRONG),
    "rows' descriptor for columns": ('"$8"), 9, 1, 1', '"$8"), 8, 1, 1', "no descriptor"),
}
WAITING: Mistakes = {
    "no wait": (', "@!done bra again;"]', "]", NOT_ITS_TURN),
    "waits for full buffers": ("sub.u32 empty, full, {8 * stages};", "mov.u32 empty, full;", NOT_ITS_TURN),
    "waits for the buffer before": (
        "sub.u32 empty, full, {8 * stages};",
        "sub.u32 empty, full, {8 * stages + 8};",
        f"{NOT_ITS_TURN}|{UNMADE}",
    ),
    "waits for the first of several": (
        "or.b32 empty, empty, {8 * (together - 1)};",
        "and.b32 empty, empty, {-8 * together};",
        NOT_ITS_TURN,
    ),
    "waits for the next ones": (
        "{8 * (together - 1)};",
        "{8 * (2 * together - 1)};",
        f"{NOT_ITS_TURN}|{OTHER_KIND}|{UNMADE}",
    ),
    "every thread copies": (ELECTED, ELECTED.replace('        "@!one bra filled;",\n', ""), "by 32 threads"),
    "begun by every warp": ("setp.ne.u32 one, warp, 0;", "setp.ne.u32 one, warp, warp;", "by 4 threads"),
    "begun by another warp": ("setp.ne.u32 one, warp, 0;", "setp.ne.u32 one, warp, 32;", UNSEEN),
    "begun without looking for the warp": ("if first or cluster > 1:", "if cluster > 1:", "by 4 threads"),
}
TAKING: Mistakes = {
    "begun come again": ("taken - begun, step + begun", "taken, step", NOT_ITS_TURN),
    "what is begun counts as more": ("taken - begun, step", "taken, step", f"{NOT_ITS_TURN}|{BEYOND}"),
    "begun are skipped twice": (
        "taken - begun, step + begun",
        "taken - 2 * begun, step + 2 * begun",
        f"{NOT_ITS_TURN}|{WRONG}",
    ),
    "begun take no step": ("taken - begun, step + begun", "taken - begun, step", NOT_ITS_TURN),
    "begun K-blocks come again": ("block + begun,", "block,", WRONG),
    "the next tile's step is this one's": ("return step + count", "return step + begun", NOT_ITS_TURN),
    "begun are not counted": ("return step + count", "return step + count - begun", NOT_ITS_TURN),
    "no more than was begun": ("count = gl.maximum(count, begun)", "count = begun", HANG),
    "begun of every tile": ("gl.where(is_first, begun", "gl.where(True, begun", NOT_ITS_TURN),
    "nothing was begun": ("gl.where(is_first, begun", "gl.where(False, begun", NOT_ITS_TURN),
    "too few begun": (KERNELS, f"{KERNELS} - 1", HANG),
    "too many begun": (KERNELS, f"{KERNELS} + 1", NOT_ITS_TURN),
    "a whole ring begun": (KERNELS, "gl.minimum(blocks, STAGES)", NOT_ITS_TURN),
    "a whole ring counts as begun": (WARPS, "gl.minimum(count, STAGES)", HANG),
    "begun from another buffer on": ("begun, 0), 0, barriers", "begun, 0), 1, barriers", NOT_ITS_TURN),
    "another tile begun": ("= first_tile_of(tile,", "= first_tile_of(tile + 1,", f"{TWICE}|{WRONG}"),
    "loads another first tile": ("BINARY, pid_m, pid_n, M", "BINARY, pid_n, pid_m, M", WRONG),
    "multiplies another first tile": (" " * 20 + "c, tiles, pid_m", " " * 20 + "c, tiles, pid_n", f"{TWICE}|{WRONG}"),
}
LANES: Mistakes = {
    "scales of what was begun are forgotten": (FROM_LANES, "range(begun", HANG),
    "as if the copy engine took them": (FROM_LANES, "range(count", HANG),
    "scales in one place": ("+ slot * scale_size(ROWS, WIDTH, SWAPPED), full", ", full", IN_USE),
    "beside another buffer": ("slot = (step + number) % STAGES", "slot = number % STAGES", NOT_ITS_TURN),
    "scales of the next K-block": (
        "full,\n                block + number, sources",
        "full,\n                block + number + 1, sources",
        f"{WRONG}|{BEYOND}",
    ),
    "the same K-block again": ("(block + number) * 128", "block * 128", WRONG),
    "begun come again": ("if number >= begun:", "if number >= 0:", NOT_ITS_TURN),
    "one that was not begun": ("if number >= begun:", "if number > begun:", NOT_ITS_TURN),
    "the same buffer again": ("last = (step + number) |", "last = step |", NOT_ITS_TURN),
    "waits for the first of several": ("(step + number) | (TOGETHER - 1)", "(step + number) & -TOGETHER", NOT_ITS_TURN),
    "other parity": ("((last // STAGES) & 1) ^ 1", "(last // STAGES) & 1", NOT_ITS_TURN),
    "begins nothing": (FOR_LANES, "range(0)", HANG),
    "begins as few as the copy engine's": (KERNELS, KERNELS.replace("LANES", "False"), HANG),
    "as few count as begun": (WARPS, WARPS.replace("LANES", "False"), NOT_ITS_TURN),
    "begins the same K-block again": (BUFFERS, BUFFERS.replace("block + slot", "block"), WRONG),
    "begins the same buffer again": (BUFFERS, BUFFERS.replace("ring + slot", "ring + 0"), f"{IN_USE}|{WRONG}"),
    "begins with the same barrier": (BUFFERS, BUFFERS.replace("STAGES + slot", "STAGES"), NOT_ITS_TURN),
    "begins with others' barriers": (
        BUFFERS,
        BUFFERS.replace("STAGES + slot", "slot"),
        f"{NOT_ITS_TURN}|{OTHER_KIND}|{UNMADE}",
    ),
}
FEW: Mistakes = {
    "nothing is something": (
        '        "setp.eq.u32 one, left, 0;",\n        "@one bra filled;",\n',
        "",
        f"{NOT_ITS_TURN}|{OUTSIDE}|{BEYOND}|does not end",
    ),
    "at least one more": (
        "gl.maximum(count, begun)",
        "gl.maximum(count, begun + 1)",
        f"{NOT_ITS_TURN}|{BEYOND}|nobody waits for",
    ),
    "more begun than the tile has": (
        WARPS,
        WARPS.replace("count", "STAGES"),
        f"{NOT_ITS_TURN}|{BEYOND}|nobody waits for",
    ),
    "the kernel begins more than the tile has": (
        KERNELS,
        KERNELS.replace("blocks", "STAGES"),
        f"{NOT_ITS_TURN}|{BEYOND}|nobody waits for",
    ),
}
WAYS: dict[str, tuple[GemmProblem, Mistakes]] = {
    # Of a tile's eleven K-blocks, four of the first one begun.
    "engine": (block_scaled(71, 96, 11 * 128 - 16), LOOP | WAITING | TAKING),
    # The same where lanes copy the scales of each buffer, which the warp fills one at a time.
    "lanes": (block_scaled(71, 96, 11 * 128 - 16, own=(("block_k", 256),)), LANES),
    # Of the first tile's three K-blocks none is left for the loading warp.
    "all begun": (block_scaled(71, 96, 3 * 128), FEW),
}


@pytest.mark.parametrize(
    ("way", "mistake"), drawn([(way, name) for way, (_, mistakes) in WAYS.items() for name in mistakes], 25)
)
def test_the_stand_in_notices(way: str, mistake: str) -> None:
    """Six buffers, filled by twos; two tiles a program."""
    problem, mistakes = WAYS[way]
    assert_noticed(mistakes[mistake], problem, made("warp_specialized", 64, 48, 1, 4, 3, 1, 4), 2, 4)


# Of swapped tiles those whose scales the copy engine takes, and those whose scales lanes copy; also, rows of A.
BOTH: dict[str, tuple[int, str, str, str]] = {
    "the engine begins what it cannot take": (
        43,
        "gl.where(sources[2] > 0, begun, 0), 0",
        "begun, 0",
        "a copy of nothing",
    ),
    "the engine begins nothing": (44, "gl.where(sources[2] > 0, begun, 0), 0", "0, 0", HANG),
    "all is begun once more, without scales": (44, FOR_LANES, "range(begun)", NOT_ITS_TURN),
    "nothing is begun where lanes copy": (43, FOR_LANES, "range(0)", HANG),
    "few are begun where lanes copy": (43, KERNELS, KERNELS.replace("LANES", "False"), HANG),
    "few count as begun where lanes copy": (43, WARPS, WARPS.replace("LANES", "False"), NOT_ITS_TURN),
    "all are begun, as if lanes copied": (44, KERNELS, "gl.minimum(blocks, STAGES)", NOT_ITS_TURN),
    "all count as begun, as if lanes copied": (44, WARPS, "gl.minimum(count, STAGES)", HANG),
    "lanes copy nothing where they must": (43, "return swapped or not _taken", "return not _taken", HANG),
    "the engine fills what it cannot take": (
        43,
        "sources[2] > 0, count, begun)",
        "True, count, begun)",
        f"a copy of nothing|{HANG}",
    ),
    "the engine fills nothing": (44, "sources[2] > 0, count, begun)", "False, count, begun)", HANG),
    "lanes copy what the engine took": (44, FROM_LANES, "range(0", NOT_ITS_TURN),
    "lanes copy what is not begun": (44, FROM_LANES, "range(begun", NOT_ITS_TURN),
    "lanes copy nothing": (43, FROM_LANES, "range(count", HANG),
    "no copy engine": (44, "    if not _taken(rows, width, part, swapped):", "    if swapped:", HANG),
}


@pytest.mark.parametrize("mistake", drawn([*BOTH], 6))
@pytest.mark.parametrize("family", ["warp_specialized_swapped", "warp_specialized_swapped_cluster2"])
def test_the_stand_in_notices_in_both_ways(family: str, mistake: str) -> None:
    """One kernel has loops with scales and without: of six buffers and of a tile's eleven K-blocks, or a share's."""
    m, *texts = BOTH[mistake]
    k = 11 * 128 * (2 if "cluster" in family else 1)
    problem, config = block_scaled(m, 160, k), made(family, 64, 48, 1, 4, 3, 1, 4)
    assert_noticed(tuple(texts), problem, config, 2, 4)


# What the kernel begins of the first tile, what the loading warp takes to have been begun; a part of both, and what
# makes of it the number of other kernels.
CLUSTER = "warp_specialized_swapped_cluster2"
BEGUN, SHARE = (f"gl.minimum(last_block - first_block, {number})" for number in ("early(STAGES)", "STAGES"))
DEEP = {
    "warp_specialized": (f"range({BEGUN})", f"is_first, {BEGUN}", "early(STAGES)", "STAGES"),
    CLUSTER: (f"slot in range({SHARE})", f"step in range({SHARE}", "STAGES", "early(STAGES)"),
    "warp_specialized_2x1": (
        "gl.minimum(gl.cdiv(K, 64), STAGES)",
        "gl.minimum(blocks, STAGES)",
        "STAGES",
        "early(STAGES)",
    ),
}


@pytest.mark.parametrize("one", ["the kernel", "the loading warp"])
@pytest.mark.parametrize("family", DEEP)
def test_the_stand_in_notices_other_numbers_begun(family: str, one: str) -> None:
    """Of seven buffers the kernel begins four, or in clusters all: it and the loading warp must agree."""
    *texts, number, other = DEEP[family]
    before = texts[one != "the kernel"]
    begins_more = (one == "the kernel") == (other == "STAGES")
    mistake = (before, before.replace(number, other), f"{NOT_ITS_TURN}|{EARLY}" if begins_more else HANG)
    assert_noticed(mistake, fp16_problem(100, 72, 64 * 20), made(family, 64, 48, 1, 4, 7, 1, 1), 4, 4)


@pytest.mark.parametrize("more", ["the kernel", "the loading warp"])
@pytest.mark.parametrize("dtype", ["fp16", "fp8e4m3fn"])
def test_the_stand_in_notices_other_numbers_begun_in_groups(dtype: str, more: str) -> None:
    """The same where rows are in groups."""
    counts = [0, 65, 31]
    is_kernel = more == "the kernel"
    own = [("scales", "blocks")] if dtype != "fp16" else []
    problem = grouped(sum(counts), 72, 64 * 20, len(counts), dtype, own)
    config = made("warp_specialized", 64, 48, 1, 4, 7, 1, 1 if dtype == "fp16" else 2)
    text = text_of(problem, config)
    before, after = (KERNELS, "gl.minimum(blocks, STAGES)") if is_kernel else (WARPS, "gl.minimum(count, STAGES)")
    if dtype == "fp16":
        before = f"gl.minimum({'gl.cdiv(K, 64)' if is_kernel else 'blocks'}, early(STAGES))"
        after = before.replace("early(STAGES)", "STAGES")
    assert before in text
    (said,) = said_of_groups(text.replace(before, after), problem, config, 2, counts, [4])
    assert re.search(f"{NOT_ITS_TURN}|{EARLY}" if is_kernel else HANG, said), said


def test_the_stand_in_notices_lanes_that_know_of_nothing() -> None:
    """A tile whose scales the copy engine takes, for which one thread waits, then one for which lanes wait."""
    counts = [0, 64, 65, 63]
    problem = grouped(sum(counts), 72, 11 * 128 - 16, len(counts), "fp8e4m3fn", [("scales", "blocks")])
    config = made("warp_specialized_swapped", 64, 48, 1, 4, 3, 1, 4)
    text = text_of(problem, config)
    before = '*["bar.warp.sync -1;"] * (not first), '
    assert before in text
    (said,) = said_of_groups(text.replace(before, ""), problem, config, 1, counts, [4])
    assert re.search(NOT_ITS_TURN, said), said


# What is changed, and the family and rows of A for which.
LANES_BEGIN = "gl.where(sources[2] > 0, early(STAGES), STAGES)"
TAKEN, COPIED = ("warp_specialized", 71), ("warp_specialized_swapped", 71)
HARMLESS = {
    "begins one": ("return min(stages, 4)", "return 1", TAKEN),
    "begins none": ("return min(stages, 4)", "return 0", ("warp_specialized_swapped", 72)),
    "begins all": ("return min(stages, 4)", "return stages", TAKEN),
    "lanes' are begun like others": (LANES_BEGIN, "early(STAGES)", COPIED),
    "others are begun like lanes'": (LANES_BEGIN, "STAGES", ("warp_specialized_swapped", 72)),
    "none of lanes' is begun": (LANES_BEGIN, "0", COPIED),
    "each buffer is waited for by itself": ("* (together > 1)", "* 0", TAKEN),
    "as many steps as there are": ("count = gl.maximum(count, begun)", "pass", COPIED),
}


@pytest.mark.parametrize("change", drawn([*HARMLESS], 3))
def test_the_stand_in_says_nothing_to_what_is_harmless(change: str) -> None:
    """What takes longer, but is right."""
    before, after, (family, m) = HARMLESS[change]
    problem, config = block_scaled(m, 96, 11 * 128 - 16), made(family, 64, 48, 1, 4, 3, 1, 4)
    assert not said_to(changed(problem, config, before, after), problem, config, 2, range(2))
