"""The stand-in for the hardware (tests/gluon_stand_in.py) notices kernels in Gluon that would hang, or be wrong, there.

Mistakes are planted in the generated text: one of each kind that a change of the templates could make.
"""

from __future__ import annotations

import re

import pytest
from gluon_cases import assert_noticed, changed, fp16_problem, made, said_to, shared_case
from gluon_memory import LATE
from long_tests import drawn

OVERWRITTEN = "overwritten while it is in use"
NOBODY = "a barrier that nobody completes"
TOO_MANY = "an arrival too many"
# An arrival that comes too early, or twice: what is met first depends on whose turn it is.
UNORDERED = f"{OVERWRITTEN}|{NOBODY}|{TOO_MANY}"
UNFINISHED = "used before its products are done"
EARLY = "read before what it needs has arrived"
UNSEEN = "where nobody else may have seen it"
OUTSIDE = "an address outside the ring"
UNMADE = "a barrier that is not made"
OTHER_KIND = "of the other kind"
IN_L2 = "another place in L2"
TWICE = "an element of C is written twice|wrong"
# How many K-blocks the kernel begins with; how a program's next tile is found.
BEGUN = "gl.minimum(last_block - first_block, early(STAGES))"
NEXT = "            pid_m, pid_n = next_tile_of(tile, tiles_m, tiles_n, GROUP_SIZE_M)\n"
# What a text is, what it becomes, and what the stand-in says to it.
Mistakes = dict[str, tuple[str, str, str]]

