"""The PTX that the kernels in Gluon hold, by its rules; and where the compiler puts the memory that it is written for.

tests/test_gluon_numerics.py runs the same text; here is what it says, and what only a compiler can tell.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from small_gemms import make_module, specs_of

from genkern.compiler import ast_source
from genkern.config import Config
from genkern.family import FAMILIES, GLUON, ring_of, sides
from genkern.generate import generate
from genkern.gpus import gpu_for_arch, triton_target
from genkern.problem import GemmProblem

CONFIGS = [
    Config("warp_specialized", rows, width, 64, num_warps=warps, num_stages=3)
    for rows, warps in ((64, 4), (128, 4), (128, 8), (256, 8))
    for width in (16, 48, 176, 256)
]
CONFIGS += [
    Config("warp_specialized_swapped", width, rows, 64, num_warps=warps, num_stages=3)
    for rows, warps in ((64, 4), (128, 4), (128, 8))
    for width in (8, 24, 104, 248)
]
CLUSTERS = [
    Config(f"warp_specialized_cluster{size}", rows, width, 64, num_warps=warps, num_stages=3)
    for size, rows, width, warps in ((2, 128, 112, 4), (4, 64, 96, 4), (2, 256, 48, 8))
]
CLUSTERS += [
    Config(f"warp_specialized_swapped_cluster{size}", width, rows, 64, num_warps=warps, num_stages=3)
    for size, rows, width, warps in ((2, 64, 104, 4), (4, 128, 24, 8))
]
CONFIGS += CLUSTERS
each_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)


def asm_of(config: Config, suffix: str, dtype: str = "fp16") -> ast.Call:
    """The call of gl.inline_asm_elementwise in the function of a config's module whose name ends so."""
    problem = GemmProblem(256, 256, 512, dtype_a=dtype, dtype_b=dtype, dtype_c=dtype)
    tree = ast.parse(generate(problem, [config], "sm_90").text)
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.endswith(suffix))
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    (call,) = (node for node in calls if ast.unparse(node.func) == "gl.inline_asm_elementwise")
    return call


def lines_of(call: ast.Call) -> list[str]:
    """The text's lines between its braces."""
    text = ast.literal_eval(call.args[0]).strip()
    assert text.startswith("{")
    assert text.endswith("}")
    return [line.strip() for line in text[1:-1].strip().splitlines()]


def chunks_and_halves(config: Config) -> tuple[int, int]:
    """Tensors of 8 columns that an accumulator has, and times 64 rows that each warpgroup has."""
    rows, width = sides(config)
    return width // 8, rows // (16 * config.num_warps)


@each_config
def test_products_are_those_of_the_tile(config: Config) -> None:
    """Four steps of 16 along K, in each as many products as a warpgroup has 64 rows, each as wide as the tile."""
    chunks, halves = chunks_and_halves(config)
    products = [line for line in lines_of(asm_of(config, "_products")) if line.startswith("wgmma.mma_async")]
    assert len(products) == 4 * halves
    assert all(line.startswith(f"wgmma.mma_async.sync.aligned.m64n{8 * chunks}k16.f32.f16.f16 ") for line in products)


@pytest.mark.parametrize(("dtype", "ptx"), [("fp16", "f16.f16"), ("bf16", "bf16.bf16")])
def test_products_are_of_the_operands_type(dtype: str, ptx: str) -> None:
    """Products of both 16-bit types are summed in float32."""
    lines = lines_of(asm_of(CONFIGS[0], "_products", dtype))
    products = [line.split()[0] for line in lines if line.startswith("wgmma.mma_async")]
    assert [name.split("k16.")[1] for name in products] == [f"f32.{ptx}"] * 4


@each_config
def test_products_name_every_register_in_order(config: Config) -> None:
    """Register r of half h of chunk j is operand j * each + h * 4 + r: a thread holds `each` elements of a chunk."""
    chunks, halves = chunks_and_halves(config)
    each = 4 * halves
    products = [line for line in lines_of(asm_of(config, "_products")) if line.startswith("wgmma.mma_async")]
    for number, line in enumerate(products):
        match = re.search(r"\{(.*?)\},\s+rows, columns, more, 1, 1, 0, 0;$", line)
        assert match
        half = number % halves
        wanted = [f"${j * each + half * 4 + r}" for j in range(chunks) for r in range(4)]
        assert re.split(r",\s+", match[1].strip()) == wanted
    named = re.findall(r"\$(\d+)", " ".join(products[:halves]))
    assert sorted(map(int, named)) == list(range(chunks * each))


