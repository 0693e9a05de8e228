"""The stand-in notices kernels in Gluon that scale products of K-blocks (templates/gemm/promote.py.j2) with a mistake.

Mistakes are planted in the generated text: one of each kind that a change of the templates could make.
"""

from __future__ import annotations

import re

import pytest
from gluon_cases import assert_noticed, block_scaled, changed, made, said_to

pytestmark = pytest.mark.usefixtures("for_clusters")
WRONG, EARLY, HANG = "wrong", "read before what it needs has arrived", "a barrier that nobody completes"
IN_USE, TOO_MANY, UNFINISHED = "while it is in use", "an arrival too many", "products are done"
UNSEEN, BEYOND = "where nobody else may have seen it", "beyond the memory"
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
    "scales that nobody waits for": ("STAGES, WARPS, 3)", "STAGES, WARPS, 1)", f"{EARLY}|too many|next phase"),
    "B's scales, that nobody waits for": ("STAGES, WARPS, 3)", "STAGES, WARPS, 2)", f"{EARLY}|too many|next phase"),
    "an arrival more than come": ("STAGES, WARPS, 3)", "STAGES, WARPS, 4)", f"{HANG}|{IN_USE}"),
}
ENGINE: Mistakes = {
    "a row too few": ("gl.minimum(M - first_m, OF_A)", "gl.minimum(M - first_m, OF_A - 1)", f"{WRONG}|{EARLY}"),
    "four rows too few": ("gl.minimum(M - first_m, OF_A)", "gl.minimum(M - first_m, OF_A - 4)", f"{WRONG}|{EARLY}"),
    "rows that A does not have": ("gl.minimum(M - first_m, OF_A)", "OF_A", BEYOND),
    "from one K-block to the next but one": ('"mul.wide.s32 next, $7, 4;"', '"mul.wide.s32 next, $7, 8;"', WRONG),
    "from one K-block to the same": ('"mul.wide.s32 next, $7, 4;"', '"mul.wide.s32 next, $7, 0;"', WRONG),
    "always A's first K-block": ('"mul.wide.s32 next, $4, $7;"', '"mul.wide.s32 next, 0, $7;"', WRONG),
    "always B's first K-block": ('"mul.wide.s32 next, $4, 4;"', '"mul.wide.s32 next, $4, 0;"', WRONG),
    "B's of the first K-block begun": ("add.s64 {name}, {name}, 4;", "add.s64 {name}, {name}, 0;", WRONG),
    "B's all of the first block": ("block_n * along_k,", "0 * along_k,", WRONG),
    "B's in another place": ("of_b + block_n * along_k,", "of_b + block_n * along_k + 1,", f"{WRONG}|{BEYOND}"),
    "B's where A's are": ("[place+{4 * (room + i)}]", "[place+{4 * i}]", IN_USE),
    "begun in one place": ("add.u32 place, place, {size};", "add.u32 place, place, 0;", IN_USE),
    "begun at one barrier": (
        '            "add.u32 full, full, 8;",\n            f"add.u32 place, place, {size}',
        '            f"add.u32 place, place, {size}',
        f"{HANG}|{TOO_MANY}|{EARLY}|next phase",
    ),
    "begun by every warp": ("*chosen * (size > 0 or cluster > 1)", "*[]", "by 4 threads"),
    "begun by another warp": (
        '"setp.ne.u32 one, warp, 0;",\n        "@one bra taken;"',
        '"setp.ne.u32 one, warp, 32;",\n        "@one bra taken;"',
        UNSEEN,
    ),
    "B's, of which nobody hears": (
        '            "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [full];",\n',
        "",
        f"{HANG}|nobody hears",
    ),
    "B's are counted apart": (
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [full];",
        "cp.async.mbarrier.arrive.shared::cta.b64 [full];",
        HANG,
    ),
    "bytes that nobody expects": (
        '            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], bytes;",\n',
        "",
        f"{HANG}|{EARLY}",
    ),
    "fewer bytes than come": ("_, [full], bytes;", "_, [full], 16;", f"{EARLY}|{HANG}|{TOO_MANY}|{IN_USE}|next phase"),
    "more bytes than come": ("_, [full], bytes;", "_, [full], 4096;", f"{HANG}|{IN_USE}"),
    "both copy the first scales": (
        "range(gl.where(sources[2] > 0, 0, begun))",
        "range(begun)",
        f"{TOO_MANY}|{IN_USE}|next phase",
    ),
    "neither copies the first scales": ("    if sources[2] > 0:", "    if sources[2] < 0:", HANG),
    "first scales of another tile": (
        "        pid_m * BLOCK_SIZE_M, pid_n * BLOCK_SIZE_N, epilogue, M",
        "        (1 - pid_m) * BLOCK_SIZE_M, pid_n * BLOCK_SIZE_N, epilogue, M",
        f"{WRONG}|{EARLY}",
    ),
    "too few first scales": (
        "STAGES), barriers + STAGES * 8, barriers + 1024",
        "STAGES - 1), barriers + STAGES * 8, barriers + 1024",
        HANG,
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
    "from between two lines": ('"and.b64 line, from, -16;"', '"mov.b64 line, from;"', "engine does not take"),
    "from the next line": (
        '"and.b64 line, from, -16;"',
        '"add.s64 line, from, 15;", "and.b64 line, line, -16;"',
        WRONG,
    ),
    "to between two lines": ('            "and.b32 bytes, bytes, -16;",\n', "", "engine does not take"),
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
    "blocks of columns in another place": ("gl.cdiv(K, 256), OF_B", "gl.cdiv(K, 256) + 1, OF_B", f"{WRONG}|{BEYOND}"),
    "one scale too few": (
        "setp.lt.and.u32 mine, at, {count}",
        "setp.lt.and.u32 mine, at, {count - 1}",
        f"{WRONG}|{EARLY}",
    ),
    "nobody arrives with scales": ("        copies_arrive(full, CLUSTER)\n", "", f"{HANG}|nobody hears"),
    "scales of what was begun are forgotten": ("range(gl.where(sources[2] > 0, 0, begun))", "range(0)", HANG),
    "no arrivals are added": (
        "cp.async.mbarrier.arrive.shared::cta.b64 [$1];",
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$1];",
        f"{TOO_MANY}|of the other kind",
    ),
    "added when it may be over": ('            "bar.warp.sync -1;",\n', "", "may end before an arrival is added"),
    "nobody hears of copies": (
        '            "@mine cp.async.mbarrier.arrive.shared::cta.b64 [$1];",\n',
        "",
        "of the other kind|nobody hears",
    ),
    "one hears of copies": (
        '"@mine cp.async.mbarrier.arrive.shared::cta.b64 [$1];"',
        '"setp.eq.u32 mine, lane, 0;", "@mine cp.async.mbarrier.arrive.shared::cta.b64 [$1];"',
        f"{EARLY}|{IN_USE}",
    ),
    "one of two arrivals": ("_, [$1], 2;", "_, [$1], 1;", HANG),
    "three of two arrivals": ("_, [$1], 2;", "_, [$1], 3;", TOO_MANY),
}
WAYS: dict[str, tuple[Own, Mistakes]] = {
    "engine": ((), MULTIPLYING | ENGINE | LINES),
    "lanes": ((("block_k", 256),), MULTIPLYING | LANES),
}