MULTIPLYING: Mistakes = {
    "early release": ("% STAGES\n        released", "% STAGES * 0 + slot\n        released", UNORDERED),
    "release before the wait": ("(accs, released, 1,", "(accs, released, 2,", OVERWRITTEN),
    "early use": ("barriers + before * 8, 0, ROWS", "barriers + before * 8, 1, ROWS", f"{UNFINISHED}|{OVERWRITTEN}"),
    "no fence": ("    fence_async_shared()\n", "    pass\n", "may not see"),
    "no wait for C's buffer": ("tma.store_wait(0)\n    for", "pass\n    for", "replaced before"),
    "no wait for C": ("    tma.store_wait(0)\n\n\n@", "    pass\n\n\n@", "a store that nobody waits for"),
    "an arrival too few": ("_barriers_text(COUNT, ARRIVALS)", "_barriers_text(COUNT, ARRIVALS + 1)", NOBODY),
    "four warps arrive": ("thread, thread, 127;", "thread, thread, 31;", f"{UNORDERED}|{TOO_MANY}|{LATE}"),
    "every thread arrives": ("setp.eq.u32 arrives, thread, 0;", "setp.eq.u32 arrives, 0, 0;", UNORDERED),
    "arrives before there was a step": ("before * 8) * more", "before * 8)", UNORDERED),
    "arrives at full": ("(barriers + before * 8) * more", "(barriers + (before + STAGES) * 8) * more", OTHER_KIND),
    "no wait for a full buffer": (
        '{parity};",\n            "@!done bra again;",',
        '{parity};",',
        f"{EARLY}|{OVERWRITTEN}",
    ),
    "other parity of full": ("full, (step // STAGES) & 1", "full, (step // STAGES + 1) & 1", f"{EARLY}|{NOBODY}"),
    "columns elsewhere": ("column, {buffer}, {rows * 128}", "column, {buffer}, {rows * 64}", f"{EARLY}|wrong"),
    "K not advanced": ("{128 if columns_turned else 2}", "0", "wrong"),
    "K advanced too far": ("{128 if rows_turned else 2}", "4", "between two rows"),
    "second half elsewhere": ("s64 rows, rows, {warps * 128}", "s64 rows, rows, {warps * 64}", "wrong"),
    "second half first": ("'sub' if half else 'add'", "'add' if half else 'sub'", "more than an address"),
    "registers in another order": ("half * 4 + i}", "half * 4 + 3 - i}", "registers out of order"),
    "registers of another half": ("each + half * 4 + i}", "each + (1 - half) * 4 + i}", "wrong"),
    "no wgmma.fence": ('            "wgmma.fence.sync.aligned;",\n', "", "without a wgmma.fence"),
    "no group": ("wgmma.commit_group.sync.aligned; }", "}", f"{UNFINISHED}|{OVERWRITTEN}"),
    "sums are replaced": ("setp.eq.u32 more, 0, 0;", "setp.eq.u32 more, 1, 0;", "wrong"),
    "other swizzle": ("0x40000040", "0x80000040", "not swizzled over 128 bytes"),
    "an instruction in two lines": ("add.s64 rows, rows, {128", "add.s64 rows,\\nrows, {128", "not the whole of"),
    "C in another place": ("[first_m, first_n + PARTS", "[first_m + 1, first_n + PARTS", "wrong|written twice"),
    "a part of C twice": (
        "store_tile(c[i], [first_m, first_n + PARTS[i][1]]",
        "store_tile(c[i], [first_m, first_n]",
        "twice",
    ),
    "another part's columns": ("range(OFFSET // 8, (OFFSET + WIDTH) // 8)", "range(0, WIDTH // 8)", "wrong"),
    "neighbours exchanged": ("beside(columns[i], columns[i + 1])", "beside(columns[i + 1], columns[i])", "wrong"),
    "bias of other columns": ("first_n + OFFSET + along", "first_n + along", "wrong"),
}
LOADING: Mistakes = {
    "first K-blocks twice": (f"gl.where(is_first, {BEGUN}, 0)", "0", f"{UNORDERED}|nobody waits for"),
    "first K-blocks of every tile": (f"gl.where(is_first, {BEGUN}, 0)", BEGUN, NOBODY),
    "too few begun": (f"range({BEGUN})", f"range({BEGUN} - 1)", NOBODY),
    "too many begun": (f"range({BEGUN})", f"range({BEGUN} + 1)", UNMADE),
    "more begun than there are": ("return min(stages, 4)", "return 4", UNMADE),
    "begun of another tile": ("        tile = gl.program_id(0)\n", "        tile = 0\n", TWICE),
    "another tile begun": ("= first_tile_of(tile,", "= first_tile_of(tile + 1,", TWICE),
    "loads another first tile": ("KERNEL, BINARY, pid_m, pid_n, M", "KERNEL, BINARY, pid_n, pid_m, M", "wrong"),
    "multiplies another first tile": (
        " " * 20 + "c, tiles, pid_m, pid_n, epilogue",
        " " * 20 + "c, tiles, pid_n, pid_m, epilogue",
        TWICE,
    ),
    "loads its first tile again": (f"{NEXT}\n\n", "\n\n", "wrong"),
    "multiplies its first tile again": (f"{NEXT}            before", "            before", TWICE),
    "next tiles are this one": ("tile + gl.num_programs(0), tiles_m", "tile, tiles_m", TWICE),
    "next tiles are the next ones but one": (
        "tile + gl.num_programs(0), tiles_m",
        "tile + 2 * gl.num_programs(0), tiles_m",
        TWICE,
    ),
    "stored where the next tile is": (
        "c, epilogue, first_m, first_n, M, N, 0",
        "c, epilogue, pid_m * BLOCK_SIZE_M, first_n, M, N, 0",
        TWICE,
    ),
    "begun by every warp": ("setp.ne.u32 one, warp, 0;", "setp.ne.u32 one, warp, warp;", r"by \d threads"),
    "begun by another warp": ("setp.ne.u32 one, warp, 0;", "setp.ne.u32 one, warp, 32;", UNSEEN),
    "every thread copies": (
        'chosen, tried = ["elect.sync _|one, -1;"]',
        'chosen, tried = ["setp.eq.u32 one, 0, 0;"]',
        "by 32 threads",
    ),
    "no wait for an empty buffer": (
        '            "@!done bra again;",\n            "@!one',
        '            "@!one',
        f"{OVERWRITTEN}|{TOO_MANY}",
    ),
    "waits for the buffer before": ("last = step | (TOGETHER - 1)", "last = step - 1", f"{UNORDERED}|{LATE}"),
    "other parity of empty": ("& 1) ^ 1, ", "& 1), ", f"{UNORDERED}|{LATE}"),
    "more bytes than come": (
        "_, [{full}], {expected};",
        "_, [{full}], {2 * expected};",
        NOBODY,
    ),
    "fewer bytes than come": ("_, [{full}], {expected};", "_, [{full}], 3072;", f"{EARLY}|{UNORDERED}"),
    "columns where rows are": ("add.u32 place, {buffer}, {rows * 128};", "add.u32 place, {buffer}, 0;", OVERWRITTEN),
    "all columns in one place": ("add.u32 place, place, {size * 128};", "add.u32 place, place, 0;", OVERWRITTEN),
    "the same columns again": ("add.u32 line, line, {size};", "add.u32 line, line, 0;", "wrong"),
    "rows and K exchanged": ('f"{k}, {row}"', 'f"{row}, {k}"', "wrong"),
    "copies of the next K-block": ("block * 64, first_row", "block * 64 + 64, first_row", "wrong"),
    "descriptors mixed up": (
        "_parameter_text(KERNEL, BINARY, 5 * i)",
        "_parameter_text(KERNEL, BINARY, 5 * (i // 2))",
        f"{IN_L2}|{EARLY}|{NOBODY}|{OVERWRITTEN}",
    ),
    "no descriptor": (
        "_parameter_text(KERNEL, BINARY, 5 * i)",
        "_parameter_text(KERNEL, BINARY, 4 * i)",
        "no descriptor",
    ),
    "something else is asked for": ("_param_{5 * i};", "_param_{5 * i + 1};", "no descriptor"),
    "asked for as a parameter": (' "cvta.param.u64 at, at;",', "", "no space is named"),
    "four warps load": ("[1],\n        [32]", "[4],\n        [32]", "by 4 threads"),
    "no hint for L2": ("hints[1 if swapped else 0]", "hints[1]", IN_L2),
    "no policy": ('        "mov.b64 once, 0x12F0000000000000;",\n', "", "once is used before it is written"),
    "evict_last": ("0x12F0000000000000", "0x14F0000000000000", IN_L2),
}
MAKING: Mistakes = {
    "no barriers": ("    make_barriers(barriers, STAGES, WARPS // 4)\n", "", UNMADE),
    "no full barriers": ("    make_barriers(barriers + STAGES * 8, STAGES, 1)\n", "", UNMADE),
    "a barrier too few": ("for number in range(count)", "for number in range(count - 1)", UNMADE),
    "copies may not know": ('            "fence.mbarrier_init.release.cluster;",\n', "", UNSEEN),
    "made by a warp": ('"@!idle bra made;",', "", "by 32 threads"),
    "no room for barriers": ("// 1024) + 1\n", "// 1024)\n", OUTSIDE),
    "not kept": ("    memory._keep_alive()", "    pass", "for something else"),
}
MISTAKES = MULTIPLYING | LOADING | MAKING


