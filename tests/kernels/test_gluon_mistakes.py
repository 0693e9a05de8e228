"""The stand-in for the hardware (tests/gluon_stand_in.py) notices kernels in Gluon that would hang, or be wrong, there.

Mistakes are planted in the generated text. Each is one that tests/kernels/test_gluon_numerics.py could not pass.
"""

from __future__ import annotations

import re

import pytest
from gluon_cases import SHARING, fp16_problem, made, shared_case
from gluon_memory import LATE
from gluon_mistakes import (
    EARLY,
    IN_L2,
    NOBODY,
    OTHER_KIND,
    OUTSIDE,
    OVERWRITTEN,
    TOO_MANY,
    UNFINISHED,
    UNMADE,
    UNORDERED,
    UNSEEN,
    Mistakes,
    changed,
    said_to,
)

from genkern.gemm.config import Config
from genkern.kernels.family import FAMILIES, GLUON

MULTIPLYING: Mistakes = {
    "early release": (r"before = \(step \+.*(\s+released = .*\* more)", r"before = slot\1", UNORDERED),
    "release before the wait": (r"wait_group.sync.aligned 1;", "wait_group.sync.aligned 2;", OVERWRITTEN),
    "early use": (r"wait_group.sync.aligned 0;", "wait_group.sync.aligned 1;", f"{UNFINISHED}|{OVERWRITTEN}"),
    "no fence": (r"fence_async_shared\(\)\n", "pass\n", "may not see"),
    "no wait for C's buffer": (r"(# The copy engine has read.*\n +)tma.store_wait\(0\)", r"\1pass", "replaced before"),
    "no wait for C": (r"\n    tma.store_wait\(0\)\n\n", "\n    pass\n\n", "a store that nobody waits for"),
    "an arrival too few": (r"_barriers_text\(STAGES, ARRIVALS", "_barriers_text(STAGES, ARRIVALS + 1", NOBODY),
    "one warp of four arrives": (r"and.b32 thread, thread, 31;", "and.b32 thread, thread, 127;", NOBODY),
    "nobody arrives": (r"\) \* more\n", ") * 0\n", NOBODY),
    "every thread arrives": ("setp.eq.u32 arrives, thread, 0;", "setp.eq.u32 arrives, 0, 0;", UNORDERED),
    "arrives before there was a step": (r"\) \* more\n", ")\n", UNORDERED),
    "arrives at full": (r"\+ before \* 8\)", "+ (before + STAGES) * 8)", OTHER_KIND),
    "no wait for a full buffer": (r"(done, \[\$\d\d+\], .*\n +)@!done bra again;", r"\1", f"{EARLY}|{OVERWRITTEN}"),
    "other parity of full": (r"full, \(step // STAGES\)", "full, (step // STAGES + 1)", f"{EARLY}|{NOBODY}"),
    "another buffer's barrier": (r"full = barriers \+ \(STAGES \+ slot\)", "full = barriers + STAGES", EARLY),
    "columns elsewhere": (r"(add.u32 column, \$\d+, \d+)", r"\g<1>0", f"{EARLY}|{OUTSIDE}|wrong"),
    "K not advanced": (r"add.s64 columns, columns, 2;", "add.s64 columns, columns, 0;", "wrong"),
    "K advanced too far": (r"add.s64 rows, rows, 2;", "add.s64 rows, rows, 4;", "between two rows"),
    "registers in another order": (r"\{\$0, \$1,", "{$1, $0,", "registers out of order"),
    "registers of another chunk": (r"\{(\$0, \$1, \$2, \$3), (\$\d+, \$\d+, \$\d+, \$\d+)", r"{\2, \1", "wrong"),
    "no wgmma.fence": (r"wgmma.fence.sync.aligned;", "// none", "without a wgmma.fence"),
    "no group": (r"wgmma.commit_group.sync.aligned;", "// none", f"{UNFINISHED}|{OVERWRITTEN}"),
    "sums are replaced": (r"setp.eq.u32 more, 0, 0;", "setp.eq.u32 more, 1, 0;", "replace an accumulator"),
    "other swizzle": (r"0x40000040", "0x80000040", "not swizzled over 128 bytes"),
    "other blocks": (r"0x40000040", "0x40000080", "not 1024 bytes apart"),
    "other lower half": (r"or.b32 row, row, 0x10000;", "or.b32 row, row, 0x20000;", "more than an address"),
    "an instruction in two lines": (r"add.s64 rows, rows, 2;", "add.s64 rows,\nrows, 2;", "not the whole of"),
    "C in another place": (r"store_tile\(c_0, \[first_m", "store_tile(c_0, [first_m + 1", "wrong|written twice"),
    "a part of C twice": (r"store_tile\(c_1, .*\)", "store_tile(c_0, [first_m, first_n], tile_0)", "written twice"),
}  # fmt: skip
# In `_begin` what comes before the thread is chosen, and a thread that elect.sync does not choose here; in `_fill` what
# comes then.
BEGUN_BY = r"(@one bra filled;\n +)"
FIRST_OF_ALL = "mov.u32 line, %tid.x; setp.eq.u32 one, line, 0;"
FILLING = r"(\n +again:)"
LOADING: Mistakes = {
    "first K-blocks twice": (r"gl.where\(tile == gl.program_id\(0\), begun, 0\)", "0", f"{UNORDERED}|nobody waits for"),
    "first buffers twice": (r"step = begun\n", "step = 0\n", UNORDERED),
    "too few begun": (r"last_block - first_block, STAGES\)\)", "last_block - first_block, STAGES - 1))", NOBODY),
    "too many begun": (r"last_block - first_block, STAGES\)\)", "last_block - first_block, STAGES + 1))", UNMADE),
    "begun for every tile": (r"gl.where\(tile == gl.program_id\(0\), begun, 0\)", "begun", NOBODY),
    "begun of another tile": (r"    tile = gl.program_id\(0\)\n", "    tile = 0\n", "wrong"),
    "begun by another thread": (rf"{BEGUN_BY}elect.sync _\|one, -1;", rf"\1{FIRST_OF_ALL}", UNSEEN),
    "begun by another warp": (r"setp.ne.u32 one, warp, 0;", "setp.ne.u32 one, warp, 32;", UNSEEN),
    "begun by every warp": (r"setp.ne.u32 one, warp, 0;", "setp.ne.u32 one, warp, warp;", r"by \d threads"),
    "begun by all of a warp": (rf"{BEGUN_BY}elect.sync _\|one, -1;", r"\1setp.eq.u32 one, 0, 0;", "by 32 threads"),
    "elects those gone": (r"shfl.sync.idx.b32 warp, .*\n", "\n", "by a part of a warp"),
    "begun where another is": (r"ring \+ slot \* (\d+), \(first_block", r"ring + \1, (first_block", OVERWRITTEN),
    "one thread waits": (r"(mbarrier.try_wait\S+ done, \[\$1\], \$2;)", r"@one \1", "before it is written"),
    "no wait for an empty buffer": (r"(done, \[\$1\], \$2;\n +)@!done bra again;", r"\1", f"{OVERWRITTEN}|{TOO_MANY}"),
    "waits for the buffer before": (r"last = step \|.*", "last = step - 1", f"{OVERWRITTEN}|{UNORDERED}|{LATE}"),
    "other parity of empty": (r"& 1\) \^ 1, ", "& 1), ", f"{UNORDERED}|{LATE}"),
    "more bytes than come": (r"(expect_tx.shared::cta.b64 _, \[\$[13]\], )(\d+)", r"\g<1>1\2", NOBODY),
    "fewer bytes than come": (r"(expect_tx.shared::cta.b64 _, \[\$[13]\], )\d+", r"\g<1>3072", f"{EARLY}|{UNORDERED}"),
    "no bytes": (r"(expect_tx.shared::cta.b64 _, \[\$[13]\], )(\d+)", r"\g<1>0", OTHER_KIND),
    "expects elsewhere": (r"(expect_tx.shared::cta.b64 _, )\[\$3\]", r"\1[$1]", f"{OTHER_KIND}|{NOBODY}"),
    "says it elsewhere": (r"\{\$5, \$6\}\], \[\$3\]", "{$5, $6}], [$1]", f"{OTHER_KIND}|{NOBODY}"),
    "begins to say it elsewhere": (r"\{\$3, \$4\}\], \[\$1\]", "{$3, $4}], [$1+8]", f"{UNMADE}|{NOBODY}|{EARLY}"),
    "columns where rows are": (r"add.u32 place, (\$[24]), \d+;", r"add.u32 place, \1, 0;", OVERWRITTEN),
    "all columns in one place": (r"add.u32 place, place, \d+;", "add.u32 place, place, 0;", OVERWRITTEN),
    "the same columns again": (r"add.u32 line, line, \d+;", "add.u32 line, line, 0;", "wrong"),
    "rows and K exchanged": (r"\{\$5, \$6\}", "{$6, $5}", "wrong"),
    "begins with rows and K exchanged": (r"\{\$3, \$4\}", "{$4, $3}", "wrong"),
    "copies of the next K-block": (r"block \* 64, first_row", "block * 64 + 64, first_row", "wrong"),
    "begins the next K-block": (r"\(first_block \+ slot\) \* 64", "(first_block + slot + 1) * 64", "wrong"),
    "descriptors mixed up": (r"BINARY, 5\)", "BINARY, 0)", IN_L2),
    "columns mixed up": (r"BINARY, 10\)", "BINARY, 5)", f"{OVERWRITTEN}|{NOBODY}|{EARLY}|barriers are overwritten"),
    "a descriptor of C": (r"BINARY, 5\)", "BINARY, 15)", f"{OVERWRITTEN}|128 bytes|{NOBODY}|{EARLY}"),
    "no descriptor": (r"BINARY, 5\)", "BINARY, 6)", "a parameter that is no descriptor"),
    "every thread copies": (rf"elect.sync _\|one, -1;{FILLING}", r"setp.eq.u32 one, 0, 0;\1", "by 32 threads"),
    "four warps load": (r"\[1(\],\n +\[32\])", r"[4\1", "by 4 threads"),
    "nobody copies": (r"@!one bra filled;", "bra filled;", NOBODY),
    "waits for ever": (r"(done, \[\$1\], \$2;\n +)@!done bra", r"\1bra", f"does not end|{NOBODY}|{LATE}"),
}  # fmt: skip
MAKING: Mistakes = {
    "no barriers": (r"    make_barriers\(.*\)\n", "", UNMADE),
    "a barrier too few": (r"1;\" for slot in range\(stages\)", '1;" for slot in range(stages - 1)', UNMADE),
    "a barrier twice": (r"\(stages \+ slot\)", "(stages + slot // 2)", "made twice"),
    "made by another thread": (
        r"elect.sync _\|idle, -1;",
        "mov.u32 thread, %tid.x; setp.eq.u32 idle, thread, 0;",
        UNSEEN,
    ),
    "made by another warp": (r"setp.ne.u32 idle, thread, 0;", "setp.ne.u32 idle, thread, 64;", UNSEEN),
    "copies may not know": (r'            "fence.mbarrier_init.release.cluster;",\n', "", UNSEEN),
    "made by a warp": (r'"@!idle bra made;",', "", "by 32 threads"),
    "made by every warp": (r'"@idle bra made;",', "", r"by \d threads"),
    "made where buffers are": (r"barriers = ring \+ STAGES", "barriers = ring + (STAGES - 1)", "overwritten"),
    "no room for barriers": (r"(\[STAGES \* \d+) \+ 1,", r"\1,", OUTSIDE),
    "not kept": (r"    memory._keep_alive\(\)", "    pass", "for something else"),
    "kept until warps part": (r"(    gl.warp_spec[^$]*)(    memory.*)", r"\2\n\1", "only until the warps part"),
}  # fmt: skip
MISTAKES = MULTIPLYING | LOADING | MAKING
ROUNDED = made("warp_specialized", 128, 48, 1, 4, 3), made("warp_specialized_swapped", 128, 24, 1, 8, 3)
# A copy without a hint for L2, and one with it.
PLAIN, HINTED = r"::bytes( [^;]*\]);", r"::bytes\.L2::cache_hint( [^;]*\]), once;"
WITH_HINT = r"::bytes.L2::cache_hint\1, once;"
POLICY = r"(            mov.b64 once, .*\n)"
# What is said of hints, and what is changed, one after the other.
HINTS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "no hint": (IN_L2, [(HINTED, r"::bytes\1;")]),
    "all have one": (IN_L2, [(PLAIN, WITH_HINT)]),
    "the others have one": (IN_L2, [(HINTED, r"::once\1;"), (PLAIN, WITH_HINT), ("::once", "::bytes")]),
    "no policy": ("once is used before it is written", [(POLICY, "")]),
    "a policy after its use": (
        "once is used before it is written",
        [(rf"{POLICY}([\s\S]*?)( +filled:)", r"\2\1\3")],
    ),
    "a policy that no copy takes": ("a hint without a policy", [(r"\.L2::cache_hint", "")]),
    "a hint without a policy": ("a hint without a policy", [(r", once;", ";")]),
    "evict_last": (IN_L2, [("0x12F0000000000000", "0x14F0000000000000")]),
    "half a policy": (IN_L2, [("0x12F0000000000000", "0x12F00000")]),
}


