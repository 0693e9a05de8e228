"""The stand-in notices kernels in Gluon that scale products of K-blocks (templates/gemm/promote.py.j2) with a mistake.

Mistakes are planted in the generated text: one of each kind that a change of the templates could make.
"""

from __future__ import annotations

import re

import pytest
from gluon_cases import assert_noticed, block_scaled, changed, made, said_to
from long_tests import drawn

WRONG, EARLY, HANG = "wrong", "read before what it needs has arrived", "a barrier that nobody completes"
IN_USE, TOO_MANY, UNFINISHED = "while it is in use", "an arrival too many", "products are done"
BEYOND, OUTSIDE = "beyond the memory", "an address outside the ring"
HEARD_OF = """\
        *[f"cp.async.ca.shared.global [scales+{4 * (room + i)}], [{name}], 4;" for i, name in enumerate(froms)],
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [full];","""
AGAIN = " cp.async.mbarrier.arrive.noinc.shared::cta.b64 [full];"
Mistakes = dict[str, tuple[str, str, str]]
Own = tuple[tuple[str, int], ...]
MULTIPLYING: Mistakes = {
    "products are added to what was there": ("setp.ne.u32 more, {number}, 0;", "setp.eq.u32 more, {number}, 0;", WRONG),
    "every product replaces": ('products.append("setp.eq.u32 more', 'products.append("setp.ne.u32 more', WRONG),
    "the first part's rows twice": ("{part * warps * 128}", "0", WRONG),
    "parts the other way round": ("below(sums[i], sums[EIGHTS + i]", "below(sums[EIGHTS + i], sums[i]", WRONG),
    "columns where rows are": ("(ring + ROWS * 128)", "(ring + ROWS * 64)", f"{WRONG}|{EARLY}"),
    "buffers closer": ("buffer_size(ROWS, WIDTH, SWAPPED) // 16", "1024 // 16", f"{WRONG}|{EARLY}|in use"),
    "no wgmma.fence": ('            "wgmma.fence.sync.aligned;",\n', "", "without a wgmma.fence"),
    "no group": ("wgmma.commit_group.sync.aligned; }", "}", UNFINISHED),
    "no wait for products": ('"wgmma.wait_group.sync.aligned 0;"', '"wgmma.wait_group.sync.aligned 1;"', UNFINISHED),
    "products as they were begun": ("made = finish_products(made,", "_ = finish_products(made,", UNFINISHED),
    "sums before they are finished": (
        "            made = finish_products(made,",
        "            sums[0] + made[0].to(gl.float32)\n            made = finish_products(made,",
        UNFINISHED,
    ),
    "every thread arrives": (
        '0;", "elect.sync _|one, -1;"]',
        '0;", "setp.eq.u32 one, 0, 0;"]',
        f"{HANG}|{TOO_MANY}|{IN_USE}",
    ),
    "released with the first part": ("if part == PARTS - 1", "if part == 0", f"{EARLY}|{IN_USE}"),
    "released with each part": (
        " if part == PARTS - 1 else barriers * 0",
        "",
        f"{EARLY}|{HANG}|{TOO_MANY}|{IN_USE}",
    ),
    "not released": ("barriers + slot * 8 if part == PARTS - 1 else", "", HANG),
    "no wait for a full buffer": (
        "            @!done bra again;\n            there:",
        "            there:",
        EARLY,
    ),
    "no look is enough": ("or.pred done, done, idle;", "setp.eq.u32 done, 0, 0;", EARLY),
    "nothing is wanted": ("setp.eq.u32 idle, $3, 0;", "setp.eq.u32 idle, 0, 0;", EARLY),
    "something is always wanted": ("setp.eq.u32 idle, $3, 0;", "setp.ne.u32 idle, 0, 0;", HANG),
    "wanted behind the last": ("(block + 1 < blocks)", "(block < blocks)", HANG),
    "the last is not wanted": ("(block + 1 < blocks)", "(block + 2 < blocks)", EARLY),
    "a look at the phase before": (
        "mbarrier.test_wait.parity.shared::cta.b64 done, [$1], $2;",
        "xor.b32 $0, $2, 1;\n            mbarrier.test_wait.parity.shared::cta.b64 done, [$1], $0;",
        f"{EARLY}|next phase",
    ),
    "scales of the first buffer": ("scales + slot * scale_size", "scales + 0 * scale_size", f"{WRONG}|{EARLY}|in use"),
    "columns all have the first block's": ("FIRST: gl.constexpr = 8 * i //", "FIRST: gl.constexpr = 0 * i //", WRONG),
    "columns in common where they are not": (
        "8 * i // (128 - _first_in_block(WIDTH)) *",
        "8 * i // (256 - _first_in_block(WIDTH)) *",
        WRONG,
    ),
    "columns of the next block": ("number * 128, columns[number]", "number * 128 + 16, columns[number]", WRONG),
    "scales in one another's place": ("of_b = place + 4 * OF_A", "of_b = place", WRONG),
    "scales that nobody waits for": ("8, STAGES, 2)", "8, STAGES, 1)", f"{EARLY}|{HANG}|too many|next phase"),
    "an arrival more than come": ("8, STAGES, 2)", "8, STAGES, 3)", f"{HANG}|{IN_USE}"),
}
ENGINE: Mistakes = {
    "as many bytes as there are rows": (
        "(sources[0], sources[1], sources[2])",
        "(sources[0], sources[1], sources[1])",
        f"{WRONG}|{EARLY}|{BEYOND}|{IN_USE}",
    ),
    "a row too few": ("gl.minimum(M - first_m, OF_A)", "gl.minimum(M - first_m, OF_A - 1)", f"{WRONG}|{EARLY}"),
    "four rows too few": ("gl.minimum(M - first_m, OF_A)", "gl.minimum(M - first_m, OF_A - 4)", f"{WRONG}|{EARLY}"),
    "rows that A does not have": ("gl.minimum(M - first_m, OF_A)", "OF_A", BEYOND),
    "from one K-block to the next but one": ("next, ${behind + 1}, 4;", "next, ${behind + 1}, 8;", f"{WRONG}|{BEYOND}"),
    "from one K-block to the same": ("next, ${behind + 1}, 4;", "next, ${behind + 1}, 0;", WRONG),
    "A's next one is B's": ('"add.s64 from, from, next;"', '"add.s64 from, from, 4;"', WRONG),
    "always A's first K-block": ("next, $6, ${behind + 1};", "next, 0, ${behind + 1};", WRONG),
    "A's K-blocks too close": ('"shl.b64 next, next, 2;"', '"shl.b64 next, next, 0;"', f"{WRONG}|between two"),
    "always B's first K-block": ('"mul.wide.s32 next, $6, 4;"', '"mul.wide.s32 next, $6, 0;"', WRONG),
    "B's of the first K-block begun": ("add.s64 {name}, {name}, 4;", "add.s64 {name}, {name}, 0;", WRONG),
    "B's all of the first block": ("block_n * along_k,", "0 * along_k,", WRONG),
    "B's in another place": ("of_b + block_n * along_k,", "of_b + block_n * along_k + 1,", f"{WRONG}|{BEYOND}"),
    "B's where A's are": ("[scales+{4 * (room + i)}]", "[scales+{4 * i}]", IN_USE),
    "in one place": ("add.u32 scales, scales, {scale_bytes};", "add.u32 scales, scales, 0;", IN_USE),
    "always from the first place on": (
        "mad.lo.u32 scales, slot, {scale_bytes}, $4;",
        "mov.u32 scales, $4;",
        f"{IN_USE}|{WRONG}|{EARLY}",
    ),
    "over barriers": ("add.u32 scales, scales, {offset};", "add.u32 scales, scales, 0;", "over barriers"),
    "in the next turn behind those of this one": (
        '            f"add.u32 scales, $4, {offset};",\n',
        "",
        f"{OUTSIDE}|{IN_USE}|{EARLY}|{WRONG}",
    ),
    "B's, of which nobody hears": (
        '        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [full];",\n',
        "",
        f"{HANG}|nobody hears",
    ),
    "B's are heard of before they are copied": (
        HEARD_OF,
        f"{HEARD_OF.splitlines()[1]}\n{HEARD_OF.splitlines()[0]}",
        f"{EARLY}|nobody hears",
    ),
    "B's are heard of twice": (
        "noinc.shared::cta.b64 [full];",
        f"noinc.shared::cta.b64 [full];{AGAIN}",
        f"{TOO_MANY}|{EARLY}",
    ),
    "B's all the first one's": ("${behind + 3 + number}", "${behind + 3}", WRONG),
    "B's are counted apart": (
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [full];",
        "cp.async.mbarrier.arrive.shared::cta.b64 [full];",
        HANG,
    ),
    "bytes that nobody expects": ('1, 1, "all")', "1, 1, size)", f"{HANG}|{EARLY}|next phase"),
    "fewer bytes than come": ("add.u32 all, bytes, {size};", "add.u32 all, bytes, {size - 16};", f"{HANG}|{EARLY}"),
    "more bytes than come": ("add.u32 all, bytes, {size};", "add.u32 all, bytes, {size + 16};", HANG),
    "only its own bytes": ("add.u32 all, bytes, {size};", "mov.u32 all, bytes;", f"{HANG}|{EARLY}"),
    "first scales of another tile": (
        "        pid_m * BLOCK_SIZE_M, pid_n * BLOCK_SIZE_N, epilogue, M",
        "        (1 - pid_m) * BLOCK_SIZE_M, pid_n * BLOCK_SIZE_N, epilogue, M",
        f"{WRONG}|{EARLY}",
    ),
}
# Where in its line of 16 bytes a K-block's first scale of A lies, which differs from one to the next.
LINES: Mistakes = {
    "wherever a line begins": ("place + shift + 4 *", "place + 4 *", WRONG),
    "every K-block as the first": ("& 15, M * 4", "& 15, 0", WRONG),
    "as if lines were longer": (
        "shift = (shift + more_shift) & 15",
        "shift = (shift + more_shift) & 31",
        f"{WRONG}|{EARLY}",
    ),
    "as if lines were shorter": ("shift = (shift + more_shift) & 15", "shift = (shift + more_shift) & 7", WRONG),
    "a K-block has another number of rows": ("& 15, M * 4", "& 15, M * 4 + 4", f"{WRONG}|{EARLY}"),
    "from between two lines": ('"and.b64 at, from, -16;"', '"mov.b64 at, from;"', "engine does not take"),
    "from the next line": (
        '"and.b64 at, from, -16;"',
        '"add.s64 at, from, 15;", "and.b64 at, at, -16;"',
        WRONG,
    ),
    "to between two lines": ('"and.b32 bytes, bytes, -16;", ', "", "engine does not take"),
    "without a line of one scale": ('"add.u32 bytes, bytes, 15;"', '"add.u32 bytes, bytes, 11;"', f"{WRONG}|{EARLY}"),
    "without what lies before": ('"and.b32 bytes, bytes, 15;"', '"mov.u32 bytes, 0;"', f"{WRONG}|{EARLY}"),
    "no room for what lies before": ("swapped else rows + 4", "swapped else rows", IN_USE),
    "room for what lies before on one side": (
        "OF_A: gl.constexpr = scale_count_a",
        "OF_A: gl.constexpr = _count_a",
        f"{WRONG}|{EARLY}",
    ),
}
LANES: Mistakes = {
    "scales of one K-block": ("+ block // 2 * rows_a", "+ 0 * rows_a", WRONG),
    "as if they came in lines": (
        "_taken(ROWS, WIDTH, PART, SWAPPED) and not SWAPPED",
        "not SWAPPED",
        f"{WRONG}|{EARLY}",
    ),
    "a row's scale is its neighbour's": ("add.u32 at, lane, {first};", "add.u32 at, lane, {first ^ 32};", WRONG),
    "the last row has no scale": ("rows_a - 1, 1, _count_a", "rows_a - 2, 1, _count_a", WRONG),
    "scales beyond the last row": ("rows_a - 1, 1, _count_a", "rows_a + 999, 1, _count_a", BEYOND),
    "blocks of columns in another place": (
        "gl.cdiv(K, 256),\n        OF_B",
        "gl.cdiv(K, 256) + 1,\n        OF_B",
        f"{WRONG}|{BEYOND}",
    ),
    "one scale too few": (
        "setp.lt.and.u32 mine, at, {count}",
        "setp.lt.and.u32 mine, at, {count - 1}",
        f"{WRONG}|{EARLY}",
    ),
    "nobody arrives with scales": ("    copies_arrive(full, CLUSTER)\n", "", f"{HANG}|nobody hears"),
    "no arrivals are added": (
        "cp.async.mbarrier.arrive.shared::cta.b64 [to];",
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [to];",
        f"{TOO_MANY}|of the other kind",
    ),
    "added when it may be over": ('            "bar.warp.sync -1;",\n', "", "may end before an arrival is added"),
    "nobody hears of copies": (
        '            "@mine cp.async.mbarrier.arrive.shared::cta.b64 [to];",\n',
        "",
        "of the other kind|nobody hears",
    ),
    "one hears of copies": (
        '"@mine cp.async.mbarrier.arrive.shared::cta.b64 [to];"',
        '"setp.eq.u32 mine, lane, 0;", "@mine cp.async.mbarrier.arrive.shared::cta.b64 [to];"',
        f"{EARLY}|{IN_USE}",
    ),
    "nobody arrives when all are added": (
        '            "@mine mbarrier.arrive.shared::cta.b64 _, [to], 1;",\n',
        "",
        f"{HANG}|may end before",
    ),
    "two arrivals of one": ("_, [to], 1;", "_, [to], 2;", TOO_MANY),
}
WAYS: dict[str, tuple[Own, Mistakes]] = {
    "engine": ((), MULTIPLYING | ENGINE | LINES),
    "lanes": ((("block_k", 256),), MULTIPLYING | LANES),
}