@pytest.mark.parametrize(("way", "mistake"), [(way, name) for way, (_, mistakes) in WAYS.items() for name in mistakes])
def test_the_stand_in_notices(way: str, mistake: str) -> None:
    """A kernel with a mistake does not pass: two parts of rows, tiles across blocks, an odd number of K-blocks.

    The copy engine takes scales of blocks of 128 along K, wherever in a line of an odd number of rows they begin.
    """
    own, mistakes = WAYS[way]
    problem, config = block_scaled(131, 224, 640, own=own), made("warp_specialized", 128, 112, 1, 4, 2, 1, 2)
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
        "make_barriers(barriers, STAGES, WARPS, 3)",
        "make_barriers(barriers, STAGES, 4, 3)",
        f"{IN_USE}|next phase",
    ),
}


@pytest.mark.parametrize("mistake", WARPGROUPS)
def test_the_stand_in_notices_in_two_warpgroups(mistake: str) -> None:
    """Two warpgroups, each with 64 rows of its own."""
    problem, config = block_scaled(132, 112, 640), made("warp_specialized", 128, 112, 1, 8, 2, 1, 2)
    assert_noticed(WARPGROUPS[mistake], problem, config, 2, 4)


TWOS: Mistakes = {
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


@pytest.mark.parametrize(("way", "mistake"), TWO_WAYS)
def test_the_stand_in_notices_twos(way: str, mistake: str) -> None:
    """Two buffers whose products are waited for at once, and an odd one; lanes copy scales that rows have in common."""
    own: Own = (("block_m", 16),) if way == "lanes" else ()
    problem, config = block_scaled(71, 96, 896, own=own), made("warp_specialized", 64, 48, 1, 4, 3, 1, 2)
    assert_noticed((TWOS | TWO_LINES)[mistake], problem, config, 2, 4)


SHARES: Mistakes = {
    "a share's line begins as the tile's": ("first_block * M * 4", "0 * M * 4", WRONG),
    "a share's line begins as the next K-block's": ("first_block * M * 4", "(first_block + 1) * M * 4", WRONG),
    "first scales of the first share": ("+ 1024, first_block, sources", "+ 1024, 0, sources", WRONG),
}


@pytest.mark.parametrize("mistake", SHARES)
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
    "every helping warp copies": ("*chosen * (size > 0 or cluster > 1)", "*chosen * (size > 0)", "by 4 threads"),
    "no helping warp copies": ('*["and.b32 warp, warp, 127;"] * (size == 0)', "*[]", HANG),
    "first scales of the first share": (", first_block, sources, ROWS", ", 0, sources, ROWS", WRONG),
}


@pytest.mark.parametrize("mistake", CLUSTER)
def test_the_stand_in_notices_in_clusters(mistake: str) -> None:
    """Four helping warps in each of two programs, of which each has its share of the K-blocks."""
    problem, config = block_scaled(44, 160, 1040), made("warp_specialized_swapped_cluster2", 64, 48, 1, 4, 2, 1, 2)
    assert_noticed(CLUSTER[mistake], problem, config, 2, 4)


def test_the_stand_in_notices_lanes_of_every_helping_warp() -> None:
    """Of four helping warps one copies number by number."""
    problem, config = block_scaled(43, 160, 1040), made("warp_specialized_swapped_cluster2", 64, 48, 1, 4, 2, 1, 2)
    text = changed(problem, config, "{127 if cluster > 1 else 31}", "31")
    (said,) = said_to(text, problem, config, 2, [4])
    assert re.search(f"{TOO_MANY}|{IN_USE}", said), said