@pytest.mark.parametrize("mistake", drawn([*MISTAKES], 24))
def test_the_stand_in_notices(mistake: str) -> None:
    """A kernel with a mistake does not pass, whichever program and warpgroup runs first: two halves, three boxes."""
    problem, config = fp16_problem(130, 136, 456, bias=True), made("warp_specialized", 128, 112, 1, 4, 3)
    assert_noticed(MISTAKES[mistake], problem, config, 2, 4)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("shl.b32 row, row, 13;", "shl.b32 row, row, 12;", "between two rows|wrong"),
        ("make_barriers(barriers, STAGES, WARPS // 4)", "make_barriers(barriers, STAGES, 1)", UNORDERED),
        ("tile.permute((1, 0))", "tile", "another shape"),
    ],
    ids=["second warpgroup", "one warpgroup's arrivals", "not swapped"],
)
def test_the_stand_in_notices_what_several_rows_need(before: str, after: str, message: str) -> None:
    """The same for two warpgroups and C's transpose."""
    problem, config = fp16_problem(130, 72, 456, bias=True), made("warp_specialized_swapped", 128, 24, 1, 8, 3)
    (said,) = said_to(changed(problem, config, before, after), problem, config, 2, [8])
    assert re.search(message, said), said


FIRST_TILE: Mistakes = {
    "rows as if there were one": ("    if tiles_m > 1:\n", "    if tiles_m > 2:\n", TWICE),
    "everyone's the first": ("    pid_n = tile\n    if", "    pid_n = tile * 0\n    if", TWICE),
}