@pytest.mark.parametrize(
    ("way", "mistake"), drawn([(way, name) for way, (_, mistakes) in WAYS.items() for name in mistakes], 30)
)
def test_the_stand_in_notices(way: str, mistake: str) -> None:
    """A kernel with a mistake does not pass: two parts of rows, tiles across blocks, an odd number of K-blocks.

    The copy engine takes scales of blocks of 128 along K, wherever in a line of an odd number of rows they begin.
    """
    own, mistakes = WAYS[way]
    # The line that follows is another one only where there are more of them.
    k = 640 if mistake == "from the next line" else 384
    problem, config = block_scaled(133, 224, k, own=own), made("warp_specialized", 128, 112, 1, 4, 2, 1, 2)
    assert_noticed(mistakes[mistake], problem, config, 2, 4)


def test_the_stand_in_notices_what_stays_in_place() -> None:
    """Where products replace those before them by a number that is always zero, that must be one."""
    problem, config = block_scaled(130, 352, 640), made("warp_specialized", 128, 176, 1, 8, 2, 1, 2)
    (said,) = said_to(changed(problem, config, "%ctaid.y", "%tid.x"), problem, config, 2, [4])
    assert "not the same in all threads" in said


WARPGROUPS: Mistakes = {
    "the first one's rows twice": ("    if warps == 4:\n        return", "    if warps:\n        return", WRONG),
    "another block of rows": ("shl.b32 $0, $0, 13;", "shl.b32 $0, $0, 12;", WRONG),
    "of each warp": ("shr.u32 $0, $0, 7;", "shr.u32 $0, $0, 5;", "not the same in all threads"),
    "one of them arrives": (
        "make_barriers(barriers, STAGES, WARPS)",
        "make_barriers(barriers, STAGES, 4)",
        f"{IN_USE}|next phase",
    ),
}


