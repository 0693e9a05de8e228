"""What Triton and ptxas make of the kernels in Gluon, which only a compiler can tell."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from forms import RINGS
from long_tests import LONG, drawn, spread
from small_gemms import specs_of

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sides, together, traits_of
from genkern.kernels.contract.gluon_tile import buffer_bytes, landing_bytes, powers_of
from genkern.kernels.generate import generate
from genkern.kernels.source import ast_source, load_module

# Its ring leaves room for 64 columns of C, twice, which take turns.
IN_TURNS = Config("warp_specialized", 128, 256, 64, 1, 1, 8, 4, cluster="2x1")
COMPILED = [
    Config("warp_specialized", 128, 48, 64, 1, 1, 4, 3),
    Config("warp_specialized", 64, 256, 64, 1, 2, 4, 3),
    Config("warp_specialized", 8, 128, 128, 1, 1, 8, 5, swapped=1),
    Config("warp_specialized", 104, 64, 64, 1, 3, 4, 4, swapped=1),
    Config("warp_specialized", 112, 128, 64, 1, 1, 4, 3, cluster_k=2, swapped=1),
    Config("warp_specialized", 104, 64, 64, 1, 1, 4, 4, cluster_k=4, swapped=1),
    Config("warp_specialized", 24, 128, 64, 1, 1, 8, 4, cluster_k=2, swapped=1),
    Config("warp_specialized", 48, 128, 64, 1, 1, 8, 4, cluster_k=3, swapped=1),
    Config("warp_specialized", 40, 64, 128, 1, 1, 4, 4, cluster_k=5, swapped=1),
    Config("warp_specialized", 16, 64, 256, 1, 1, 4, 4, cluster_k=8, swapped=1),
    Config("warp_specialized", 128, 224, 64, 1, 1, 8, 3, cluster="2x1"),
    Config("warp_specialized", 256, 144, 64, 1, 1, 8, 3, cluster="1x2"),
    IN_TURNS,
    Config("warp_specialized", 152, 128, 64, 1, 1, 8, 3, cluster="2x1", swapped=1),
    Config("warp_specialized", 240, 128, 64, 1, 1, 8, 3, cluster="1x2", swapped=1),
]
CLUSTERS = [config for config in COMPILED if traits_of(config).cluster_k > 1]
SIDE_BY_SIDE = [config for config in COMPILED if traits_of(config).cluster != (1, 1)]
Compile = Callable[..., Any]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compiles the kernel of a config, once; or that of a text that is changed by these replacements."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget(*triton_target(gpu_for_arch("sm_90")))
    kept: dict[tuple[Any, ...], Any] = {}

    def compile_one(
        config: Config, *changes: tuple[str, str], row_major_a: bool = True, row_major_b: bool = False
    ) -> Any:
        key = config, row_major_a, row_major_b, *changes
        if key not in kept:
            folder = tmp_path_factory.mktemp("kernel")
            problem = GemmProblem(256, 256, 512, row_major_a=row_major_a, row_major_b=row_major_b, bias=True)
            module = generate(problem, [config], "sm_90")
            text = module.text
            for before, after in changes:
                assert before in text
                text = text.replace(before, after)
            (folder / "module.py").write_text(text)
            (spec,) = specs_of(module, config)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
                patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
                source = ast_source(load_module(str(folder / "module.py")), spec)
                kernel = compiler.compile(source, target, dict(spec.options))
                kept[key] = kernel, kernel.asm["sass"]
        return kept[key]

    return compile_one


# Every fourth one has upright and swapped tiles, and both kinds of clusters.
each_compiled = pytest.mark.parametrize("config", spread(COMPILED, 4), ids=lambda config: config.name)


def down_across(config: Config) -> tuple[int, int]:
    """Programs of a cluster with tiles of their own, along the rows of wgmma and along the columns."""
    along_m, along_n = traits_of(config).cluster
    return (along_n, along_m) if traits_of(config).swapped else (along_m, along_n)


def boxes_of(config: Config) -> list[int]:
    """Rows, and columns by powers of two, that one program loads of a K-block."""
    (rows, width), (down, across) = sides(config), down_across(config)
    return [rows // across, *powers_of(width // down)]


def first_boxes(config: Config) -> int:
    """Copies of the first K-blocks, which a program loads alone: of all parts."""
    down, across = down_across(config)
    return across + down * (len(boxes_of(config)) - 1)


def ring_bytes(config: Config) -> int:
    """All that a kernel uses by address: buffers, barriers, and room for the sums of other programs."""
    others = landing_bytes(*sides(config), traits_of(config).cluster_k)
    return config.num_stages * together(config) * buffer_bytes(*sides(config)) + 1024 + others


def places_in_shared(ptx: str) -> dict[str, int]:
    """How far from the first byte of shared memory a register points, but for what hangs on the thread."""
    places: dict[str, int] = {}
    steps = re.findall(r"(?:mov|add|sub)\.[bsu]32\s+(%r\d+), (global_smem|%r\d+)(?:, (\d+|%r\d+))?;", ptx)
    # What is added to hangs on the thread.
    steps += [(name, base, "") for name, base in re.findall(r"mad\.lo\.s32\s+(%r\d+), %r\d+, -?\d+, (%r\d+);", ptx)]
    for _ in range(6):
        known = {"global_smem": 0, **places}
        places |= {
            name: known[base] + (int(more) if more.isdigit() else 0) for name, base, more in steps if base in known
        }
    return places


@each_compiled
def test_the_ring_lies_first(compiled: Compile, config: Config) -> None:
    """All that the compiler itself puts into shared memory lies behind the ring, whose PTX knows its own place only.

    Tiles of C come first there, the largest of them where the ring ends.
    """
    kernel, _ = compiled(config)
    ptx = kernel.asm["ptx"]
    places = places_in_shared(ptx)
    tiles = re.findall(r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta\S* \[[^]]*\], \[(%r\d+)\]", ptx)
    first, *others = sorted({places[name] for name in tiles})
    assert first == ring_bytes(config)
    # Each program of a cluster stores its share of the columns.
    cluster = traits_of(config).cluster_k
    rows, width = sides(config)
    shares = [8 * (width // 8 * (i + 1) // cluster - width // 8 * i // cluster) for i in range(cluster)]
    columns = [64, 64] if config == IN_TURNS else [size for share in shares for size in powers_of(share)]
    sizes = sorted((rows * size * 2 for size in columns), reverse=True)
    assert [*others, first + sum(sizes)] == [first + sum(sizes[: i + 1]) for i in range(len(sizes))]
    for offset in re.findall(r"global_smem\+(\d+)\]", ptx):
        assert int(offset) >= first + sum(sizes)
    assert kernel.metadata.shared >= first + sum(sizes)


@each_compiled
def test_copies_bring_whole_boxes(compiled: Compile, config: Config) -> None:
    """PTX that Triton does not see waits for as many bytes as a box of the operands has, and is swizzled over 128."""
    kernel, _ = compiled(config)
    boxes = kernel.metadata.tensordesc_meta[: len(boxes_of(config))]
    assert [meta["block_size"] for meta in boxes] == [[size, 64] for size in boxes_of(config)]
    # CU_TENSOR_MAP_SWIZZLE_128B.
    assert {meta["swizzle"] for meta in boxes} == {3}


@each_compiled
def test_one_thread_drives_the_copy_engine(compiled: Compile, config: Config) -> None:
    """ptxas knows that one thread copies: no loop over threads, and no fence from one copy of a buffer to the next.

    Nor a branch round up to three copies where one warp helps: addresses are worked out while it waits.
    Loops over threads took from 25 to 60 % of the speed (H200).
    """
    _, sass = compiled(config)
    boxes = len(boxes_of(config))
    assert sorted(copies_of(sass)) == sorted([boxes, first_boxes(config)])
    assert "BRA.U.ANY" not in sass
    # But for programs side by side from Triton 3.9 on, the loop that fills a buffer again comes before the one of the
    # first copies, which branches itself.
    again = re.match(rf"(?:[\s\S]*?UTMALDG){{{boxes}}}", sass)
    assert again
    branched = re.search(r"BSSY(?:(?!BSYNC)[\s\S])*UTMALDG", again[0]) is not None
    # Elsewhere it may: what ptxas does there hangs on its release.
    assert not branched or config in (*CLUSTERS, *SIDE_BY_SIDE) or boxes > 3


@each_compiled
def test_weights_are_read_once(compiled: Compile, config: Config) -> None:
    """The copies of the weights tell L2 what to do with them, in both loops that fill buffers, and no others do."""
    _, sass = compiled(config)
    copies = re.findall(r"UTMALDG\.2D(?:\.MULTICAST)? \[\w+\], \[\w+\](?:, UR\d+)?(, desc\[UR\d+\])?;", sass)
    # The first time, and whenever a buffer is free.
    rows, columns = down_across(config)[1] + 1, (len(boxes_of(config)) - 1) * (down_across(config)[0] + 1)
    weights = rows if traits_of(config).swapped else columns
    assert (len(copies), len([each for each in copies if each])) == (rows + columns, weights)


# One with tiles below each other, one with tiles beside each other.
@pytest.mark.parametrize(
    "config", SIDE_BY_SIDE if LONG else [IN_TURNS, SIDE_BY_SIDE[-1]], ids=lambda config: config.name
)
def test_what_tiles_share_is_multicast(compiled: Compile, config: Config) -> None:
    """Rows go to several programs where tiles lie beside each other, columns where they lie one below the other.

    A buffer that is released is said so in the other programs without a fence of the whole GPU.
    """
    _, sass = compiled(config)
    down, across = down_across(config)
    _, *columns = boxes_of(config)
    assert sass.count("UTMALDG.2D.MULTICAST") == (across > 1) + len(columns) * (down > 1)
    assert "MEMBAR.ALL.GPU" not in sass


TURNED = [
    (config, layout)
    for config in (COMPILED[0], COMPILED[3], COMPILED[4], *SIDE_BY_SIDE[::4])
    for layout in ((False, False), (True, True), (False, True))
]


@pytest.mark.parametrize(("config", "layout"), drawn(TURNED, 2), ids=lambda value: getattr(value, "name", str(value)))
def test_turned_operands_come_in_boxes_of_64(compiled: Compile, config: Config, layout: tuple[bool, bool]) -> None:
    """What does not run along K comes in boxes of 64 by 64, is turned by wgmma, and costs no register."""
    kernel, sass = compiled(config, row_major_a=layout[0], row_major_b=layout[1])
    turned = (layout[1], not layout[0]) if traits_of(config).swapped else (not layout[0], layout[1])
    rows, *columns = boxes_of(config)
    boxes = [64 if turned[0] else rows, *([64] if turned[1] else columns)]
    found = kernel.metadata.tensordesc_meta[: len(boxes)]
    assert [meta["block_size"] for meta in found] == [[size, 64] for size in boxes]
    assert {meta["swizzle"] for meta in found} == {3}
    flags = f", 1, 1, {int(turned[0])}, {int(turned[1])};"
    ptx = kernel.asm["ptx"]
    assert ptx.count(flags) == ptx.count("wgmma.mma_async") > 0
    assert "BRA.U.ANY" not in sass
    assert not re.search(r"\b(?:STL|LDL)\b", sass)


def copies_of(sass: str) -> list[int]:
    """How many copies come one after the other, with neither a fence between them nor a branch or a place for one."""
    steps = re.findall(r"UTMALDG|MEMBAR|FENCE|\bBRA\b|SYNCS\.PHASECHK|^\.L_\w+:", sass, re.MULTILINE)
    runs = re.findall(r"(?:UTMALDG ?)+", " ".join(steps))
    return [len(run.split()) for run in runs]


@pytest.mark.parametrize("config", drawn([COMPILED[0], CLUSTERS[0]], 1), ids=lambda config: traits_of(config).stem)
def test_loops_over_threads_are_noticed(compiled: Compile, config: Config) -> None:
    """A thread that is chosen by its number is one that ptxas takes for several."""
    by_number = "{ .reg .b32 lane; mov.u32 lane, %tid.x; and.b32 lane, lane, 31; setp.eq.u32 one, lane, 0; }"
    _, sass = compiled(config, ("elect.sync _|one, -1;", by_number))
    boxes = len(boxes_of(config))
    assert "BRA.U.ANY" in sass
    assert copies_of(sass) != [boxes, boxes]


@each_compiled
def test_warpgroups_get_the_registers_that_they_ask_for(compiled: Compile, config: Config) -> None:
    """Whoever asks for more registers gets them when the others have given up theirs: setmaxnreg.inc waits until then.

    Registers are counted for a thread of each warpgroup; together these have no more than the program began with. That
    is so before and after warp_specialize, where the helping warps keep what is left to them, and during it.
    """
    kernel, _ = compiled(config)
    ptx = kernel.asm["ptx"]
    warpgroups = int(re.findall(r"\.reqntid (\d+)", ptx)[0]) // 128
    began = int(re.findall(r"\.maxnreg (\d+)", ptx)[0])
    assert warpgroups * began * 128 <= 65536
    values = {int(value) for value in re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32\s+(\d+);", ptx)}
    helping = 40 if config in (*CLUSTERS, *SIDE_BY_SIDE) else 32
    multiplying = config.num_warps // 4
    assert multiplying + 1 == warpgroups
    # What is left for the multiplying warps, as Triton deals it out.
    least = (warpgroups * began - helping) // multiplying // 8 * 8
    during = min(256, least)
    before = max(values)
    idle = min([value for value in values if value not in (during, before, helping)], default=before)
    assert values == {helping, during, before, idle}
    assert multiplying * during + helping <= warpgroups * began
    assert multiplying * before + idle <= warpgroups * began


@pytest.mark.parametrize(
    "config",
    [config for config in spread(COMPILED, 4) if config in (*CLUSTERS, *SIDE_BY_SIDE)],
    ids=lambda config: config.name,
)
def test_clusters_meet_once(compiled: Compile, config: Config) -> None:
    """Warps arrive where they begin, and wait before sums are sent; Triton adds none of its own."""
    kernel, _ = compiled(config)
    found = re.findall(r"barrier\.cluster\.(\w+)\.(?:relaxed|acquire)\.", kernel.asm["ptx"])
    assert sorted(found) == ["arrive", "arrive", "wait", "wait"]
    assert kernel.asm["ptx"].count("barrier.cluster.") == 4
    # Where they share K, a program sends, 16 bytes of each thread at once, what the others store: of each sum there is
    # one that is kept.
    sums = sides(config)[0] * sides(config)[1] * (traits_of(config).cluster_k - 1)
    assert kernel.asm["ptx"].count("st.async") == sums // (128 * config.num_warps)


def test_every_family_is_here() -> None:
    """A family in Gluon that is added is compiled too."""
    assert {traits_of(config).stem for config in COMPILED} == set(RINGS)
