"""Kernels in Gluon for rows in groups (gemm/warp_specialized_groups_body.py.j2): numerics, faults, machine code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from forms import FORMS, RINGS
from forms import made as of_form
from gluon_cases import made, room_for_stages, text_of
from gluon_groups import assert_groups_exact, experts, group_product, grouped, said_of_groups
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from long_tests import drawn, repeats
from small_gemms import specs_of

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sides
from genkern.kernels.contract.gluon_tile import buffer_bytes, scale_bytes
from genkern.kernels.generate import generate
from genkern.kernels.legality import legal
from genkern.kernels.source import ast_source, load_module

UPRIGHT, SWAPPED = "warp_specialized", "warp_specialized_swapped"
FULL = "accumulate", "full"
BLOCKS, MASKED = ("scales", "blocks"), ("capacity", 110)
# One more than a tile has, none, less than a tile, whole tiles: in memory, scales of some of these begin where lines of
# 16 bytes do, and of some they do not.
COUNTS = [0, 65, 0, 31, 64]


@st.composite
def cases(draw: st.DrawFn) -> tuple[GemmProblem, Config, int, list[int]]:
    """Rows in groups, any of which may be empty, a config, and a number of SMs."""
    family = draw(st.sampled_from([UPRIGHT, SWAPPED]))
    warps = draw(st.sampled_from([4, 8]))
    rows = warps * draw(st.sampled_from([16, 32]))
    step = FORMS[family].sides.width_step
    width = step * draw(st.integers(1, 96 // step))
    dtype, own = draw(
        st.sampled_from(
            [
                ("fp16", []),
                ("int8", [("scales", "per_token")]),
                ("fp8e4m3fn", []),
                ("fp8e4m3fn", [FULL]),
                ("fp8e4m3fn", [BLOCKS]),
            ]
        )
    )
    together = draw(st.sampled_from([1, 2])) * (1 if dtype == "fp16" else 2)
    buffers = together if dtype == "fp16" else together // 2
    most = min(5, room_for_stages(family, rows, width, "fp32") // buffers - 1)
    assume(most >= 2)
    stages, group = draw(st.integers(2, most)), draw(st.integers(1, 3))
    config = made(family, rows, width, 1, warps, stages, group, together)
    counts = draw(st.lists(st.integers(0, 2 * config.BLOCK_SIZE_M), min_size=1, max_size=5))
    if not sum(counts):
        counts[0] = 1
    capacity = draw(st.sampled_from([0, 0, max(counts) + draw(st.integers(0, 9))]))
    own = sorted([*own, *([("capacity", capacity)] if capacity else [])])
    n, k = 16 * draw(st.integers(1, 12)), 16 * draw(st.integers(1, 40))
    problem = grouped(sum(counts), n, k, len(counts), dtype, own, activation=draw(st.sampled_from(["none", "relu"])))
    assume(not legal(problem, config, gpu_for_arch("sm_90")))
    return problem, config, draw(st.integers(1, 9)), counts


@settings(max_examples=repeats(8, 100), deadline=None)
@given(case=cases(), seed=st.integers(0, 99))
def test_any_groups_are_exact(case: tuple[GemmProblem, Config, int, list[int]], seed: int) -> None:
    """Wherever groups end, in 16 and in 8 bits: every row of C that counts, exactly, and no other one."""
    assert_groups_exact(group_product(*case, seed))


@pytest.mark.parametrize("family", [UPRIGHT, SWAPPED])
def test_more_programs_than_tiles(family: str) -> None:
    """Those without a tile load nothing, and wait for nothing; groups at the end, and at the beginning, are empty."""
    assert_groups_exact(
        group_product(grouped(3, 40, 72, 8), made(family, 64, 48, 1, 4, 3), 9, [0, 0, 1, 0, 1, 0, 1, 0])
    )


@pytest.mark.parametrize("family", [UPRIGHT, SWAPPED])
@pytest.mark.parametrize("counts", [COUNTS, [4, 64, 132, 0], [1, 64, 133, 2]], ids=["both", "engine", "lanes"])
@pytest.mark.parametrize("capacity", drawn([0, 136], 1))
def test_scales_of_blocks_are_exact_wherever_rows_begin(family: str, counts: list[int], capacity: int) -> None:
    """Upright the copy engine takes all scales, from within lines; swapped, it or lanes do, or both in one program."""
    own = [*([("capacity", capacity)] if capacity else []), BLOCKS]
    problem = grouped(sum(counts), 72, 400, len(counts), "fp8e4m3fn", own)
    assert_groups_exact(group_product(problem, made(family, 64, 48, 1, 4, 2, together=2), 2, counts))


@pytest.mark.parametrize("family", [UPRIGHT, SWAPPED])
@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_scales_that_lie_anywhere_are_exact(family: str, ahead: int) -> None:
    """Where the first scale lies between two sixteens of bytes, a tile's may begin at one, and end between two."""
    counts = [64 - ahead, 20 + ahead]
    problem = grouped(sum(counts), 72, 272, len(counts), "fp8e4m3fn", [BLOCKS])
    config = made(family, 64, 48, 1, 4, 2, together=2)
    assert_groups_exact(group_product(problem, config, 2, counts, ahead=ahead))