@pytest.mark.parametrize("mistake", WARPGROUPS)
def test_the_stand_in_notices_in_two_warpgroups(mistake: str) -> None:
    """Two warpgroups, each with 64 rows of its own."""
    problem, config = block_scaled(132, 112, 640), made("warp_specialized", 128, 112, 1, 8, 2, 1, 2)
    assert_noticed(WARPGROUPS[mistake], problem, config, 2, 4)


TWOS: Mistakes = {
    "scales of the second before they are there": (
        " rows, columns = scales_of(\n                scales + slot *",
        " rows, columns = scales_of(\n                scales + next_slot *",
        f"{WRONG}|{EARLY}",
    ),
    "the second of two twice": (
        "made, first_row + slot * NEXT",
        "made, first_row + next_slot * NEXT",
        f"{WRONG}|{EARLY}",
    ),
    "the first of two twice": ("made, first_row + next_slot * NEXT", "made, first_row + slot * NEXT", WRONG),
    "scales of the first twice": (
        "next_rows[0] * column_scale(next_columns",
        "rows[0] * column_scale(next_columns",
        WRONG,
    ),
    "the second is not released": ("(barriers + slot * 8, barriers + next_slot * 8)", "(barriers + slot * 8,)", HANG),
    "the first is released twice": (
        "(barriers + slot * 8, barriers + next_slot * 8)",
        "(barriers + slot * 8, barriers + slot * 8)",
        f"{HANG}|{EARLY}|{TOO_MANY}|{IN_USE}",
    ),
    "no wait for the second": (
        "await_full(barriers + (STAGES + next_slot)",
        "await_full(barriers + (STAGES + slot)",
        f"{EARLY}|next phase|{HANG}",
    ),
    "only whole twos": ("        blocks = blocks % 2\n", "        blocks = blocks * 0\n", f"{WRONG}|nobody"),
    "products of the first are waited for": ("aligned 0;", "aligned 1;", UNFINISHED),
    "barriers where the second's products are": ("first = 2 * sets *", "first = 2 *", "is not an input"),
}
TWO_LINES: Mistakes = {
    "the second's line begins as the first's": (
        "            shift = (shift + more_shift) & 15\n            await_full",
        "            await_full",
        WRONG,
    ),
    "the next one's line begins as the second's": (
        "            shift = (shift + more_shift) & 15\n            both",
        "            both",
        WRONG,
    ),
    "the odd one's line begins as the first's": (
        "        blocks = blocks % 2\n",
        "        blocks = blocks % 2\n        shift = 0\n",
        WRONG,
    ),
}
TWO_WAYS = [("engine", name) for name in TWOS | TWO_LINES] + [("lanes", name) for name in TWOS]


