"""Kernels in Gluon that scale the products of each K-block before they add them up (templates/gemm/promote.py.j2)."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from gluon_cases import assert_exact, block_scaled, changed, made, product, room_for_stages, said_to
from gluon_machine import Machine
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from long_tests import in_turns, repeats, spread
from small_gemms import specs_of

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels.family import FAMILIES, sides
from genkern.kernels.generate import generate
from genkern.kernels.legality import legal
from genkern.kernels.source import ast_source, load_module

pytestmark = pytest.mark.usefixtures("for_clusters")
PROMOTES = [name for name, family in FAMILIES.items() if family.promotes and family.in_gluon]
Own = tuple[tuple[str, int], ...]


@st.composite
def cases(draw: st.DrawFn) -> tuple[GemmProblem, Config, int]:
    """A problem with scales of some blocks, a config of some family, and a number of SMs."""
    family = draw(st.sampled_from(PROMOTES))
    facts = FAMILIES[family]
    warps = draw(st.sampled_from([4, 8]))
    rows = warps * draw(st.sampled_from([16, 32]))
    step = facts.width_step
    width = step * draw(st.integers(1, (256 if facts.cluster == 1 else 96) * 64 // rows // step))
    own = {
        "block_m": draw(st.sampled_from([1, 1, 7, 16, 128])),
        "block_n": draw(st.sampled_from([8, 32, 128, 128, 200, 256])),
        "block_k": draw(st.sampled_from([128, 256, 384])),
    }
    together = draw(st.sampled_from([1, 2]))
    most = min(4 // together + 1, room_for_stages(family, rows, width, "fp32") // together)
    assume(most >= 2)
    config = made(
        family,
        *(rows, width, draw(st.integers(1, 3)) if facts.splits_k else 1, warps, draw(st.integers(2, most))),
        *(draw(st.integers(1, 3)), 2 * together),
    )
    along = 3 if facts.cluster == 1 else 2
    m = draw(st.integers(1, min(300, along * config.BLOCK_SIZE_M)))
    # The copy engine takes scales of fours of rows.
    m = draw(st.sampled_from([m, -(-m // 4) * 4]))
    n = 4 * draw(st.integers(1, min(300, along * config.BLOCK_SIZE_N) // 4))
    changes = {"dtype_b": draw(st.sampled_from(["fp8e4m3fn", "fp8e5m2"])), "bias": draw(st.booleans())}
    defaults = {"block_m": 1, "block_n": 128, "block_k": 128}
    chosen = tuple(sorted((name, size) for name, size in own.items() if size != defaults[name]))
    problem = block_scaled(m, n, 16 * draw(st.integers(1, 80)), own=chosen, **changes)
    assume(not legal(problem, config, gpu_for_arch("sm_90")))
    return problem, config, draw(st.integers(1, 7))


@settings(max_examples=repeats(25, 100), deadline=None)
@given(case=cases(), seed=st.integers(0, 99))
def test_any_blocks_are_exact(case: tuple[GemmProblem, Config, int], seed: int) -> None:
    """Tiles that overhang and lie across blocks, whatever their sizes; shares of K; every element of C, exactly."""
    assert_exact(product(*case, seed, largest=2))


@pytest.mark.parametrize(
    ("rows", "width", "warps"),
    [(128, 176, 8), (256, 112, 8), (128, 96, 4), (64, 192, 4), (64, 256, 4)],
)
def test_wide_tiles_lie_across_blocks_of_columns(rows: int, width: int, warps: int) -> None:
    """Two or three blocks of 128 in different places of each tile; with products in registers of their own or not."""
    config = made("warp_specialized", rows, width, 1, warps, 2, 2, 2)
    assert_exact(product(block_scaled(rows + 5, 3 * width, 400), config, 2, largest=2))


@pytest.mark.parametrize("family", PROMOTES)
@pytest.mark.parametrize(
    ("m", "own", "by_engine"),
    [(76, (), True), (75, (), False), (76, (("block_k", 256),), False), (76, (("block_m", 7),), False)],
    ids=["engine", "rows that are no fours", "twice as long", "one for several rows"],
)
def test_both_ways_of_scales_are_exact(
    family: str, m: int, own: Own, by_engine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy engine takes scales of rows where each has its own for each K-block, and where they lie for it."""
    taken: list[int] = []

    def copied(machine: Machine, source: int, size: int, *places: int) -> None:
        taken.append(size)
        copy_bytes(machine, source, size, *places)

    copy_bytes = Machine.copy_bytes
    monkeypatch.setattr(Machine, "copy_bytes", copied)
    for rows, warps in ((64, 4), (128, 8)):
        problem = block_scaled(m, 152, 1040, own=own)
        assert_exact(product(problem, made(family, rows, 48, 1, warps, 3, together=2), 3, largest=2))
        assert bool(taken) == by_engine
        taken.clear()


