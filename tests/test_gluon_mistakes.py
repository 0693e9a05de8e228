"""The stand-in for the hardware (tests/gluon_stand_in.py) notices kernels in Gluon that would hang, or be wrong, there.

Mistakes are planted in the generated text. Each is one that tests/test_gluon_numerics.py could not pass.
"""

from __future__ import annotations

import ast
import re

import pytest
from gluon_cases import CLUSTERS, SHARING, assert_exact, fp16_problem, made, product, shared_case, text_of

from genkern.config import Config
from genkern.family import FAMILIES

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
# What is changed in a kernel's text, into what, and what the stand-in says to it.
Mistakes = dict[str, tuple[str, str, str]]
MULTIPLYING: Mistakes = {
    "early release": (r"before = \(step \+.*(\s+released = .*\* more)", r"before = slot\1", UNORDERED),
    "release before the wait": (r"wait_group.sync.aligned 1;", "wait_group.sync.aligned 2;", OVERWRITTEN),
    "early use": (r"wait_group.sync.aligned 0;", "wait_group.sync.aligned 1;", f"{UNFINISHED}|{OVERWRITTEN}"),
    "no fence": (r"fence_async_shared\(\)\n", "pass\n", "may not see"),
    "no wait for C's buffer": (r"(# The copy engine has read.*\n +)tma.store_wait\(0\)", r"\1pass", "replaced before"),
    "no wait for C": (r"\n    tma.store_wait\(0\)\n\n", "\n    pass\n\n", "a store that nobody waits for"),
    "an arrival too few": (r"_barriers_text\(STAGES, ARRIVALS\)", "_barriers_text(STAGES, ARRIVALS + 1)", NOBODY),
    "nobody arrives": (r"\) \* more\n", ") * 0\n", NOBODY),
    "every thread arrives": ("setp.eq.u32 arrives, thread, 0;", "setp.eq.u32 arrives, 0, 0;", UNORDERED),
    "arrives before there was a step": (r"\) \* more\n", ")\n", UNORDERED),
    "arrives at full": (r"\+ before \* 8\)", "+ (before + STAGES) * 8)", "of the other kind"),
    "no wait for a full buffer": (r"(done, \[\$\d\d+\], .*\n +)@!done bra again;", r"\1", f"{EARLY}|{OVERWRITTEN}"),
    "other parity of full": (r"full, \(step // STAGES\)", "full, (step // STAGES + 1)", f"{EARLY}|{NOBODY}"),
    "another buffer's barrier": (r"full = ring \+ \(STAGES \* (.*) \+ slot\)", r"full = ring + (STAGES * \1)", EARLY),
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
LOADING: Mistakes = {
    "first K-blocks twice": (r"gl.where\(tile == gl.program_id\(0\), begun, 0\)", "0", f"{UNORDERED}|nobody waits for"),
    "first buffers twice": (r"step = begun\n", "step = 0\n", UNORDERED),
    "too few begun": (r"last_block - first_block, STAGES\)\)", "last_block - first_block, STAGES - 1))", NOBODY),
    "too many begun": (r"last_block - first_block, STAGES\)\)", "last_block - first_block, STAGES + 1))", NOBODY),
    "begun for every tile": (r"gl.where\(tile == gl.program_id\(0\), begun, 0\)", "begun", NOBODY),
    "begun of another tile": (r"    tile = gl.program_id\(0\)\n", "    tile = 0\n", "wrong"),
    "begun when nothing is free": (r"barriers \+ slot \* 8, 1, ", "barriers + slot * 8, 0, ", NOBODY),
    "no wait for an empty buffer": (r"(done, \[\$2\], \$3;\n +)@!done bra again;", r"\1", f"{OVERWRITTEN}|{TOO_MANY}"),
    "other parity of empty": (r"& 1\) \^ 1, ", "& 1), ", UNORDERED),
    "more bytes than come": (r"(expect_tx.shared::cta.b64 _, \[\$4\], )(\d+)", r"\g<1>1\2", NOBODY),
    "fewer bytes than come": (r"(expect_tx.shared::cta.b64 _, \[\$4\], )(\d+)", r"\g<1>3072", f"{EARLY}|{UNORDERED}"),
    "no bytes": (r"(expect_tx.shared::cta.b64 _, \[\$4\], )(\d+)", r"\g<1>0", "of the other kind"),
    "expects elsewhere": (r"(expect_tx.shared::cta.b64 _, )\[\$4\]", r"\1[$2]", f"of the other kind|{NOBODY}"),
    "says it elsewhere": (r"\{\$6, \$7\}\], \[\$4\]", "{$6, $7}], [$2]", f"of the other kind|{NOBODY}"),
    "columns where rows are": (r"add.u32 place, \$5, \d+;", "add.u32 place, $5, 0;", OVERWRITTEN),
    "all columns in one place": (r"add.u32 place, place, \d+;", "add.u32 place, place, 0;", OVERWRITTEN),
    "the same columns again": (r"add.u32 line, line, \d+;", "add.u32 line, line, 0;", "wrong"),
    "rows and K exchanged": (r"\{\$6, \$7\}", "{$7, $6}", "wrong"),
    "copies of the next K-block": (r"block \* 64, first_row", "block * 64 + 64, first_row", "wrong"),
    "begins the next K-block": (r"\(first_block \+ slot\) \* 64", "(first_block + slot + 1) * 64", "wrong"),
    "descriptors mixed up": (r"BINARY, 5\)", "BINARY, 0)", f"{OVERWRITTEN}|{NOBODY}|{EARLY}"),
    "columns mixed up": (r"BINARY, 10\)", "BINARY, 5)", f"{OVERWRITTEN}|{NOBODY}|{EARLY}|barriers are overwritten"),
    "a descriptor of C": (r"BINARY, 5\)", "BINARY, 15)", f"{OVERWRITTEN}|128 bytes|{NOBODY}|{EARLY}"),
    "no descriptor": (r"BINARY, 5\)", "BINARY, 6)", "a parameter that is no descriptor"),
    "every thread copies": (r"elect.sync _\|one, -1;", "setp.lt.u32 one, thread, 32;", "by 32 threads"),
    "a thread of each warp copies": (r"and.pred one, one, first;", "", r"by \d threads"),
    "nobody copies": (r"setp.lt.u32 first, thread, 32;", "setp.lt.u32 first, thread, 0;", NOBODY),
    "one thread waits": (r"(mbarrier.try_wait.* done, \[\$2\])", r"@one \1", "a wait without some of the threads"),
    "elects those gone": (r"elect.sync _\|one, -1;", "@one bra again;\nelect.sync _|one, -1;", "before it is written"),
    "waits for ever": (r"(done, \[\$2\], \$3;\n +)@!done bra", r"\1bra", "does not end"),
}  # fmt: skip
MAKING: Mistakes = {
    "no barriers": (r"    make_barriers\(.*\)\n", "", UNMADE),
    "a barrier too few": (r"1;\" for slot in range\(stages\)", '1;" for slot in range(stages - 1)', UNMADE),
    "a barrier twice": (r"\(stages \+ slot\)", "(stages + slot // 2)", "made twice"),
    "threads may not know": (r"(    make_barriers\(.*\)\n)(    thread_barrier\(\)\n)", r"\2\1", UNSEEN),
    "no barrier of threads": (r"    thread_barrier\(\)\n    # The first", "    # The first", UNSEEN),
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


@pytest.mark.parametrize("config", ROUNDED, ids=lambda config: config.family)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_stand_in_notices(mistake: str, config: Config) -> None:
    """A kernel with a mistake does not pass here, whichever program and warpgroup runs first."""
    notices(*MISTAKES[mistake], config)


def notices(pattern: str, replacement: str, message: str, config: Config, k: int = 700) -> None:
    """Assert that the stand-in says `message` to a kernel that is right but for this replacement in its text."""
    problem = fp16_problem(130, 70, k)
    text, count = re.subn(pattern, replacement, text_of(problem, config))
    assert count > 0
    ast.parse(text)
    with pytest.raises(AssertionError, match=message):
        assert_exact(product(problem, config, 2, seed=config.num_warps, text=text))


@pytest.mark.parametrize(
    ("config", "pattern", "replacement", "message"),
    [
        (ROUNDED[0], r"(add|sub).s64 rows, rows, 512;", r"\1.s64 rows, rows, 256;", "wrong"),
        (ROUNDED[0], r"sub.s64 rows, rows, 512;", "// none", f"{EARLY}|wrong"),
        (ROUNDED[1], r"shl.b32 row, row, 13;", "shl.b32 row, row, 12;", "between two rows|wrong"),
        (ROUNDED[1], r"make_barriers\(barriers, STAGES, 2\)", "make_barriers(barriers, STAGES, 1)", UNORDERED),
        (ROUNDED[1], r"and.b32 thread, thread, 127;", "and.b32 thread, thread, 255;", NOBODY),
        (ROUNDED[1], r"tile_0.permute\(\(1, 0\)\)", "tile_0", "another shape"),
    ],
    ids=["second half", "not back", "second warpgroup", "one arrival for two", "first warpgroup only", "not swapped"],
)
def test_the_stand_in_notices_what_several_rows_need(
    config: Config, pattern: str, replacement: str, message: str
) -> None:
    """The same for mistakes in what two warpgroups, two halves of 64 rows, or C's transpose need."""
    notices(pattern, replacement, message, config)


@pytest.mark.parametrize("config", ROUNDED, ids=lambda config: config.family)
def test_the_stand_in_notices_copies_of_nothing(config: Config) -> None:
    """K shorter than the ring: copies beyond it fill buffers that nobody multiplies."""
    pattern = r"range\(gl.minimum\(last_block - first_block, STAGES\)\)"
    notices(pattern, "range(STAGES)", f"{OVERWRITTEN}|a copy that nobody waits for", config, k=100)


# Texts that take it for granted where Triton puts the loading warp.
WHERE_IT_LOADS = {
    "the first behind the others": (r"setp.lt.u32 first, thread, 32;", "setp.lt.u32 first, thread, 32;\n{other}"),
    "the first of a warpgroup": (r"(_fill\(\s+)32, (barriers \+ slot \* 8, \(\(step)", r"\g<1>128, \2"),
}


@pytest.mark.parametrize("config", ROUNDED, ids=lambda config: config.family)
@pytest.mark.parametrize("place", WHERE_IT_LOADS)
def test_the_loading_warp_may_be_any_behind_the_others(place: str, config: Config) -> None:
    """Of the four warps that come behind those that multiply, Triton takes one; which, a kernel cannot know."""
    pattern, replacement = WHERE_IT_LOADS[place]
    # Either what the kernel begins with, by the first warp of all, or the thread with the first number behind.
    other = (
        ".reg .pred later;\n.reg .b32 own;\nmov.u32 own, %tid.x;\n"
        f"setp.lt.u32 later, own, {config.num_warps * 32 + 32};\nand.pred first, first, later;"
    )
    problem = fp16_problem(130, 70, 700)
    text, count = re.subn(pattern, replacement.format(other=other), text_of(problem, config))
    assert count > 0
    found = []
    for seed in range(12):
        try:
            assert_exact(product(problem, config, 2, seed=seed, text=text))
        except AssertionError as error:
            found.append(str(error))
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
    text, count = re.subn(pattern, replacement, text_of(problem, config))
    assert count > 0
    with pytest.raises(AssertionError, match=message):
        assert_exact(product(problem, config, 5, text=text))


# As above: what is changed in the kernel of a cluster, into what, and what the stand-in says to it.
CLUSTER_MISTAKES: Mistakes = {
    "not met": (r"    meet_cluster\(\)\n    gathered", "    gathered", "before all have met"),
    "helpers do not come": (r"    arrive_at_cluster\(\)\n    pid_m", "    pid_m", "without arriving"),
    "only helpers come": (r"    arrive_at_cluster\(\)\n    thread", "    thread", f"without arriving|{UNSEEN}"),
    "comes twice": (r"    arrive_at_cluster\(\)\n    thread", "    arrive_at_cluster()\n" * 2 + "    thread", "twice"),
    "comes before it is made": (r"(    expect_sums\(.*\n)(    arrive_at_cluster.*\n)", r"\2\1", UNSEEN),
    "others may not know": (r"@first fence.mbarrier_init.release.cluster;", "", UNSEEN),
    "no barrier for sums": (r"    expect_sums\(.*\n", "", UNMADE),
    "sums before they come": (r"@!done bra receive;", "", EARLY),
    "other parity of sums": (r"0;(\n +@!done bra receive;)", r"1;\1", f"{EARLY}|{NOBODY}"),
    "more bytes than come": (r"(STAGES \* 16, )(\d+\)\n)", r"\g<1>1\2", NOBODY),
    "fewer bytes than come": (r"(STAGES \* 16, )(\d+\)\n)", r"\g<1>1024)\n", EARLY),
    "landing one further": (r"sub.u32 rank, rank, 1;", "", f"{EARLY}|{OUTSIDE}"),
    "landing on barriers": (r"(gathered, ring \+ \(.*) \+ 1024\)\)", r"\1))", "barriers are overwritten"),
    "landing in buffers": (r"(gathered, ring) \+ \(.*\)\)", r"\1)", f"{OVERWRITTEN}|{EARLY}"),
    "no room for sums": (r"(BLOCKS: gl.constexpr = STAGES \* \d+ \+ )\d+", r"\g<1>1", OUTSIDE),
    "sent to oneself": (r"mapa.shared::cluster.u32 (\w+), (\S+), 0;", r"mov.u32 \1, \2;", "sends to itself"),
    "told to oneself": (r"mapa.shared::cluster.u32 barrier, (\S+), 0;", r"mov.u32 barrier, \1;", "of another program"),
    "nobody adds": (r"setp.eq.u32 first, rank, 0;", "setp.eq.u32 first, rank, 9;", "sends to itself"),
    "everybody adds": (r"setp.eq.u32 first, rank, 0;", "setp.lt.u32 first, rank, 9;", NOBODY),
    "threads overlap": (r"(mad.lo.u32 place, thread, )16", r"\g<1>8", "not side by side"),
    "registers exchanged": (r"\{\$0, \$1, \$2, \$3\}, \[barrier\]", "{$1, $0, $2, $3}, [barrier]", "wrong"),
    "not all are added": (r"add.f32 \$5, \$5, y;", "", "wrong"),
    "several store": (r"if cluster_rank\(\) == 0:", "if cluster_rank() < 2:", "wrong|written twice"),
    "nobody stores": (r"if cluster_rank\(\) == 0:", "if cluster_rank() == 9:", "wrong"),
    "a share twice": (r"return rank \* blocks //", "return 0 * blocks //", f"wrong|{UNORDERED}"),
    "begins another's share": (r"\(first_block \+ slot\) \* 64", "slot * 64", "wrong"),
    "goes on with another's": (r"\(first_block \+ step\) \* 64", "step * 64", "wrong"),
    "too few begun": (r"range\(gl.minimum\((.*), STAGES\)\)", r"range(gl.minimum(\1, STAGES - 1))", NOBODY),
    "begun twice": (r"for step in range\(gl.minimum\(.*, STAGES\), ", "for step in range(0, ", UNORDERED),
    "each helping warp copies": (r"(_fill\(\s+)128, (barriers \+ slot \* 8, \(\(step)", r"\g<1>32, \2", "by 4 threads"),
    "rank in descriptors": (r"and.b32 row, row, 0x3fff;", "", "more than an address"),
    "no wait for a full buffer": (r"(done, \[\$\d\d+\], .*\n +)@!done bra again;", r"\1", EARLY),
    "no wait for an empty one": (r"(done, \[\$2\], \$3;\n +)@!done bra again;", r"\1", f"{OVERWRITTEN}|{TOO_MANY}"),
    "not kept": (r"    memory._keep_alive\(\)", "    pass", "for something else"),
}  # fmt: skip
MANY = [name for name in CLUSTERS if FAMILIES[name].cluster > 2]


def cluster_says(pattern: str, replacement: str, family: str, seeds: int = 2) -> list[str]:
    """What the stand-in says, with each seed, to the kernel of a cluster after this replacement in its text."""
    config = made(family, 64, 48, 1, 4, 3)
    # Shares are longer than the ring, and tiles overhang.
    problem = fp16_problem(60, 60, 64 * 5 * FAMILIES[family].cluster)
    text, count = re.subn(pattern, replacement, text_of(problem, config))
    assert count > 0
    found = []
    for seed in range(seeds):
        try:
            assert_exact(product(problem, config, 8, seed=seed, text=text))
        except AssertionError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("family", [CLUSTERS[0], MANY[1]])
@pytest.mark.parametrize("mistake", CLUSTER_MISTAKES)
def test_the_stand_in_notices_in_clusters(mistake: str, family: str) -> None:
    """The same for mistakes in what goes from one program of a cluster to another."""
    pattern, replacement, message = CLUSTER_MISTAKES[mistake]
    found = cluster_says(pattern, replacement, family)
    assert len(found) == 2
    assert all(re.search(message, said) for said in found), found


@pytest.mark.parametrize("family", MANY)
def test_the_stand_in_notices_sums_in_one_place(family: str) -> None:
    """Where two programs send what one may not overwrite of the other."""
    (said, _) = cluster_says(r"mad.lo.u32 place, rank, \d+, place;", "mad.lo.u32 place, rank, 0, place;", family)
    assert re.search(OVERWRITTEN, said)