@pytest.mark.parametrize("family", [UPRIGHT, SWAPPED])
@pytest.mark.parametrize(
    ("dtype", "own"), [("fp16", []), ("fp8e4m3fn", [BLOCKS]), ("fp8e4m3fn", [("scales", "per_token")])]
)
def test_rows_of_slots_are_exact(family: str, dtype: str, own: list[tuple[str, object]]) -> None:
    """Each row of an expert, times its weight, where its slot is, wherever that is."""
    problem = experts(75, 72, 272, 4, 2, dtype, own)
    config = made(family, 64, 48, 1, 4, 2, 1, 1 if dtype == "fp16" else 2)
    assert_groups_exact(group_product(problem, config, 3, [0, 65, 64, 21]))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("rows = gl.load(slots_ptr + offs_m, mask=offs_m < last_m, other=0)", "rows = offs_m"),
        ("gl.load(routing_weights_ptr + slots", "gl.load(routing_weights_ptr + offs_m"),
        ("mask=(offs_m < last_m)", "mask=(offs_m < last_m - 1)"),
        ("mask=(offs_m < last_m)", "mask=(offs_m < last_m + 1)"),
    ],
    ids=["by their order", "another slot's weight", "a row too few", "a row too many"],
)
def test_the_stand_in_notices_in_slots(before: str, after: str) -> None:
    """Mistakes about where rows go, and what they are multiplied by."""
    problem, config = experts(75, 72, 136, 4, 2), made(SWAPPED, 64, 48, 1, 4, 2)
    text = text_of(problem, config)
    assert before in text
    (said,) = said_of_groups(text.replace(before, after), problem, config, 3, [0, 65, 64, 21], [4])
    assert re.search(f"{WRONG}|{TWICE}|beyond the memory", said), said


WRONG, HANG, TOO_MANY = "wrong", "a barrier that nobody completes", "an arrival too many"
TWICE = "an element of C is written twice"
MISTAKES = {
    "the weight of the next group": ("below = group * N", "below = (group + 1) * N", WRONG),
    "every group has the first weight": ("below = group * N", "below = 0 * N", WRONG),
    "rows behind the group's are stored": ("if first_m + BLOCK_SIZE_M <= last_m:", "if True:", f"{WRONG}|{TWICE}"),
    "a row too many": ("mask=(offs_m < last_m)", "mask=(offs_m < last_m + 1)", f"{WRONG}|{TWICE}"),
    "a row too few": ("mask=(offs_m < last_m)", "mask=(offs_m < last_m - 1)", WRONG),
    "columns that C does not have": (" & (offs_n < N)", "", f"{WRONG}|{TWICE}|beyond the memory"),
    "tiles of part of a group are left out": (
        "here = gl.cdiv(last - first, BLOCK_SIZE_M) * tiles_n",
        "here = (last - first) // BLOCK_SIZE_M * tiles_n",
        WRONG,
    ),
    "all tiles of a group are its first": ("first + pid_m * BLOCK_SIZE_M", "first + 0 * pid_m", f"{WRONG}|{TWICE}"),
    "tiles are counted from the first group on": ("tile -= here", "tile -= 0", f"{WRONG}|{TWICE}|overwritten"),
    "the last group is left out": ("while group < 5:", "while group < 4:", f"{WRONG}|that nobody waits for"),
    "a group begins where the one before it did": ("first = last\n", "first = first\n", f"{WRONG}|{TWICE}"),
    "the first group's scales": ("group.to(gl.int64) * steps[0]", "0", WRONG),
    "the first tile's scales": (
        "first_m, first_n, operands, M, N, K, ROWS",
        "0, first_n, operands, M, N, K, ROWS",
        WRONG,
    ),
    "scales of other rows of a line": (" + first_m\n        line", "\n        line", WRONG),
    "every tile is begun": ("        is_first = 0\n", "", HANG),
    "not what was begun": (
        "    is_first = 1\n",
        "    is_first = 0\n",
        f"{HANG}|{WRONG}|{TOO_MANY}|that nobody waits for|overwritten",
    ),
    "too few begun": ("begun_of(blocks, sources, STAGES, LANES)", "begun_of(blocks, sources, STAGES, LANES) - 1", HANG),
    "a tile is read back too early": (
        "    thread_barrier()\n    for i",
        "    for i",
        "before all threads have",
    ),
    "a tile is replaced too early": (
        "    # All have read it before the next tile comes here.\n    thread_barrier()\n",
        "",
        "while other threads read it",
    ),
    "no fence": ("<= last_m:\n        fence_async_shared()\n", "<= last_m:\n", "may not see"),
}