@pytest.mark.parametrize("mistake", FIRST_TILE)
def test_the_stand_in_notices_another_first_tile(mistake: str) -> None:
    """Mistakes in which tile the first copies are of, which is found faster where tiles lie in one row."""
    config = made("warp_specialized", 128, 112, 1, 4, 3, group=2)
    problem = fp16_problem({"rows as if there were one": 130}.get(mistake, 100), 136, 456)
    assert_noticed(FIRST_TILE[mistake], problem, config, 2, 4)


@pytest.mark.parametrize("together", [2, 4])
def test_the_stand_in_notices_a_wait_for_the_first_of_several(together: int) -> None:
    """Of the buffers that are filled together the last is waited for; the first is free before the others."""
    config = made("warp_specialized", 64, 48, 1, 4, 2, together=together)
    problem = fp16_problem(40, 56, 64 * 5 * together)
    text = changed(problem, config, "last = step | (TOGETHER - 1)", "last = step & -TOGETHER")
    (said,) = said_to(text, problem, config, 1, [0])
    assert re.search(f"{OVERWRITTEN}|{LATE}", said), said


SHARES: Mistakes = {
    "no thread barrier": ("    thread_barrier()\n", "    pass\n", "before every thread"),
    "not taken back": ("ready_ptr + other, 1, 0, sem", "ready_ptr + other, 1, 1, sem", "next call"),
    "from L1": (', cache_modifier=".cg"', "", "what L1 has"),
    "one missing": ("range(first_other,", "range(first_other + 1,", "wrong"),
    "arrives": ("(barriers + before * 8) * some", "barriers + before * 8", f"{EARLY}|{UNORDERED}"),
    "said of nothing": ("if (turn == 0) & (last_block > first_block)", "if turn == 0", "said again|next call"),
    "always begun": (f"gl.where(is_first, {BEGUN}, 0)", BEGUN, UNORDERED),
    "loads its first tile again": ("if turn > first_turn:", "if turn > turns:", "wrong"),
    "begun in the first turn": ("turn == first_turn", "turn == 0", f"{UNORDERED}|nobody waits for"),
    "another K-block begun": ("(first_block + slot) * 64", "slot * 64", "wrong"),
}


@pytest.mark.parametrize("mistake", drawn([*SHARES], 4))
def test_the_stand_in_notices_in_shares(mistake: str) -> None:
    """The same for mistakes in how programs share the tiles beyond the last full wave."""
    problem, config = shared_case("warp_specialized")
    assert_noticed(SHARES[mistake], problem, config, 5, 0)