@pytest.mark.parametrize("family", PROMOTES)
def test_int8_is_exact(family: str) -> None:
    """Products are whole numbers, of which scales make float32."""
    for rows, warps in in_turns(((64, 4), (128, 8)), 2, PROMOTES.index(family)):
        problem = block_scaled(70, 152, 1040, dtype="int8", bias=True)
        assert_exact(product(problem, made(family, rows, 48, 1, warps, 3, together=2), 3, largest=9))


def test_the_last_scales_are_the_last() -> None:
    """Nothing beyond the scales of the last K-block, row or column is read: the stand-in's memory ends there."""
    for k in (128, 130 * 16, 16):
        for family in spread(PROMOTES, 3):
            assert_exact(product(block_scaled(3, 20, k), made(family, 64, 32, 1, 4, 3, together=2), 2))


WRONG, EARLY, HANG = "wrong", "read before what it needs has arrived", "a barrier that nobody completes"
IN_USE, TOO_MANY, UNFINISHED = "while it is in use", "an arrival too many", "products are done"
UNSEEN, BEYOND = "where nobody else may have seen it", "beyond the memory"
Mistakes = dict[str, tuple[str, str, str]]
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
    "columns all have the first block's": ("            elif 8 * i", "            elif 0 * i", WRONG),
    "columns of the next block": ("number * 128, columns[number]", "number * 128 + 16, columns[number]", WRONG),
    "scales in one another's place": ("of_b = place + 4 * OF_A", "of_b = place", WRONG),
    "scales that nobody waits for": ("STAGES, WARPS, 3)", "STAGES, WARPS, 1)", f"{EARLY}|too many|next phase"),
    "B's scales, that nobody waits for": ("STAGES, WARPS, 3)", "STAGES, WARPS, 2)", f"{EARLY}|too many|next phase"),
    "an arrival more than come": ("STAGES, WARPS, 3)", "STAGES, WARPS, 4)", f"{HANG}|{IN_USE}"),
}
ENGINE: Mistakes = {
    "a row too few": ("gl.minimum(M - first_m, OF_A)", "gl.minimum(M - first_m, OF_A - 1)", "engine does not take"),
    "four rows too few": ("gl.minimum(M - first_m, OF_A)", "gl.minimum(M - first_m, OF_A - 4)", f"{WRONG}|{EARLY}"),
    "rows that A does not have": ("gl.minimum(M - first_m, OF_A)", "OF_A", BEYOND),
    "wherever they lie": ("gl.where(aligned, 4 *", "gl.where(True, 2 *", f"engine does not take|{WRONG}"),
    "from one K-block to the next but one": ('"mul.wide.s32 next, $7, 4;"', '"mul.wide.s32 next, $7, 8;"', WRONG),
    "from one K-block to the same": ('"mul.wide.s32 next, $7, 4;"', '"mul.wide.s32 next, $7, 0;"', WRONG),
    "always A's first K-block": ('"mul.wide.s32 next, $4, $7;"', '"mul.wide.s32 next, 0, $7;"', WRONG),
    "always B's first K-block": ('"mul.wide.s32 next, $4, 4;"', '"mul.wide.s32 next, $4, 0;"', WRONG),
    "B's of the first K-block begun": ("add.s64 {name}, {name}, 4;", "add.s64 {name}, {name}, 0;", WRONG),
    "B's all of the first block": ("block_n * along_k,", "0 * along_k,", WRONG),
    "B's in another place": ("of_b + block_n * along_k,", "of_b + block_n * along_k + 1,", f"{WRONG}|{BEYOND}"),
    "B's where A's are": ("[place+{4 * (of_a + i)}]", "[place+{4 * i}]", IN_USE),
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
        '            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], $5;",\n',
        "",
        f"{HANG}|{EARLY}",
    ),
    "fewer bytes than come": ("_, [full], $5;", "_, [full], 16;", f"{EARLY}|{HANG}|{TOO_MANY}|{IN_USE}|next phase"),
    "more bytes than come": ("_, [full], $5;", "_, [full], 4096;", f"{HANG}|{IN_USE}"),
    "both copy the first scales": (
        "range(gl.where(sources[2] > 0, 0, begun))",
        "range(begun)",
        f"{TOO_MANY}|{IN_USE}|next phase",
    ),
    "neither copies the first scales": ("    if sources[2] > 0:", "    if sources[2] < 0:", HANG),
    "first scales of another tile": (
        "        pid_m * BLOCK_SIZE_M, pid_n * BLOCK_SIZE_N, epilogue, M",
        "        (1 - pid_m) * BLOCK_SIZE_M, pid_n * BLOCK_SIZE_N, epilogue, M",
        f"{WRONG}|engine does not take",
    ),
    "too few first scales": (
        "STAGES), barriers + STAGES * 8, barriers + 1024",
        "STAGES - 1), barriers + STAGES * 8, barriers + 1024",
        HANG,
    ),
}
LANES: Mistakes = {
    "scales of one K-block": ("+ block * rows_a", "+ 0 * rows_a", WRONG),
    "a row's scale is its neighbour's": ("add.u32 at, lane, {first};", "add.u32 at, lane, {first ^ 32};", WRONG),
    "the last row has no scale": ("rows_a - 1, 1, OF_A", "rows_a - 2, 1, OF_A", WRONG),
    "scales beyond the last row": ("rows_a - 1, 1, OF_A", "rows_a + 999, 1, OF_A", BEYOND),
    "blocks of columns in another place": ("gl.cdiv(K, 128), OF_B", "gl.cdiv(K, 128) + 1, OF_B", f"{WRONG}|{BEYOND}"),
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
    "as if they lay for the copy engine": ("(M % 4 == 0) & ", "", "engine does not take"),
}
# Of 132 rows the copy engine takes the scales, of 130 it does not.
MISTAKES = {
    **{("engine", name): mistake for name, mistake in (MULTIPLYING | ENGINE).items()},
    **{("lanes", name): mistake for name, mistake in (MULTIPLYING | LANES).items()},
}