@pytest.mark.parametrize("mistake", drawn([*MISTAKES], 7))
def test_the_stand_in_notices(mistake: str) -> None:
    """A kernel with a mistake does not pass: groups of no rows, of whole tiles and of others, scales of blocks."""
    before, after, message = MISTAKES[mistake]
    problem = grouped(sum(COUNTS), 72, 272, len(COUNTS), "fp8e4m3fn", [BLOCKS])
    config = made(UPRIGHT, 64, 48, 1, 4, 2, 2, 2)
    text = text_of(problem, config)
    assert before in text, before
    (said,) = said_of_groups(text.replace(before, after), problem, config, 2, COUNTS, [4])
    assert re.search(message, said), said


LINE = "line = from_a.to(gl.int64) % 16"
# The family, what a text is and what it becomes, and how many other numbers lie ahead of the scales.
LINES = {
    "the first row's": (UPRIGHT, "0, first_m, of_group", "0, 0, of_group", 0),
    "of the row before": (UPRIGHT, "0, first_m, of_group", "0, first_m - 1, of_group", 0),
    "the next K-block's": (UPRIGHT, "0, first_m, of_group", "1, first_m, of_group", 0),
    "of the rows only": (UPRIGHT, LINE, "line = first_m.to(gl.int64) * 4 % 16", 1),
    "of the memory only": (UPRIGHT, LINE, "line = (from_a + -1 * first_m).to(gl.int64) % 16", 1),
    "as if there were one": (SWAPPED, " & (from_a.to(gl.int64) % 16 == 0)", "", 0),
    "where rows are fours": (SWAPPED, "(from_a.to(gl.int64) % 16 == 0)", "(first_m % 4 == 0)", 1),
    "another tile's, one by one": (
        SWAPPED,
        "first_m, first_n, operands, N, K, ROWS",
        "0, first_n, operands, N, K, ROWS",
        0,
    ),
}


@pytest.mark.parametrize("mistake", LINES)
def test_the_stand_in_notices_where_scales_lie(mistake: str) -> None:
    """Mistakes about where in a line of 16 bytes a tile's scales begin: it hangs on their memory, and on its rows."""
    family, before, after, ahead = LINES[mistake]
    # Of an odd number of rows, K-blocks begin at different places too; swapped, no line would then be taken.
    counts = [0, 65, 0, 30, 66] if family == UPRIGHT else COUNTS
    problem = grouped(sum(counts), 72, 272, len(counts), "fp8e4m3fn", [BLOCKS])
    config = made(family, 64, 48, 1, 4, 2, 2, 2)
    text = text_of(problem, config)
    assert before in text, before
    (said,) = said_of_groups(text.replace(before, after), problem, config, 2, counts, [4], ahead)
    assert re.search(f"{WRONG}|read before what it needs has arrived|overwritten while it is in use", said), said