@pytest.mark.parametrize("config", ROUNDED, ids=lambda config: config.family)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_stand_in_notices(mistake: str, config: Config) -> None:
    """A kernel with a mistake does not pass here, whichever program and warpgroup runs first."""
    notices(*MISTAKES[mistake], config)


@pytest.mark.parametrize("family", GLUON)
@pytest.mark.parametrize("mistake", HINTS)
def test_the_stand_in_notices_hints_for_l2(mistake: str, family: str) -> None:
    """Copies of the weights, and no others, say that L2 may forget them first, by a policy that was made before."""
    message, changes = HINTS[mistake]
    problem, config = fp16_problem(20, 60, 64 * 3), made(family, 64, 48, 1, 4, 3)
    (said,) = said_to(changed(problem, config, *changes), problem, config, 1, [0])
    assert re.search(message, said), said


def notices(pattern: str, replacement: str, message: str, config: Config, k: int = 700) -> None:
    """Assert that the stand-in says `message` to a kernel that is right but for this replacement in its text."""
    problem = fp16_problem(130, 70, k)
    text = changed(problem, config, (pattern, replacement))
    (said,) = said_to(text, problem, config, 2, [config.num_warps])
    assert re.search(message, said), said


@pytest.mark.parametrize(
    ("config", "pattern", "replacement", "message"),
    [
        (ROUNDED[0], r"(add|sub).s64 rows, rows, 512;", r"\1.s64 rows, rows, 256;", "wrong"),
        (ROUNDED[0], r"sub.s64 rows, rows, 512;", "// none", f"{EARLY}|wrong"),
        (ROUNDED[1], r"shl.b32 row, row, 13;", "shl.b32 row, row, 12;", "between two rows|wrong"),
        (ROUNDED[1], r"make_barriers\(barriers, STAGES, 8", "make_barriers(barriers, STAGES, 4", UNORDERED),
        (ROUNDED[1], r"and.b32 thread, thread, 31;", "and.b32 thread, thread, 255;", NOBODY),
        (ROUNDED[1], r"tile_0.permute\(\(1, 0\)\)", "tile_0", "another shape"),
    ],
    ids=["second half", "not back", "second warpgroup", "one warpgroup's arrivals", "first warp only", "not swapped"],
)
def test_the_stand_in_notices_what_several_rows_need(
    config: Config, pattern: str, replacement: str, message: str
) -> None:
    """The same for mistakes in what two warpgroups, two halves of 64 rows, or C's transpose need."""
    notices(pattern, replacement, message, config)