@pytest.mark.parametrize(("way", "mistake"), MISTAKES)
def test_the_stand_in_notices(way: str, mistake: str) -> None:
    """A kernel with a mistake does not pass: two parts of rows, tiles across blocks, an odd number of K-blocks."""
    before, after, message = MISTAKES[way, mistake]
    rows = {"engine": 132, "lanes": 130}[way]
    problem, config = block_scaled(rows, 224, 640), made("warp_specialized", 128, 112, 1, 4, 2, 1, 2)
    (said,) = said_to(changed(problem, config, before, after), problem, config, 2, [4])
    assert re.search(message, said), said


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
    before, after, message = WARPGROUPS[mistake]
    problem, config = block_scaled(132, 112, 640), made("warp_specialized", 128, 112, 1, 8, 2, 1, 2)
    (said,) = said_to(changed(problem, config, before, after), problem, config, 2, [4])
    assert re.search(message, said), said


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


@pytest.mark.parametrize("rows", [72, 70], ids=["engine", "lanes"])
@pytest.mark.parametrize("mistake", TWOS)
def test_the_stand_in_notices_twos(mistake: str, rows: int) -> None:
    """Two buffers whose products are waited for at once, and an odd one."""
    before, after, message = TWOS[mistake]
    problem, config = block_scaled(rows, 96, 640), made("warp_specialized", 64, 48, 1, 4, 3, 1, 2)
    (said,) = said_to(changed(problem, config, before, after), problem, config, 2, [4])
    assert re.search(message, said), said