@each_config
def test_descriptors_walk_over_the_buffer(config: Config) -> None:
    """In units of 16 bytes: 2 on along K after each step but the last; in each step to the second half and back."""
    _, halves = chunks_and_halves(config)
    half = config.num_warps * 128
    lines = lines_of(asm_of(config, "_products"))
    steps = [line for line in lines if re.match(r"wgmma.mma_async|(add|sub).s64", line)]
    position = {"rows": 0, "columns": 0}
    found = []
    for line in steps:
        if line.startswith("wgmma"):
            found.append((position["rows"], position["columns"]))
            continue
        match = re.fullmatch(r"(add|sub).s64 (\w+), (\w+), (\d+);", line)
        assert match
        assert match[2] == match[3]
        position[match[2]] += int(match[4]) * (1 if match[1] == "add" else -1)
    assert found == [(2 * k + h * half, 2 * k) for k in range(4) for h in range(halves)]


@each_config
def test_products_are_fenced_and_committed(config: Config) -> None:
    """One wgmma.fence before the products, one commit after them, and nothing else of wgmma's."""
    lines = lines_of(asm_of(config, "_products"))
    wgmma = [line.split()[0].split(".")[1].rstrip(";") for line in lines if line.startswith("wgmma")]
    assert wgmma == ["fence", *["mma_async"] * (len(wgmma) - 2), "commit_group"]
    assert lines[-1] == "wgmma.commit_group.sync.aligned;"


@each_config
def test_columns_come_after_rows(config: Config) -> None:
    """Of a buffer the rows' 128 bytes each come first; the second warpgroup's rows are 64 on, which is 2^13 bytes."""
    rows, _ = sides(config)
    lines = lines_of(asm_of(config, "_products"))
    (column,) = (line for line in lines if line.startswith("add.u32 column"))
    assert column.endswith(f", {rows * 128};")
    assert ("shl.b32 row, row, 13;" in lines) == (config.num_warps == 8)


@pytest.mark.parametrize("suffix", ["_products", "_await_last", "_await_all"])
@each_config
def test_one_instruction_is_one_line(config: Config, suffix: str) -> None:
    """Since Triton 3.9 writes debug information between lines."""
    for line in lines_of(asm_of(config, suffix)):
        assert re.fullmatch(r"//.*|[^;]+;", line), line


@pytest.mark.parametrize("suffix", ["_products", "_await_last", "_await_all"])
@each_config
def test_constraints_fit_the_arguments(config: Config, suffix: str) -> None:
    """Every register comes in where it goes out, then the address, once for each element; the text names no others."""
    chunks, halves = chunks_and_halves(config)
    each = 4 * halves
    registers = chunks * each
    call = asm_of(config, suffix)
    named = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    assert named["pack"] == str(each)
    assert named["is_pure"] == "False"
    assert named["dtype"] == f"(gl.float32,) * {chunks}"
    wanted = ["=f"] * registers + [str(number) for number in range(registers)] + ["r"] * each
    assert ast.literal_eval(call.args[1]).split(",") == wanted
    assert ast.unparse(call.args[2]) == f"accs + ({'buffer' if suffix == '_products' else 'released'},)"
    used = {int(number) for number in re.findall(r"\$(\d+)", " ".join(lines_of(call)))}
    assert used == {*(range(registers) if suffix == "_products" else ()), 2 * registers}


@pytest.mark.parametrize(("suffix", "left"), [("_await_last", 1), ("_await_all", 0)])
@each_config
def test_waits_come_before_arrivals(config: Config, suffix: str, left: int) -> None:
    """One group may stay in flight in the loop, none after it; only then one thread of 128 arrives, unless at 0."""
    lines = lines_of(asm_of(config, suffix))
    wait = lines.index(f"wgmma.wait_group.sync.aligned {left};")
    (arrival,) = (i for i, line in enumerate(lines) if "mbarrier.arrive" in line)
    cluster = FAMILIES[config.family].cluster
    chunks, halves = chunks_and_halves(config)
    address = f"${2 * chunks * 4 * halves}"
    assert wait < arrival
    between = " ".join(lines[wait:arrival])
    if cluster > 1:
        # A thread for each program.
        assert lines[arrival] == "@arrives mbarrier.arrive.shared::cluster.b64 _, [there];"
        assert f"setp.lt.u32 arrives, thread, {cluster};" in between
        assert f"mapa.shared::cluster.u32 there, {address}, thread;" in between
    else:
        assert lines[arrival] == f"@arrives mbarrier.arrive.shared::cta.b64 _, [{address}];"
        assert "and.b32 thread, thread, 127; setp.eq.u32 arrives, thread, 0;" in between
    assert f"setp.ne.and.u32 arrives, {address}, 0, arrives;" in between