@pytest.mark.parametrize(("way", "mistake"), drawn([*TWO_WAYS], 6))
def test_the_stand_in_notices_twos(way: str, mistake: str) -> None:
    """Two buffers whose products are waited for at once, and an odd one; lanes copy scales that rows have in common."""
    own: Own = (("block_m", 16),) if way == "lanes" else ()
    problem, config = block_scaled(71, 96, 896, own=own), made("warp_specialized", 64, 48, 1, 4, 3, 1, 2)
    assert_noticed((TWOS | TWO_LINES)[mistake], problem, config, 2, 4)


SHARES: Mistakes = {
    "begun in the first turn": ("turn == first_turn", "turn == 0", f"{TOO_MANY}|{IN_USE}|{HANG}"),
    "a share's line begins as the tile's": ("first_block * M * 4", "0 * M * 4", WRONG),
    "a share's line begins as the next K-block's": ("first_block * M * 4", "(first_block + 1) * M * 4", WRONG),
    "K-blocks of the first share begun": (
        "barriers, ring, first_block, first_row, first_column, boxes, sources,\n        ROWS",
        "barriers, ring, 0, first_row, first_column, boxes, sources,\n        ROWS",
        WRONG,
    ),
    "K-blocks of the first share": (
        "barriers, ring, first_block, first_row, first_column, boxes, sources,\n        first_m",
        "barriers, ring, 0, first_row, first_column, boxes, sources,\n        first_m",
        WRONG,
    ),
}