# The largest tiles of the space, and one of each kind.
COMPILED = [
    Config("warp_specialized", 256, 128, 128, 1, 1, 8, 3),
    Config("warp_specialized", 128, 192, 128, 1, 1, 8, 3),
    Config("warp_specialized", 128, 176, 128, 1, 1, 8, 3),
    Config("warp_specialized", 128, 128, 128, 1, 2, 8, 4),
    Config("warp_specialized", 64, 192, 128, 1, 1, 4, 4),
    Config("warp_specialized_swapped", 88, 128, 128, 1, 1, 8, 4),
    Config("warp_specialized_swapped", 16, 64, 256, 1, 1, 4, 4),
    Config("warp_specialized_swapped_cluster4", 64, 128, 128, 1, 1, 8, 4),
]


@pytest.mark.parametrize("config", spread(COMPILED, 2), ids=lambda config: config.name)
def test_sums_and_products_fit_a_threads_registers(tmp_path: Path, config: Config) -> None:
    """Nothing spills, ptxas takes no wgmma apart, and sums are complete before the next products are begun."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget(*triton_target(gpu_for_arch("sm_90")))
    problem = GemmProblem(4096, 4096, 4096, "a8w8_blockscale", "fp8e4m3fn", "fp8e4m3fn", "bf16")
    module = generate(problem, [config], "sm_90")
    (tmp_path / "module.py").write_text(module.text)
    (spec,) = specs_of(module, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
        patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
        source = ast_source(load_module(str(tmp_path / "module.py")), spec)
        kernel = compiler.compile(source, target, dict(spec.options))
        sass = kernel.asm["sass"]
    assert not re.search(r"\b(?:STL|LDL)\b", sass)
    # Four products of 32 along K for each part of the rows, waited for once.
    rows, width = sides(config)
    swapped = "swapped" in config.family
    parts = rows // (16 * config.num_warps)
    # Of a narrow tile of one warpgroup those of two K-blocks are waited for at once; then there is an odd one.
    twos = rows == 16 * config.num_warps == 64 and width <= (72 if swapped else 96)
    waits = [2, 1] if twos else [1] * parts
    assert len(re.findall(r"QGMMA\.64x\d+x32", sass)) == 4 * sum(waits)
    assert sass.count("WARPGROUP.DEPBAR") == len(waits)
    # One addition for each product of the part, all of them between two waits.
    between = re.split(r"wgmma\.wait_group\.sync\.aligned 0", kernel.asm["ptx"])[1:]
    assert [len(re.findall(r"fma\.rn\.f32", text)) for text in between] == [width // 2 * sets for sets in waits]
    # The loading warp's copies: of rows 32 at a time, and of blocks of columns or of parts of the rows, one after the
    # other where the copy engine takes those of rows, which the kernel begins with.
    copies, engine = -(-(width if swapped else rows) // 32) + 1, "cp.async.bulk.shared::cluster.global"
    of_b = parts if swapped else -(-(128 - math.gcd(width, 128) + width) // 128)
    assert kernel.asm["ptx"].count("cp.async.ca.shared.global") == 2 * (copies + of_b)
    assert kernel.asm["ptx"].count(engine) == 2
    assert not re.search(r"\bLDG\b", sass) or config.SPLIT_K > 1