@pytest.mark.parametrize("together", [2, 4])
@pytest.mark.parametrize("family", GLUON)
def test_the_stand_in_notices_a_wait_for_the_first_of_several(family: str, together: int) -> None:
    """Of the buffers that are filled together the last is waited for; the first is free before the others."""
    config = made(family, 64, 48, 1, 4, 2, together=together)
    problem = fp16_problem(40, 60, 64 * 5 * together * FAMILIES[family].cluster)
    text = changed(problem, config, (r"last = step \| \(TOGETHER - 1\)", "last = step & -TOGETHER"))
    (said,) = said_to(text, problem, config, 1, [0])
    assert re.search(f"{OVERWRITTEN}|{LATE}", said), said


@pytest.mark.parametrize("config", ROUNDED, ids=lambda config: config.family)
def test_the_stand_in_notices_copies_of_nothing(config: Config) -> None:
    """K shorter than the ring: copies beyond it fill buffers that nobody multiplies."""
    pattern = r"range\(gl.minimum\(last_block - first_block, STAGES\)\)"
    notices(pattern, "range(STAGES)", f"{OVERWRITTEN}|a copy that nobody waits for", config, k=100)


@pytest.mark.parametrize("config", ROUNDED, ids=lambda config: config.family)
def test_one_warp_may_not_release_what_others_read(config: Config) -> None:
    """One of the four warps of a group does not know what the others have multiplied, nor that they saw it full."""
    problem = fp16_problem(130, 70, 700)
    text = changed(
        problem,
        config,
        (r"(make_barriers\(barriers, STAGES, )\d", rf"\g<1>{config.num_warps // 4}"),
        (r"and.b32 thread, thread, 31;(\s+setp.eq.u32 arrives)", r"and.b32 thread, thread, 127;\1"),
    )
    found = said_to(text, problem, config, 2, range(3))
    assert len(found) == 3
    assert all(re.search(f"{OVERWRITTEN}|{LATE}", said) for said in found), found