CLUSTER: Mistakes = {
    "not met": ("    meet_cluster()\n    rank", "    rank", "before all have met"),
    "helpers do not come": ("    arrive_at_cluster()\n    first_row", "    first_row", "without arriving"),
    "no barrier for sums": ("    expect_sums(barriers + STAGES * 16,", "    (barriers + STAGES * 16,", UNMADE),
    "sums before they come": ('        received.append("@!done bra receive;")\n', "", EARLY),
    "sees only its own": ("try_wait.parity.acquire.cluster.shared", "try_wait.parity.shared", EARLY),
    "more bytes than come": ("(CLUSTER - 1) * ROWS * 32)", "(CLUSTER - 1) * ROWS * 64)", NOBODY),
    "landing on another": ("[there+{place * warps * 512}]", "[there+2048]", f"{OVERWRITTEN}|{EARLY}"),
    "landing on barriers": ("barriers + 1024,", "barriers,", "barriers are overwritten"),
    "no room for sums": ("* LARGEST * 32 + 1023) // 1024", "* LARGEST * 0 + 1023) // 1024", OUTSIDE),
    "sent to oneself": ("there, place, {other};", "there, place, {rank};", "sends to itself"),
    "all are the first": ("rank = cluster_rank()\n    for", "rank = 0\n    for", f"sends to itself|{OVERWRITTEN}"),
    "threads overlap": ("mad.lo.u32 place, place, 16,", "mad.lo.u32 place, place, 8,", "not side by side"),
    "registers of another": ('f"${first + i}" for i in', 'f"${first + 3 - i}" for i in', "wrong"),
    "a share twice": ("return rank * blocks //", "return 0 * blocks //", f"wrong|{UNORDERED}"),
    "goes on with another's": ("(first_block + step) * 64", "step * 64", "wrong"),
    "begun twice": (
        "for step in range(gl.minimum(last_block - first_block, STAGES), ",
        "for step in range(0, ",
        f"{UNORDERED}|{LATE}",
    ),
    "each helping warp copies": ('            "and.pred one, one, done;",\n', "", "by 4 threads"),
    "rank in descriptors": ('["and.b32 row, row, 0x3fff;"] * (cluster > 1)', "[]", "more than an address"),
}


@pytest.mark.parametrize("mistake", drawn([*CLUSTER], 6))
def test_the_stand_in_notices_in_clusters(mistake: str) -> None:
    """Mistakes in what goes from one program of a cluster to another; the first of four programs owns nothing."""
    config = made("warp_specialized_swapped_cluster4", 64, 24, 1, 4, 3)
    problem = fp16_problem(20, 56, 64 * 5 * 4)
    assert_noticed(CLUSTER[mistake], problem, config, 8, 0)


TURNED: Mistakes = {
    "the same 64 again": ("add.u32 line, line, {size};", "add.u32 line, line, 0;", "wrong"),
    "K where rows are": ('f"line, {k}" if is_turned', 'f"{k}, line" if is_turned', "wrong"),
    "boxes as if along K": ('f"line, {k}" if is_turned else', "", "wrong"),
    "rows as if along K": ("{128 if rows_turned else 2}", "2", "between two blocks"),
    "columns as if along K": ("{128 if columns_turned else 2}", "2", "between two blocks"),
    "K advanced too far": (
        "{128 if columns_turned else 2}",
        "{256 if columns_turned else 2}",
        f"{OUTSIDE}|{EARLY}|wrong",
    ),
    "no stride between columns": ("'0x2000000' if columns_turned else '0x10000'", "'0x10000'", "its stride"),
    "rows not turned": ("{int(rows_turned)}, ", "0, ", "wrong|between two rows"),
    "columns not turned": (", {int(columns_turned)}", ", 0", "wrong|between two rows|its stride"),
    "room for the width only": (
        "return (width + 63) // 64 * 64 if turned(swapped)[1] else width",
        "return width",
        ".*",
    ),
}


@pytest.mark.parametrize("mistake", TURNED)
def test_the_stand_in_notices_in_turned_operands(mistake: str) -> None:
    """The same for operands that run along their rows and columns: two boxes of 64 for each, the last not whole."""
    problem = fp16_problem(136, 136, 456, row_major_a=False, row_major_b=True)
    config = made("warp_specialized", 128, 112, 1, 4, 3)
    assert_noticed(TURNED[mistake], problem, config, 2, 4)


