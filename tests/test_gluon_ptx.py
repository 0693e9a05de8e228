"""The PTX that the kernels in Gluon hold, by its rules.

tests/test_gluon_numerics.py runs the same text; here is what it says. tests/test_gluon_compiled.py has what compilers
make of it.
"""

from __future__ import annotations

import ast
import re

import pytest

from genkern.config import Config
from genkern.family import FAMILIES, GLUON, buffer_bytes, landing_bytes, powers_of, sides
from genkern.generate import generate
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
    for size, rows, width, warps in ((2, 128, 112, 4), (4, 64, 96, 4), (2, 256, 48, 8), (8, 128, 32, 8))
]
CLUSTERS += [
    Config(f"warp_specialized_swapped_cluster{size}", width, rows, 64, num_warps=warps, num_stages=3)
    for size, rows, width, warps in ((2, 64, 104, 4), (4, 128, 24, 8), (8, 64, 56, 4))
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


@each_config
def test_products_come_after_their_buffer(config: Config) -> None:
    """All threads try until the buffer's barrier says that it is full, before anything of wgmma's."""
    chunks, halves = chunks_and_halves(config)
    lines = lines_of(asm_of(config, "_products"))
    registers, each = chunks * 4 * halves, 4 * halves
    again = lines.index("again:")
    full, parity = f"${2 * registers + each}", f"${2 * registers + 2 * each}"
    assert lines[again + 1] == f"mbarrier.try_wait.parity.shared::cta.b64 done, [{full}], {parity};"
    assert lines[again + 2] == "@!done bra again;"
    assert again + 2 < lines.index("wgmma.fence.sync.aligned;")


TEXTS = ["_products", "_await_last", "_await_all", "_fill"]
each_text = pytest.mark.parametrize(
    ("config", "suffix"),
    [(config, suffix) for config in CONFIGS for suffix in TEXTS + ["_gather"] * (config in CLUSTERS)],
    ids=lambda value: getattr(value, "name", value),
)


@each_text
def test_one_instruction_is_one_line(config: Config, suffix: str) -> None:
    """Since Triton 3.9 writes debug information between lines."""
    for line in lines_of(asm_of(config, suffix)):
        assert re.fullmatch(r"//.*|\w+:|[^;]+;", line), line


@each_text
def test_constraints_fit_the_arguments(config: Config, suffix: str) -> None:
    """Every register comes in where it goes out, then each number, once for each element; the text names no others."""
    call = asm_of(config, suffix)
    named = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    assert named["is_pure"] == "False"
    found = ast.literal_eval(call.args[1]).split(",")
    used = {int(number) for number in re.findall(r"\$(\d+)", " ".join(lines_of(call)))}
    if suffix == "_fill":
        # A number that nobody needs, eight that say where, and a descriptor for each copy.
        boxes = 1 + len(powers_of(sides(config)[1]))
        assert found == ["=r", *["r"] * 8, *["l"] * boxes]
        assert len(ast.unparse(call.args[2]).split(", ")) == 8 + boxes
        assert used == {*range(9 + boxes)}
        assert (named["dtype"], named["pack"]) == ("gl.int32", "1")
        return
    numbers = {"_products": ("buffer", "full", "parity"), "_gather": ("gathered", "landing")}.get(suffix, ("released",))
    chunks, halves = chunks_and_halves(config)
    each = 4 * halves
    registers = chunks * each
    assert named["pack"] == str(each)
    assert named["dtype"] == f"(gl.float32,) * {chunks}"
    wanted = ["=f"] * registers + [str(number) for number in range(registers)] + ["r"] * (len(numbers) * each)
    assert found == wanted
    assert ast.unparse(call.args[2]) == f"accs + ({', '.join(numbers)}{',' * (len(numbers) == 1)})"
    touched = range(registers) if suffix in ("_products", "_gather") else ()
    assert used == {*touched, *(2 * registers + each * place for place in range(len(numbers)))}


@pytest.mark.parametrize(("suffix", "left"), [("_await_last", 1), ("_await_all", 0)])
@each_config
def test_waits_come_before_arrivals(config: Config, suffix: str, left: int) -> None:
    """One group may stay in flight in the loop, none after it; only then one thread of 128 arrives, unless at 0."""
    lines = lines_of(asm_of(config, suffix))
    wait = lines.index(f"wgmma.wait_group.sync.aligned {left};")
    (arrival,) = (i for i, line in enumerate(lines) if "mbarrier.arrive" in line)
    chunks, halves = chunks_and_halves(config)
    address = f"${2 * chunks * 4 * halves}"
    assert wait < arrival
    between = " ".join(lines[wait:arrival])
    assert lines[arrival] == f"@arrives mbarrier.arrive.shared::cta.b64 _, [{address}];"
    assert "and.b32 thread, thread, 127; setp.eq.u32 arrives, thread, 0;" in between
    assert f"setp.ne.and.u32 arrives, {address}, 0, arrives;" in between


@each_config
def test_copies_fill_a_buffer(config: Config) -> None:
    """By one thread that was chosen before the wait, in no branch: the rows, then the columns that make up the width.

    They go side by side, and are as many bytes as the barrier awaits.
    """
    rows, width = sides(config)
    lines = lines_of(asm_of(config, "_fill"))
    chosen, waited = lines.index("elect.sync _|one, -1;"), lines.index("@!done bra again;")
    assert chosen < waited < next(i for i, line in enumerate(lines) if line.startswith("@one "))
    assert [line for line in lines if " bra " in line] == ["@!done bra again;"]
    assert f"@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [$4], {buffer_bytes(rows, width)};" in lines
    copies = [re.split(r"\s+", line, maxsplit=2)[2] for line in lines if "cp.async.bulk.tensor" in line]
    columns = [f"[place], [${10 + i}, {{$6, line}}], [$4];" for i in range(len(powers_of(width)))]
    assert copies == ["[$5], [$9, {$6, $7}], [$4];", *columns]
    steps = [line for line in lines if re.match(r"add.u32 (place|line)", line)]
    assert steps[0] == f"add.u32 place, $5, {rows * 128};"
    wanted = [
        step
        for size in powers_of(width)[:-1]
        for step in (f"add.u32 line, line, {size};", f"add.u32 place, place, {size * 128};")
    ]
    assert steps[1:] == wanted


@pytest.mark.parametrize("config", CLUSTERS, ids=lambda config: config.name)
def test_sums_are_sent_and_added_once(config: Config) -> None:
    """Each register once, four to a transfer, to where the first program finds it, and adds it, for each other one."""
    rows, width = sides(config)
    others = FAMILIES[config.family].cluster - 1
    registers = rows * width // (32 * config.num_warps)
    between = config.num_warps * 32 * 16
    lines = lines_of(asm_of(config, "_gather"))
    sent = [re.findall(r"[+$](\d+)", line) for line in lines if line.startswith("st.async")]
    assert sent == [[str(i * between), *map(str, range(4 * i, 4 * i + 4))] for i in range(registers // 4)]
    found = [re.findall(r"\+(\d+)\]", line) for line in lines if line.startswith("ld.shared")]
    assert found == [[str(i * between)] for i in range(others * registers // 4)]
    added = [line for line in lines if line.startswith("add.f32")]
    names = "xyzw"
    assert added == [f"add.f32 ${i}, ${i}, {names[i % 4]};" for _ in range(others) for i in range(registers)]
    assert others * registers // 4 * between == landing_bytes(rows, width, others + 1)


def test_every_family_is_here() -> None:
    """A family in Gluon that is added has its PTX looked at too."""
    assert {config.family for config in CONFIGS} == set(GLUON)