@pytest.mark.parametrize("config", ROUNDED, ids=lambda config: config.family)
def test_the_loading_warp_may_be_any_behind_the_others(config: Config) -> None:
    """Of the four warps that come behind those that multiply, Triton takes one; which, a kernel cannot know."""
    problem = fp16_problem(130, 70, 700)
    # A thread copies only if it is of the first warp behind the others.
    first = (
        f"elect.sync _|one, -1; mov.u32 line, %tid.x; setp.lt.u32 done, line, {config.num_warps * 32 + 32};"
        r" and.pred one, one, done;\1"
    )
    text = changed(problem, config, (rf"elect.sync _\|one, -1;{FILLING}", first))
    found = said_to(text, problem, config, 1, range(12))
    assert found == [NOBODY] * len(found)
    assert 3 <= len(found) < 12


@pytest.mark.parametrize("family", SHARING)
@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"(said|says so.\n +)thread_barrier\(\)\n", r"\1pass\n", "before every thread"),
        (r"\+ other, 1, 0, sem", "+ other, 1, 1, sem", "next call"),
        (r', cache_modifier=".cg"', "", "what L1 has"),
        (r"range\(first_other,", "range(first_other + 1,", "wrong"),
        (r"for other in range\(.*\)", "for other in range(0)", "wrong"),
        (r"\) \* some\n", ")\n", f"{EARLY}|{UNORDERED}"),
        (r"if \(turn == 0\) & \(last_block > first_block\)", "if turn == 0", "said again|next call"),
        (r"gl.where\(turn == first_turn, begun, 0\)", "begun", NOBODY),
        (r"gl.where\(turn == first_turn, begun, 0\)", "0", f"{UNORDERED}|nobody waits for"),
        (r"turn == first_turn", "turn == 0", f"{UNORDERED}|nobody waits for"),
        (r"\(first_block \+ slot\) \* 64", "slot * 64", "wrong"),
    ],
    ids=[
        *("no thread barrier", "not taken back", "from L1", "one missing", "all missing", "arrives", "said of nothing"),
        *("always begun", "never begun", "begun in the first turn", "another K-block begun"),
    ],
)
def test_the_stand_in_notices_in_shares(family: str, pattern: str, replacement: str, message: str) -> None:
    """The same for mistakes in how programs share the tiles beyond the last full wave."""
    problem, config = shared_case(family)
    text = changed(problem, config, (pattern, replacement))
    (said,) = said_to(text, problem, config, 5, [0])
    assert re.search(message, said), said
