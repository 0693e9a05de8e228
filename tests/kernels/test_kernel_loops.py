"""Loops of generated kernels hold nothing that Triton 3.6 or 3.7 compile to something else.

They remove what a loop carries round and nobody needs, and do not count as a need the bounds of a loop inside it:
https://github.com/triton-lang/triton/pull/9036. Such bounds are then made of the value from before the outer loop.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import replace

import pytest
from forms import CUTE_FORMS, FORMS, REALIGNED, RINGS, made
from long_tests import drawn
from small_gemms import GEMV, WARP_SPECIALIZED, WARP_SPECIALIZED_SPLIT, taking

from genkern.gemm.config import Config, has_amd_options
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.kernels.generate import generate

# What a value depends on: variables that a loop carries round, each with the line of that loop.
Carried = frozenset[tuple[str, int]]
NONE: Carried = frozenset()
PROBLEM = GemmProblem(256, 512, 1024, bias=True, activation="gelu")
CLUSTERS = [made(name, 64, 64, 64, num_warps=4, num_stages=3) for name in RINGS if FORMS[name].in_clusters]
REALIGNING = [made(name, 64, 64, 64, num_stages=3) for name in REALIGNED]
# For weights of fewer bits than A alone.
FEWER_BITS = (GemmProblem(8, 512, 1024, "a16w4", dtype_b="int8"), Config("skinny_dot", 8, 16, 512, num_stages=1))

# Places of parameters: what bounds of loops depend on, what effects do, and what is returned does.
Places = tuple[set[int], ...]


def assigned(statements: list[ast.stmt]) -> set[str]:
    """Names that these statements, and those in them, assign."""
    nodes = (node for statement in statements for node in ast.walk(statement))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


class Loops(ast.NodeVisitor):
    """Follows what loops carry through one function.

    `bounds` is what bounds of loops inside depend on, `needs` what stores, barriers and other effects do, `returned`
    what comes back. `known` has the same for the parameters of other functions, by place. A loop's own variable is not
    made of its bounds here, as Triton has it.
    """

    def __init__(self, function: ast.FunctionDef, known: dict[str, Places], values: dict[str, Carried]) -> None:
        self.bounds: dict[tuple[str, int], int] = {}
        self.needs: set[tuple[str, int]] = set()
        self.returned: set[tuple[str, int]] = set()
        self.known = known
        self.values = dict(values)
        self.defined = {argument.arg for argument in function.args.args}
        for statement in function.body:
            self.visit(statement)

    def of(self, node: ast.AST) -> Carried:
        if isinstance(node, ast.Name):
            return self.values.get(node.id, NONE)
        parts: Iterable[ast.AST] = ast.iter_child_nodes(node)
        if isinstance(node, ast.Call) and (places := self.known.get(ast.unparse(node.func))):
            parts = [argument for place, argument in enumerate(node.args) if place in places[2]]
        return NONE.union(*map(self.of, parts))

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.visit(node.value)
            self.returned |= self.of(node.value)

    def bound(self, node: ast.AST) -> None:
        self.bounds |= {each: getattr(node, "lineno", 0) for each in self.of(node)}

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        if name in self.known:
            for place, argument in enumerate(node.args):
                if place in self.known[name][0]:
                    self.bound(argument)
                if place in self.known[name][1]:
                    self.needs |= self.of(argument)
        elif "atomic" in name or "store" in name or "is_pure=False" in ast.unparse(node):
            self.needs |= self.of(node)

    def assign(self, target: ast.expr, values: Carried) -> None:
        for name in assigned([ast.Expr(target)]):
            self.values[name] = values
            self.defined.add(name)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.assign(target, self.of(node.value))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.assign(node.target, NONE)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        self.assign(node.target, self.of(node.value) | self.of(node.target))

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        before = dict(self.values)
        for statement in node.body:
            self.visit(statement)
        after, self.values = self.values, before
        for statement in node.orelse:
            self.visit(statement)
        changed = assigned([*node.body, *node.orelse])
        for name in {*after, *self.values}:
            # What a branch may have changed hangs on the condition too.
            chosen = self.of(node.test) if name in changed else NONE
            self.values[name] = after.get(name, NONE) | self.values.get(name, NONE) | chosen

    def loop(self, node: ast.For | ast.While) -> None:
        carried = assigned(node.body) & self.defined
        before = dict(self.values)
        # Twice, for what reaches a bound in the next turn only.
        for _ in range(2):
            self.values |= {name: self.values.get(name, NONE) | {(name, node.lineno)} for name in carried}
            for statement in node.body:
                self.visit(statement)
        self.values = {
            name: frozenset(each for each in found if each[1] != node.lineno) | before.get(name, NONE)
            for name, found in self.values.items()
        }

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self.loop(node)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        # Unrolled, so that it has no bounds.
        if not ast.unparse(node.iter).startswith(("tl.static_range(", "gl.static_range(")):
            self.bound(node.iter)
        self.assign(node.target, NONE)
        self.loop(node)


def lost_changes(text: str) -> set[str]:
    """What only bounds need of what a loop around them changes, in any kernel of a generated module."""
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    known: dict[str, Places] = {}
    # Until what is known of functions that are called says nothing new of those that call them.
    before: dict[str, Places] | None = None
    while known != before:
        before = dict(known)
        for function in functions:
            names = [argument.arg for argument in function.args.args]
            # As if a loop in line 0 carried the arguments.
            inside = Loops(function, known, {name: frozenset({(name, 0)}) for name in names})
            known[function.name] = tuple(
                {place for place, name in enumerate(names) if (name, 0) in found}
                for found in (inside.bounds, inside.needs, inside.returned)
            )
    found = set()
    for function in functions:
        loops = Loops(function, known, {})
        found |= {
            f"{function.name}: {each[0]}, for line {line}"
            for each, line in loops.bounds.items()
            if each not in loops.needs
        }
    return found


def modules() -> list[tuple[GemmProblem, Config]]:
    """One config of each kernel that there is, for NVIDIA; AMD's have the same loops."""
    chosen = {
        (traits_of(config).stem, config.SPLIT_K > 1): config
        for config in [*taking(PROBLEM), *CLUSTERS]
        if not has_amd_options(config)
    }
    found = [*((PROBLEM, config) for config in chosen.values()), (replace(PROBLEM, M=1), GEMV), FEWER_BITS]
    return found + [(replace(PROBLEM, K=1025), config) for config in REALIGNING]


