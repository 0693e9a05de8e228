"""The PTX that the kernels in Gluon hold, by its rules.

test_gluon_numerics.py runs the same text; here is what it says. test_gluon_compiled.py has what compilers make of it.
"""

from __future__ import annotations

import ast
import re

import pytest

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.family import FAMILIES, GLUON, sides
from genkern.kernels.generate import generate
from genkern.kernels.gluon_tile import buffer_bytes, landing_bytes, powers_of

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
    Config(f"warp_specialized_swapped_cluster{size}", width, rows, 64, num_warps=warps, num_stages=3)
    for size, rows, width, warps in (
        *((2, 64, 104, 4), (2, 128, 112, 4), (2, 256, 48, 8)),
        *((4, 64, 96, 4), (4, 128, 24, 8), (8, 128, 144, 4), (8, 64, 56, 4)),
    )
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


TEXTS = ["_products", "_await_last", "_await_all", "_begin", "_fill"]


def texts_of(config: Config) -> list[str]:
    """How the names end of the functions of a config's module whose texts are more than one instruction."""
    exchanges = [f"_exchange_{rank}" for rank in range(FAMILIES[config.family].cluster)] + ["expect_sums"]
    return TEXTS + exchanges * (config in CLUSTERS)


each_text = pytest.mark.parametrize(
    ("config", "suffix"),
    [(config, suffix) for config in CONFIGS for suffix in texts_of(config)],
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
    numbers = {"_begin": 5, "_fill": 7, "expect_sums": 2}
    if suffix in numbers:
        # A number that nobody needs, some that say where, and a descriptor for each copy.
        boxes = 1 + len(powers_of(sides(config)[1])) if suffix in ("_begin", "_fill") else 0
        assert found == ["=r", *["r"] * numbers[suffix], *["l"] * boxes]
        assert len(ast.unparse(call.args[2]).split(", ")) == numbers[suffix] + boxes
        assert used == {*range(1 + numbers[suffix] + boxes)}
        assert (named["dtype"], named["pack"]) == ("gl.int32", "1")
        return
    exchanges = suffix.startswith("_exchange")
    others = {"_products": ("buffer", "full", "parity")}.get(suffix, ("released",))
    places = ("gathered", "landing") if exchanges else others
    chunks, halves = chunks_and_halves(config)
    each = 4 * halves
    registers = chunks * each
    assert named["pack"] == str(each)
    assert named["dtype"] == f"(gl.float32,) * {chunks}"
    wanted = ["=f"] * registers + [str(number) for number in range(registers)] + ["r"] * (len(places) * each)
    assert found == wanted
    assert ast.unparse(call.args[2]) == f"accs + ({', '.join(places)}{',' * (len(places) == 1)})"
    touched = range(registers) if suffix == "_products" or exchanges else ()
    assert used == {*touched, *(2 * registers + each * place for place in range(len(places)))}


@pytest.mark.parametrize(("suffix", "left"), [("_await_last", 1), ("_await_all", 0)])
@each_config
def test_waits_come_before_arrivals(config: Config, suffix: str, left: int) -> None:
    """One group stays in flight in the loop, none after it; only then one thread of each warp arrives, unless at 0."""
    lines = lines_of(asm_of(config, suffix))
    wait = lines.index(f"wgmma.wait_group.sync.aligned {left};")
    (arrival,) = (i for i, line in enumerate(lines) if "mbarrier.arrive" in line)
    chunks, halves = chunks_and_halves(config)
    address = f"${2 * chunks * 4 * halves}"
    assert wait < arrival
    between = " ".join(lines[wait:arrival])
    assert lines[arrival] == f"@arrives mbarrier.arrive.shared::cta.b64 _, [{address}];"
    assert "and.b32 thread, thread, 31; setp.eq.u32 arrives, thread, 0;" in between
    assert f"setp.ne.and.u32 arrives, {address}, 0, arrives;" in between


@each_config
def test_copies_begin_where_barriers_are_made(config: Config) -> None:
    """By the thread that elect.sync takes of the first warp, as barriers are made, and before any wait."""
    lines = lines_of(asm_of(config, "_begin"))
    first = lines.index("mov.u32 warp, %tid.x;")
    assert lines[first : first + 6] == [
        "mov.u32 warp, %tid.x;",
        "shfl.sync.idx.b32 warp, warp, 0, 31, -1;",
        "setp.ne.u32 one, warp, 0;",
        "@one bra filled;",
        "elect.sync _|one, -1;",
        "@!one bra filled;",
    ]
    assert lines[first + 6].startswith("mbarrier.arrive.expect_tx.")
    assert not any("try_wait" in line for line in lines)
    # The same in the text of make_barriers.
    making = generate(GemmProblem(256, 256, 512), [config], "sm_90").text
    assert re.search(
        r"%tid.x;.*\s+.*shfl.sync.*\s+.*setp.ne.u32 idle.*\s+.*bra made.*\s+.*elect.sync.*\s+.*bra made", making
    )


@each_config
def test_one_thread_waits_for_a_buffer_and_fills_it(config: Config) -> None:
    """The thread is chosen before the wait, in which its warp takes part; the others branch off then."""
    lines = lines_of(asm_of(config, "_fill"))
    branches = [at for at, line in enumerate(lines) if " bra " in line or line == "again:"]
    assert [lines[at] for at in branches] == ["again:", "@!done bra again;", "@!one bra filled;"]
    assert lines.index("elect.sync _|one, -1;") < branches[0]
    wait = "mbarrier.try_wait.parity.shared::cta.b64 done, [$1], $2;"
    tried = [wait, "or.pred done, done, idle;"] if config in CLUSTERS else [wait]
    assert lines[branches[0] + 1 : branches[1]] == tried
    assert lines[branches[2] + 1].startswith("mbarrier.arrive.expect_tx.")
    # Of a cluster's four helping warps the first one loads.
    idle = [line for line in lines if re.search(r"\b(idle|warp)\b", line) and not line.startswith(".reg")]
    chosen = [
        "mov.u32 warp, %tid.x;",
        "shfl.sync.idx.b32 warp, warp, 0, 31, -1;",
        "and.b32 warp, warp, 127;",
        "setp.ne.u32 idle, warp, 0;",
        "setp.eq.u32 done, warp, 0;",
        "or.pred done, done, idle;",
    ]
    assert [line for line in idle if not line.startswith("//")] == (chosen if config in CLUSTERS else [])
    assert ("and.pred one, one, done;" in lines) == (config in CLUSTERS)


@pytest.mark.parametrize(("suffix", "first"), [("_begin", 1), ("_fill", 3)])
@each_config
def test_copies_fill_a_buffer(config: Config, suffix: str, first: int) -> None:
    """The rows, then the columns that make up the width, side by side: as many bytes as the barrier awaits.

    Operands from `first` on are barrier, buffer, K, row and column. One thread alone comes there. The copies of the
    weights, and no others, have evict_first.
    """
    rows, width = sides(config)
    lines = lines_of(asm_of(config, suffix))
    full, buffer, k, row, column, box = (f"${first + i}" for i in range(6))
    begin = lines.index(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{full}], {buffer_bytes(rows, width)};")
    lines = lines[begin : lines.index("filled:")]
    assert not any(line.startswith("@") or " bra " in line for line in lines)
    (policy,) = (at for at, line in enumerate(lines) if line == "mov.b64 once, 0x12F0000000000000;")
    copies = [re.split(r"\s+", line, maxsplit=1) for line in lines if "cp.async.bulk.tensor" in line]
    assert policy < min(at for at, line in enumerate(lines) if line.endswith("], once;"))
    plain = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
    hints = (".L2::cache_hint", ", once"), ("", "")
    of_rows, of_columns = hints if FAMILIES[config.family].swaps_operands else hints[::-1]
    assert copies == [
        [plain + of_rows[0], f"[{buffer}], [{box}, {{{k}, {row}}}], [{full}]{of_rows[1]};"],
        *(
            [plain + of_columns[0], f"[place], [${int(box[1:]) + 1 + i}, {{{k}, line}}], [{full}]{of_columns[1]};"]
            for i in range(len(powers_of(width)))
        ),
    ]
    assert f"mov.u32 line, {column};" in lines
    steps = [line for line in lines if re.match(r"add.u32 (place|line)", line)]
    assert steps[0] == f"add.u32 place, {buffer}, {rows * 128};"
    wanted = [
        step
        for size in powers_of(width)[:-1]
        for step in (f"add.u32 line, line, {size};", f"add.u32 place, place, {size * 128};")
    ]
    assert steps[1:] == wanted


def sent_by(config: Config, rank: int) -> list[tuple[int, int, list[int]]]:
    """What a program of a cluster sends, in order: to which other one, to which place there, and which registers."""
    found = []
    target = barrier = -1
    for line in lines_of(asm_of(config, f"_exchange_{rank}")):
        if match := re.fullmatch(r"mapa.shared::cluster.u32 there, place, (\d);", line):
            target = int(match[1])
        elif match := re.fullmatch(r"mapa.shared::cluster.u32 barrier, \$\d+, (\d);", line):
            barrier = int(match[1])
        elif line.startswith("st.async"):
            match = re.search(r"\[there\+(\d+)\], \{(.*)\}, \[barrier\];$", line)
            assert match
            assert barrier == target
            found.append((target, int(match[1]), [int(name.strip(" $")) for name in match[2].split(",")]))
    return found


def added_by(config: Config, rank: int) -> list[tuple[int, list[int]]]:
    """What a program of a cluster adds, in order: from which place, and to which registers."""
    found: list[tuple[int, list[int]]] = []
    for line in lines_of(asm_of(config, f"_exchange_{rank}")):
        if match := re.fullmatch(r"ld.shared.v4.f32 \{x, y, z, w\}, \[place\+(\d+)\];", line):
            found.append((int(match[1]), []))
        elif match := re.fullmatch(r"add.f32 \$(\d+), \$(\d+), ([xyzw]);", line):
            assert match[1] == match[2]
            assert match[3] == "xyzw"[len(found[-1][1])]
            found[-1][1].append(int(match[1]))
    return found


@pytest.mark.parametrize("config", CLUSTERS, ids=lambda config: config.name)
def test_each_adds_what_others_send(config: Config) -> None:
    """A program adds to each register of its columns what every other one has sent from there, by their rank; once."""
    rows, width = sides(config)
    cluster = FAMILIES[config.family].cluster
    chunks, halves = chunks_and_halves(config)
    each, between = 4 * halves, config.num_warps * 32 * 16
    sent = [sent_by(config, rank) for rank in range(cluster)]
    for owner in range(cluster):
        first, last = (chunks * i // cluster * each for i in (owner, owner + 1))
        mine = [[number, number + 1, number + 2, number + 3] for number in range(first, last, 4)]
        arrived = {
            place: (rank, numbers) for rank in range(cluster) for to, place, numbers in sent[rank] if to == owner
        }
        added = added_by(config, owner)
        assert sorted(arrived) == [i * between for i in range((cluster - 1) * len(mine))]
        assert [arrived[place][1] for place, _ in added] == [numbers for _, numbers in added]
        others = [rank for rank in range(cluster) if rank != owner]
        assert [(arrived[place][0], numbers) for place, numbers in added] == [
            (rank, numbers) for rank in others for numbers in mine
        ]
        assert not any(to == owner for to, _, _ in sent[owner])
        assert len(arrived) * between <= landing_bytes(rows, width, cluster)
        waits = [line for line in lines_of(asm_of(config, f"_exchange_{owner}")) if "try_wait" in line]
        # Without .cluster a wait would say nothing of what other programs have sent.
        assert all(line.startswith("mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, ") for line in waits)
        assert len(waits) == (1 if mine else 0)
    assert sum(len(each) for each in sent) == (cluster - 1) * rows * width // (128 * config.num_warps)


def test_every_family_is_here() -> None:
    """A family in Gluon that is added has its PTX looked at too."""
    assert {config.family for config in CONFIGS} == set(GLUON)