@pytest.mark.parametrize("mistake", drawn([*SHARES], 2))
def test_the_stand_in_notices_in_shares(mistake: str) -> None:
    """Programs share tiles of an odd number of rows: of their K-blocks, the first are at any place of a line."""
    problem, config = block_scaled(127, 480, 1040), made("warp_specialized", 64, 80, 3, 4, 3, 1, 2)
    assert_noticed(SHARES[mistake], problem, config, 5, 0)


@pytest.mark.parametrize("family", ["warp_specialized_swapped", "warp_specialized_swapped_cluster2"])
def test_the_stand_in_notices_lines_where_threads_read_by_twos(family: str) -> None:
    """Swapped kernels have scales of A where the copy engine has the first of a line: lanes copy those of odd rows."""
    problem, config = block_scaled(43, 160, 1040), made(family, 64, 48, 1, 4, 2, 1, 2)
    (said,) = said_to(changed(problem, config, "(M % 4 == 0) & ", ""), problem, config, 2, [4])
    assert re.search(WRONG, said), said


CLUSTER: Mistakes = {
    "every helping warp copies": ("if first or cluster > 1:", "if first:", "by 4 threads"),
    "no helping warp copies": ('*["and.b32 warp, warp, 127;"] * (not first)', "*[]", HANG),
    "K-blocks of the first share begun": ("ring, first_block, pid_n", "ring, 0, pid_n", WRONG),
    "K-blocks of the first share": ("ring, first_block, first_row", "ring, 0, first_row", WRONG),
    "loads another tile": ("BINARY, pid_m, pid_n, K, ROWS", "BINARY, pid_n, pid_m, K, ROWS", f"{WRONG}|{IN_USE}"),
    "multiplies another tile": (" (c, tiles, pid_m, pid_n,", " (c, tiles, pid_n, pid_m,", WRONG),
    "scales where other programs' sums come": (
        "scale_size(rows, width, swapped), scale_offset(rows, width, cluster))",
        "scale_size(rows, width, swapped), 1024)",
        f"{WRONG}|{EARLY}|{IN_USE}",
    ),
    "no room for other programs' sums": (
        "return 1024 + ((cluster - 1) * rows * largest * 32 + 1023) // 1024 * 1024",
        "return 1024",
        IN_USE,
    ),
}