@pytest.mark.parametrize(("problem", "config"), drawn(modules(), 10), ids=lambda value: value.name)
def test_no_bound_is_made_of_what_a_loop_changes(problem: GemmProblem, config: Config) -> None:
    """No loop inside another takes its bounds from a variable that the outer one changes for nothing else."""
    arch = "sm_100" if config.specialized else "sm_90"
    assert lost_changes(generate(problem, [config], arch).text) == set()


def test_every_family_is_here() -> None:
    """A family that is added has its loops looked at too."""
    assert {traits_of(config).stem for _, config in modules()} == set(FORMS) - set(CUTE_FORMS)


# What the kernel had begun of the first tile, as a variable that the loop of the loading warp carries round.
CARRIED = ("    blocks = gl.cdiv(K, 64)\n    step = 0\n", "    blocks = gl.cdiv(K, 64)\n    step = begun = blocks\n")
ASKED = (
    "    begun = gl.where(is_first, gl.minimum(last_block - first_block, early(STAGES)), 0)\n    step += begun\n"
    "    for block in range(first_block + begun, last_block):\n",
    "    for block in range(first_block, last_block):\n",
)
TILE = "            step = load_tile(\n                step, tile == gl.program_id(0), pid_m, pid_n, 0, blocks,"
PIECE = (
    "            step = load_tile(\n                step, turn == first_turn, pid_m, pid_n, first_block, last_block,"
)
# The end of a turn of the loading warp: of a tile, and of a piece of one.
TILE_ENDS = "GROUP_SIZE_M)\n\n\n@gluon.jit\ndef load_tile("
PIECE_ENDS = (
    "SWAPPED,\n            )\n    else:\n"
    "        for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):\n            step"
)


def given(call: str, first: str, before: str = "") -> tuple[str, str]:
    """The call of load_tile with its first K-block as this, behind these lines."""
    changed = re.sub("step, t.* == [^,]*, pid_m, pid_n, [^,]*", f"step, tile < 0, pid_m, pid_n, {first}", call)
    return call, before + changed


def then(end: str, line: str) -> tuple[str, str]:
    """Replaces the end of a turn by itself with this line behind it."""
    closed = end.index("\n\n") if end == TILE_ENDS else end.index("    else")
    return end, end[:closed].rstrip("\n") + f"\n            {line}\n" + end[closed:].removeprefix("\n")


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (WARP_SPECIALIZED, [given(TILE, "first", "            first = begun\n"), then(TILE_ENDS, "begun = 0")]),
        (WARP_SPECIALIZED, [given(TILE, "begun"), then(TILE_ENDS, "begun = 0")]),
        (
            WARP_SPECIALIZED_SPLIT,
            [
                given(PIECE, "first_block", "            first_block += begun\n"),
                then(PIECE_ENDS, "begun = gl.where(last_block > first_block, 0, begun)"),
            ],
        ),
        (
            WARP_SPECIALIZED_SPLIT,
            [
                given(PIECE, "first_block", "            if begun > 0:\n                first_block += 3\n"),
                then(PIECE_ENDS, "begun -= begun"),
            ],
        ),
    ],
    ids=["a number", "itself the bound", "a choice", "a branch"],
)
def test_what_a_loop_changes_is_noticed(config: Config, changes: list[tuple[str, str]]) -> None:
    """Loading warps that forgot, after the first tile, how many K-blocks of it the kernel had begun: programs hung."""
    text = generate(PROBLEM, [config], "sm_90").text
    for before, after in [CARRIED, ASKED, *changes]:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    (said,) = lost_changes(text)
    assert re.fullmatch(r"load_tiles: begun, for line \d+", said)


FUNCTIONS = """
@triton.jit
def inner(p, count):
    for i in range(count):
        tl.store(p + i, i)

@triton.jit
def middle(count, p):
    inner(p, count + 1)

@triton.jit
def outer(p, n):
    count = n
    for i in range(n):
        middle(count, p)
        count += 1
"""


def test_what_goes_through_functions_is_noticed() -> None:
    """Where the loop that takes its bounds from it is in a function that the outer loop calls."""
    assert lost_changes(FUNCTIONS) == {"outer: count, for line 15"}


@pytest.mark.parametrize(
    "change",
    [
        ("        middle(count, p)", "        middle(count, p)\n        tl.store(p, count)"),
        ("        middle(count, p)", "        middle(i, p + count)"),
        ("        count += 1", "        i += 1"),
    ],
    ids=["is stored", "is an address", "does not change"],
)
def test_what_is_not_lost_is_no_mistake(change: tuple[str, str]) -> None:
    """What a store needs is carried round, and is a bound as well."""
    assert change[0] in FUNCTIONS
    assert lost_changes(FUNCTIONS.replace(*change)) == set()
