"""The stand-in notices mistakes in the loop that fills a ring (fill_ring, templates/gemm/fill.py.j2), and in what is begun.

Mistakes are planted in the generated text: one of each kind that a change of the templates could make.
"""

from __future__ import annotations

import pytest
from gluon_cases import assert_noticed, block_scaled, made
from gluon_memory import LATE

pytestmark = pytest.mark.usefixtures("for_clusters")
WRONG, EARLY, HANG = "wrong", "read before what it needs has arrived", "a barrier that nobody completes"
IN_USE, TOO_MANY, TWICE = "while it is in use", "an arrival too many", "an element of C is written twice"
UNSEEN, OUTSIDE, UNMADE = (
    "where nobody else may have seen it",
    "an address outside the ring",
    "a barrier that is not made",
)
OTHER_KIND, BARRIERS = "of the other kind", "barriers are overwritten"
NOT_ITS_TURN = f"{IN_USE}|{TOO_MANY}|{HANG}|{LATE}"
Mistakes = dict[str, tuple[str, str, str]]
ELECTED = '        "elect.sync _|one, -1;",\n        "@!one bra filled;",\n        "mov.u32 left, $1;",'

# What runs from one buffer to the next, and from one turn of the ring to the next.
LOOP: Mistakes = {
    "runs as long as there are K-blocks": (
        '"min.u32 run, run, left;"',
        '"mov.u32 run, left;"',
        f"{OUTSIDE}|{UNMADE}|{BARRIERS}",
    ),
    "runs to the ring's end": (', "min.u32 run, run, left;"', "", NOT_ITS_TURN),
    "runs of a whole ring": (
        "sub.u32 run, {stages}, slot;",
        "mov.u32 run, {stages};",
        f"{OUTSIDE}|{UNMADE}|{BARRIERS}",
    ),
    "turns before the last buffer": ("sub.u32 run, {stages}, slot;", "sub.u32 run, {stages - 1}, slot;", NOT_ITS_TURN),
    "turns behind the last buffer": (
        "sub.u32 run, {stages}, slot;",
        "sub.u32 run, {stages + 1}, slot;",
        f"{OUTSIDE}|{UNMADE}|{BARRIERS}",
    ),
    "a run counts as one": ('"sub.u32 left, left, run;"', '"sub.u32 left, left, 1;"', NOT_ITS_TURN),
    "ends with the ring": ('"sub.u32 left, left, run;"', '"mov.u32 left, 0;"', HANG),
    "one a run": (
        '"setp.ne.u32 one, run, 0;"',
        '"setp.eq.u32 one, run, 0;"',
        f"{HANG}|does not end|{OUTSIDE}|{UNMADE}|{BARRIERS}",
    ),
    "ends where it should turn": (
        '            "setp.ne.u32 one, left, 0;"',
        '            "setp.eq.u32 one, left, 0;"',
        f"{HANG}|{NOT_ITS_TURN}",
    ),
    "nothing is something": ('        "setp.eq.u32 one, left, 0;",\n        "@one bra filled;",\n', "", NOT_ITS_TURN),
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
    "waits for the next ones": ("{8 * (together - 1)};", "{8 * (2 * together - 1)};", f"{NOT_ITS_TURN}|{OTHER_KIND}"),
    "every thread copies": (ELECTED, ELECTED.replace('        "@!one bra filled;",\n', ""), "by 32 threads"),
    "begun by every warp": ("setp.ne.u32 one, warp, 0;", "setp.ne.u32 one, warp, warp;", "by 4 threads"),
    "begun by another warp": ("setp.ne.u32 one, warp, 0;", "setp.ne.u32 one, warp, 32;", UNSEEN),
    "begun as if by the loading warp": ("if first or cluster > 1:", "if cluster > 1:", "by 4 threads"),
}
TAKING: Mistakes = {
    "begun come again": ("taken - begun, step + begun", "taken, step", NOT_ITS_TURN),
    "what is begun counts as more": ("taken - begun, step", "taken, step", NOT_ITS_TURN),
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
    "at least one more": ("gl.maximum(count, begun)", "gl.maximum(count, begun + 1)", "nothing"),
    "begun of every tile": ("gl.where(is_first, gl", "gl.where(True, gl", NOT_ITS_TURN),
    "nothing was begun": ("gl.where(is_first, gl", "gl.where(False, gl", NOT_ITS_TURN),
    "too few begun": ("early(STAGES))\n", "early(STAGES)) - 1\n", HANG),
    "too many begun": ("early(STAGES))\n", "early(STAGES)) + 1\n", NOT_ITS_TURN),
    "a whole ring begun": ("early(STAGES))\n", "STAGES)\n", NOT_ITS_TURN),
    "a whole ring counts as begun": ("early(STAGES)), 0)", "STAGES), 0)", HANG),
    "begun from another buffer on": ("            taken, 0, barriers", "            taken, 1, barriers", NOT_ITS_TURN),
    "another tile begun": ("= first_tile_of(tile,", "= first_tile_of(tile + 1,", f"{TWICE}|{WRONG}"),
    "loads another first tile": ("BINARY, pid_m, pid_n, M", "BINARY, pid_n, pid_m, M", WRONG),
    "multiplies another first tile": ("(c, tiles, pid_m", "(c, tiles, pid_n", WRONG),
}
UPRIGHT = LOOP | WAITING | TAKING


@pytest.mark.parametrize("mistake", UPRIGHT)
def test_the_stand_in_notices(mistake: str) -> None:
    """Six buffers, filled by twos; eleven K-blocks a tile, four of the first one begun; two tiles a program."""
    problem, config = block_scaled(71, 96, 11 * 128 - 16), made("warp_specialized", 64, 48, 1, 4, 3, 1, 4)
    assert_noticed(UPRIGHT[mistake], problem, config, 2, 4)
