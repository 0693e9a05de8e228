"""As tests/kernels/test_gluon_mistakes.py, for what programs of a cluster do together."""

from __future__ import annotations

import re

import pytest
from gluon_cases import CLUSTERS, fp16_problem, made
from gluon_memory import LATE
from gluon_mistakes import (
    EARLY,
    NOBODY,
    OTHER_KIND,
    OUTSIDE,
    OVERWRITTEN,
    TOO_MANY,
    UNMADE,
    UNORDERED,
    UNSEEN,
    Mistakes,
    changed,
    said_to,
)

from genkern.kernels.family import FAMILIES

# What is changed in the kernel of a cluster, into what, and what the stand-in says to it.
CLUSTER_MISTAKES: Mistakes = {
    "not met": (r"    meet_cluster\(\)\n    pid_m", "    pid_m", "before all have met"),
    "helpers do not come": (r"    arrive_at_cluster\(\)\n    pid_m", "    pid_m", "without arriving"),
    "only helpers come": (r"    arrive_at_cluster\(\)\n    # The", "    # The", f"without arriving|{UNSEEN}"),
    "comes twice": (r"    arrive_at_cluster\(\)\n    # The", "    arrive_at_cluster()\n" * 2 + "    # The", "twice"),
    "comes before it is made": (r"(    expect_sums\(.*\n)(    arrive_at_cluster.*\n)", r"\2\1", UNSEEN),
    "others may not know": (r"@first fence.mbarrier_init.release.cluster;", "", UNSEEN),
    "no barrier for sums": (r"    expect_sums\(.*\n", "", UNMADE),
    "sums before they come": (r"@!done bra receive;", "", EARLY),
    "other parity of sums": (r"0;(\n +@!done bra receive;)", r"1;\1", f"{EARLY}|{NOBODY}|{LATE}"),
    "sees only its own": (r"try_wait.parity.acquire.cluster.shared", "try_wait.parity.shared", EARLY),
    "more bytes than come": (r"(STAGES \* 16, eights \* )(\d+\)\n)", r"\g<1>1\2", NOBODY),
    "fewer bytes than come": (r"(STAGES \* 16, eights \* )(\d+\)\n)", r"\g<1>1024)\n", f"{EARLY}|{TOO_MANY}"),
    "no bytes": (r"(STAGES \* 16, eights \* )(\d+\)\n)", r"\g<1>0)\n", OTHER_KIND),
    "landing on another": (r"(\[there\+)\d+", r"\g<1>2048", f"{OVERWRITTEN}|{EARLY}"),
    "landing far off": (r"(\[there\+)(\d+)", r"\g<1>9\g<2>00", OUTSIDE),
    "landing on barriers": (r"barriers \+ 1024\)", "barriers)", "barriers are overwritten"),
    "landing in buffers": (r"barriers \+ 1024\)", "ring)", f"{OVERWRITTEN}|{EARLY}"),
    "no room for sums": (r"(BLOCKS: gl.constexpr = STAGES \* \d+ \+ )\d+", r"\g<1>1", OUTSIDE),
    "sent to oneself": (r"mapa.shared::cluster.u32 there, (\w+), \d;", r"mov.u32 there, \1;", "sends to itself"),
    "told to oneself": (r"mapa.shared::cluster.u32 barrier, (\S+), \d;", r"mov.u32 barrier, \1;", "of another program"),
    "sent to nobody": (r"(mapa.shared::cluster.u32 there, \w+), \d;", r"\1, 8;", "the cluster does not have"),
    "all are the first": (r"rank = cluster_rank\(\)(\n    if)", r"rank = 0\1", f"sends to itself|{OVERWRITTEN}"),
    "none is anyone": (r"rank = cluster_rank\(\)(\n    if)", r"rank = 9\1", "wrong"),
    "threads overlap": (r"(mad.lo.u32 place, place, )16", r"\g<1>8", "not side by side"),
    "registers exchanged": (r"\{\$0, \$1, \$2, \$3\}, \[barrier\]", "{$1, $0, $2, $3}, [barrier]", "wrong"),
    "registers of another": (r"\{\$0, \$1, \$2, \$3\}, \[barrier\]", "{$8, $9, $10, $11}, [barrier]", "wrong"),
    "not all are sent": (r"st.async.*\n? +\[there\+\d+\], \{\$0, .*", "", NOBODY),
    "not all are added": (r"add.f32 \$5, \$5, y;", "", "wrong"),
    "added twice": (r"(add.f32 \$5, \$5, y;)", r"\1\n\1", "wrong"),
    "one part for all": (r"store_tile\((c_\d), .*?\], ", r"store_tile(\1, [first_m, first_n], ", "wrong|written twice"),
    "a part too few": (r"        store_tile\(c_1, .*\n", "", "wrong"),
    "a share twice": (r"return rank \* blocks //", "return 0 * blocks //", f"wrong|{UNORDERED}"),
    "begins another's share": (r"\(first_block \+ slot\) \* 64", "slot * 64", "wrong"),
    "goes on with another's": (r"\(first_block \+ step\) \* 64", "step * 64", "wrong"),
    "too few begun": (r"range\(gl.minimum\((.*), STAGES\)\)", r"range(gl.minimum(\1, STAGES - 1))", NOBODY),
    "begun twice": (r"for step in range\(gl.minimum\(.*, STAGES\), ", "for step in range(0, ", f"{UNORDERED}|{LATE}"),
    "each helping warp copies": (r"and.pred one, one, done;", "", "by 4 threads"),
    "each helping warp waits": (r"or.pred done, done, idle;", "", LATE),
    "one helping warp more waits": (r"setp.ne.u32 idle, warp, 0;", "setp.lt.u32 idle, 32, warp;", LATE),
    "no helping warp waits": (r"setp.ne.u32 idle, warp, 0;", "setp.eq.u32 idle, 0, 0;", f"{OVERWRITTEN}|{TOO_MANY}"),
    "rank in descriptors": (r"and.b32 row, row, 0x3fff;", "", "more than an address"),
    "no wait for a full buffer": (r"(done, \[\$\d\d+\], \$.*\n +)@!done bra again;", r"\1", EARLY),
    "no wait for an empty one": (r"(done, done, idle;\n +)@!done bra again;", r"\1", f"{OVERWRITTEN}|{TOO_MANY}"),
    "a thread of each warpgroup frees": (r"and.b32 thread, thread, 31;", "and.b32 thread, thread, 127;", NOBODY),
    "not kept": (r"    memory._keep_alive\(\)", "    pass", "for something else"),
}  # fmt: skip
MANY = [name for name in CLUSTERS if FAMILIES[name].cluster > 2]