def offsets_in_shared(text: str, pattern: str) -> set[int]:
    """Offsets from the first byte of shared memory at which PTX has an instruction that matches, where it says so."""
    known = dict.fromkeys(re.findall(r"mov\.b32\s+(%r\d+), global_smem;", text), 0)
    found = set()
    for line in text.splitlines():
        if added := re.match(r"\s*add\.s32\s+(%r\d+), (%r\d+), (\d+);", line):
            if added[2] in known:
                known[added[1]] = known[added[2]] + int(added[3])
        elif (match := re.search(pattern + r"[^[]*\[(%r\d+)\]", line)) and match[1] in known:
            found.add(known[match[1]])
    return found


@pytest.mark.parametrize(
    "config",
    [
        Config("warp_specialized", 128, 48, 64, 1, 1, 4, 3),
        Config("warp_specialized", 64, 256, 64, 1, 2, 4, 3),
        Config("warp_specialized_swapped", 8, 128, 64, 1, 1, 8, 5),
        Config("warp_specialized_swapped", 104, 64, 64, 1, 1, 4, 4),
        Config("warp_specialized_cluster2", 128, 112, 64, 1, 1, 4, 4),
        Config("warp_specialized_swapped_cluster4", 104, 64, 64, 1, 1, 4, 4),
    ],
    ids=lambda config: config.name,
)
def test_the_ring_lies_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    """The compiler puts the ring at shared memory's first byte, where the PTX looks for it and for its barriers."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    problem = GemmProblem(256, 256, 512, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16")
    module, loaded = make_module(tmp_path, problem, [config], "sm_90")
    (spec,) = specs_of(module, config)
    kernel = compiler.compile(
        ast_source(loaded, spec), target(*triton_target(gpu_for_arch("sm_90"))), dict(spec.options)
    )
    ring = ring_of(*sides(config), cluster=FAMILIES[config.family].cluster)
    barriers = config.num_stages * ring.bytes_per_buffer
    found = offsets_in_shared(kernel.asm["ptx"], r"mbarrier\.init\.")
    assert found == {barriers + 8 * number for number in range(2 * config.num_stages)}
    # One copy brings a whole box of the operands: PTX that Triton does not see waits for as many bytes.
    boxes = [(name, kind) for name, kind in spec.signature if kind.startswith("tensordesc")]
    for (name, kind), meta in zip(boxes, kernel.metadata.tensordesc_meta, strict=True):
        if not name.startswith("c_"):
            assert meta["block_size"] == [int(size) for size in re.findall(r"\d+", kind.partition("[")[2])]
    if config.SPLIT_K == 1 and FAMILIES[config.family].cluster == 1:
        # The first copies, to places that do not hang on the step.
        first = {0, *(barriers - ring.bytes_per_buffer + 128 * row for row in (0, ring.rows))}
        assert first <= offsets_in_shared(kernel.asm["ptx"], r"cp\.async\.bulk\.tensor\.2d\.shared")


def test_clusters_take_a_bias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its layout comes from that of the sums, whose lists must be what the compiler takes for lists."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    for config in (CLUSTERS[0], CLUSTERS[-1]):
        folder = tmp_path / config.family
        folder.mkdir()
        module, loaded = make_module(folder, GemmProblem(256, 256, 512, bias=True), [config], "sm_90")
        (spec,) = specs_of(module, config)
        kernel = compiler.compile(
            ast_source(loaded, spec), target(*triton_target(gpu_for_arch("sm_90"))), dict(spec.options)
        )
        assert "multicast::cluster" in kernel.asm["ptx"]


def test_every_family_is_here() -> None:
    """A family in Gluon that is added has its PTX looked at too."""
    assert {config.family for config in CONFIGS} == set(GLUON)