@pytest.mark.parametrize("rows", ["M", "5 * 112"])
def test_the_stand_in_notices_another_number_of_rows_in_masked_groups(rows: str) -> None:
    """From one K-block's scales to the next there are as many as groups have room for, not as many as count."""
    problem = grouped(sum(COUNTS), 72, 272, len(COUNTS), "fp8e4m3fn", [BLOCKS, MASKED])
    config = made(UPRIGHT, 64, 48, 1, 4, 2, 2, 2)
    text = text_of(problem, config)
    before = "0, first_m, of_group(epilogue, steps, group), 550"
    assert before in text
    text = text.replace(before, before.replace("550", rows))
    (said,) = said_of_groups(text, problem, config, 2, COUNTS, [4])
    assert re.search(WRONG, said), said


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("first = group * 110", "first = group * 109"),
        ("last = first + gl.where(", "last = first + 1 + gl.where("),
        ("gl.where(group < 5, said, 0)", "110"),
    ],
    ids=["groups that lie closer", "a row that does not count", "rows that do not count"],
)
@pytest.mark.parametrize("family", [UPRIGHT, SWAPPED])
def test_the_stand_in_notices_in_masked_groups(family: str, before: str, after: str) -> None:
    """Mistakes about where a group's memory begins, and how much of it counts."""
    problem, config = grouped(sum(COUNTS), 96, 72, len(COUNTS), own=[MASKED]), made(family, 64, 48, 1, 4, 3)
    text = text_of(problem, config)
    assert before in text
    (said,) = said_of_groups(text.replace(before, after), problem, config, 2, COUNTS, [4])
    assert re.search(f"{WRONG}|{TWICE}", said), said


BF16 = GemmProblem(4096, 4096, 7168, "grouped_gemm", own=(("groups", 64),))
OF_BLOCKS = ("experts", 64), BLOCKS, ("top_k", 8)
DOWN = GemmProblem(512, 7168, 2048, "fused_moe", "fp8e4m3fn", "fp8e4m3fn", "bf16", own=OF_BLOCKS)
COMPILED = [
    (BF16, of_form(UPRIGHT, 128, 256, 64, 8, 1, 8, 3)),
    (DOWN, of_form(SWAPPED, 40, 128, 128, 1, 1, 4, 8)),
]


@pytest.mark.parametrize(("problem", "config"), drawn(COMPILED, 1), ids=lambda value: value.name)
def test_nothing_spills_and_nothing_loops_over_threads(tmp_path: Path, problem: GemmProblem, config: Config) -> None:
    """What finds groups costs neither registers of the sums nor the one thread that copies; rows go out by 16 bytes."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget(*triton_target(gpu_for_arch("sm_90")))
    module = generate(problem, [config], "sm_90")
    (tmp_path / "module.py").write_text(module.text)
    spec = specs_of(module, config)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
        patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
        kernel = compiler.compile(
            ast_source(load_module(str(tmp_path / "module.py")), spec), target, dict(spec.options)
        )
        sass = kernel.asm["sass"]
    assert not re.search(r"\b(?:STL|LDL)\b", sass)
    assert "BRA.U.ANY" not in sass
    rows, width = sides(config)
    # A group's last rows: 16 bytes of each thread until all of the tile is stored.
    assert len(re.findall(r"STG\.E\.128", sass)) == rows * width * 2 // (16 * 32 * config.num_warps)
    # The ring lies first, which PTX takes it to, then the tile; behind them is what the compiler wants for itself.
    scales = scale_bytes(rows, width, True, 128) if problem is DOWN else 0
    ring = config.num_stages * (buffer_bytes(rows, width) + scales) + 1024
    behind = [int(place) for place in re.findall(r"global_smem\+(\d+)\]", kernel.asm["ptx"])]
    assert min(behind) == ring + rows * width * 2
    # Copies of rows and columns, when the kernel begins and whenever a buffer is free; swapped, each for tiles whose
    # scales the copy engine takes, and for those whose scales lanes copy.
    ways = 2 if problem is DOWN else 1
    assert sass.count("UTMALDG.2D") == 2 * ways * (1 + bin(width).count("1"))


def test_what_takes_groups() -> None:
    """Families in Gluon without clusters; rows that lie one behind the other, wherever they go; weights along K."""
    problem, h200 = grouped(300, 128, 256, 5), gpu_for_arch("sm_90")
    tile = made(UPRIGHT, 64, 48, 1, 4, 3)
    assert {name for name in RINGS if FORMS[name].groups} == {UPRIGHT, SWAPPED}
    assert not legal(problem, tile, h200)
    assert not legal(experts(300, 128, 256, 8, 2), tile, h200)
    assert "rowMajorB: N" in legal(grouped(300, 128, 256, 5, row_major_b=True), tile, h200)
    assert "not split along K" in legal(problem, made(UPRIGHT, 64, 48, 2, 4, 3), h200)
    assert "multiples of 16 bytes" in legal(grouped(300, 124, 252, 5), tile, h200)
    gate = GemmProblem(300, 128, 256, "fused_moe", activation="silu", own=(("experts", 8), ("stage", "gate_up")))
    assert "not rows gathered by token" in legal(gate, tile, h200)