def said_in_cluster(family: str, pattern: str, replacement: str) -> list[str]:
    """What the stand-in says, with two seeds, to the kernel of a cluster after this replacement in its text."""
    # The first of four programs owns nothing. Shares are longer than the ring, and the tile overhangs.
    width = 24 if family in MANY else 48
    config = made(family, 64, width, 1, 4, 3)
    problem = fp16_problem(width - 4, 60, 64 * 5 * FAMILIES[family].cluster)
    return said_to(changed(problem, config, (pattern, replacement)), problem, config, 8, range(2))


@pytest.mark.parametrize("family", [CLUSTERS[0], MANY[0]])
@pytest.mark.parametrize("mistake", CLUSTER_MISTAKES)
def test_the_stand_in_notices_in_clusters(mistake: str, family: str) -> None:
    """Mistakes in what goes from one program of a cluster to another."""
    pattern, replacement, message = CLUSTER_MISTAKES[mistake]
    found = said_in_cluster(family, pattern, replacement)
    assert len(found) == 2
    assert all(re.search(message, said) for said in found), found


@pytest.mark.parametrize("family", MANY)
@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"(\[there\+)\d+", r"\g<1>0", OVERWRITTEN),
        (r"rank = cluster_rank\(\)(\n    eights)", r"rank = 0\1", f"{EARLY}|{TOO_MANY}|{OTHER_KIND}"),
    ],
    ids=["sums in one place", "bytes of another"],
)
def test_the_stand_in_notices_in_larger_clusters(family: str, pattern: str, replacement: str, message: str) -> None:
    """Where several programs send, what they own being of different size, or nothing."""
    (said, _) = said_in_cluster(family, pattern, replacement)
    assert re.search(message, said), said