SIDE_BY_SIDE: Mistakes = {
    "helpers do not come": (
        "    arrive_at_cluster()\n    # Barriers",
        "    # Barriers",
        "without arriving|before all have met",
    ),
    "loads without having met": ("    meet_cluster()\n    _, _, tiles", "    _, _, tiles", "before all have met"),
    "multiplies without having met": (
        "    meet_cluster()\n    _, _, numbers",
        "    _, _, numbers",
        "before all have met",
    ),
    "does not come": (
        "reach is there.\n    arrive_at_cluster()\n",
        "reach is there.\n",
        "without arriving|where nobody else may have seen it",
    ),
    "nobody else's arrivals": ("STAGES, WARPS // 2)", "STAGES, WARPS // 4)", f"{UNORDERED}|{LATE}"),
    "arrivals of too many": ("STAGES, WARPS // 2)", "STAGES, WARPS // 2 + 1)", NOBODY),
    "arrives at its own only": (
        "setp.lt.u32 arrives, thread, 2;",
        "setp.lt.u32 arrives, thread, 1;",
        f"{NOBODY}|{TOO_MANY}",
    ),
    "arrives at the first twice": ("{released}, thread;", "{released}, 0;", f"{UNORDERED}|{LATE}"),
    "columns for itself": ("mov.u16 both, 3;", "mov.u16 both, 1;", f"{NOBODY}|{UNORDERED}"),
    "a program that is not there": ("mov.u16 both, 3;", "mov.u16 both, 7;", "that are not there"),
    "rows for both": (
        "row_boxes, rows_turned, across > 1",
        "row_boxes, rows_turned, True",
        f"{OVERWRITTEN}|{UNORDERED}|wrong",
    ),
    "everyone's first half": (
        "column = rank % DOWN * (columns_held",
        "column = 0 * (columns_held",
        f"{OVERWRITTEN}|{EARLY}",
    ),
    "the same columns again": ("first_n) + column", "first_n)", "wrong"),
    "everyone's tile the first": ("    down = rank % DOWN\n", "    down = 0\n", "twice|wrong"),
    "ends too early": (
        "    for _ in range(STAGES):\n        await_empty",
        "    for _ in range(0):\n        await_empty",
        "has ended",
    ),
    "rank in descriptors": ('["and.b32 row, row, 0x3fff;"] * (cluster > 1)', "[]", "more than an address"),
    "other parity of empty": (
        "slot * 8, ((step // STAGES) & 1) ^ 1,",
        "slot * 8, (step // STAGES) & 1,",
        f"{UNORDERED}|{LATE}",
    ),
    "each helping warp copies": ('            "and.pred one, one, done;",\n', "", "by 4 threads"),
    "first K-blocks twice": (
        "gl.where(tile == first_tile, begun, 0)",
        "0",
        f"{UNORDERED}|{LATE}|nobody waits for",
    ),
    "begun for one half": ("swapped) * down\n", "swapped) * 1\n", NOBODY),
}


@pytest.mark.parametrize("mistake", drawn([*SIDE_BY_SIDE], 6))
def test_the_stand_in_notices_side_by_side(mistake: str) -> None:
    """Mistakes in what programs with tiles side by side load for one another."""
    before, after, message = SIDE_BY_SIDE[mistake]
    problem, config = fp16_problem(200, 136, 456), made("warp_specialized_2x1", 64, 48, 1, 4, 3)
    found = said_to(changed(problem, config, before, after), problem, config, 4, range(4))
    assert found
    assert all(re.search(message, said) for said in found), found


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("            tma.store_wait(1)\n", "            pass\n", "replaced before"),
        ("            tma.store_wait(1)\n", "            tma.store_wait(2)\n", "replaced before"),
        ("        fence_async_shared()\n        if SWAPPED", "        if SWAPPED", "may not see"),
        ("tiles + (tiles[i - 2],)", "tiles + (tiles[i - 1],)", "replaced before"),
    ],
    ids=["no wait", "a wait for too few", "no fence", "one buffer of two"],
)
def test_the_stand_in_notices_in_parts_that_take_turns(before: str, after: str, message: str) -> None:
    """Mistakes where C is stored in parts, for which two buffers take turns."""
    problem, config = fp16_problem(256, 256, 200), made("warp_specialized_2x1", 128, 256, 1, 8, 4)
    assert_noticed((before, after, message), problem, config, 2, 0)