@pytest.mark.parametrize("mistake", drawn([*CLUSTER], 3))
def test_the_stand_in_notices_in_clusters(mistake: str) -> None:
    """Four helping warps in each of two programs, of which each has its share of the K-blocks."""
    problem, config = block_scaled(44, 160, 1040), made("warp_specialized_swapped_cluster2", 64, 48, 1, 4, 2, 1, 2)
    assert_noticed(CLUSTER[mistake], problem, config, 2, 4)


LANES_OF_WARPS: Mistakes = {
    "of every one": ("{127 if cluster > 1 else 31}", "31", f"{TOO_MANY}|{IN_USE}"),
    "of another than the one that fills": (
        '"setp.ne.u32 idle, warp, 0;"',
        '"xor.b32 warp, warp, 32;", "setp.ne.u32 idle, warp, 0;"',
        f"{IN_USE}|{HANG}|{TOO_MANY}",
    ),
    "where other programs' sums come": (
        "barriers + scale_offset(ROWS, WIDTH, CLUSTER) + slot",
        "barriers + 1024 + slot",
        f"{WRONG}|{EARLY}|{IN_USE}",
    ),
}


@pytest.mark.parametrize("mistake", LANES_OF_WARPS)
def test_the_stand_in_notices_lanes_in_clusters(mistake: str) -> None:
    """Of four helping warps one copies number by number."""
    problem, config = block_scaled(43, 160, 1040), made("warp_specialized_swapped_cluster2", 64, 48, 1, 4, 2, 1, 2)
    assert_noticed(LANES_OF_WARPS[mistake], problem, config, 2, 4)
