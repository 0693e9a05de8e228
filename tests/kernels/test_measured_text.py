"""What measured processes import of a generated module: everything that they call, as the whole module has it."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest

from genkern.formats.kind import read_results
from genkern.formats.tuned_row import TunedRow
from genkern.gemm.gpus import gpu_for_arch
from genkern.kernels.generate import generate
from genkern.kernels.source import load_module
from genkern.ops.op import op_names

ROOT = Path(__file__).parents[2]
CALLED = ("make_operands", "reference", "vendor")


def one_of_each_format() -> list[TunedRow]:
    """A shipped winner in Triton or Gluon of each format, op and types."""
    found: dict[tuple[str, ...], TunedRow] = {}
    for path in sorted((ROOT / "results").glob("*/*.yaml")):
        for row in read_results(str(path)):
            if row.config is not None and not row.config.family.startswith("cute"):
                problem = row.problem
                found.setdefault((problem.op, problem.dtype_a, problem.dtype_b, problem.activation), row)
    return list(found.values())


def used(code: CodeType) -> Iterator[str]:
    """Names that are no locals of a function, of those within it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from used(constant)


@pytest.mark.parametrize("row", one_of_each_format(), ids=lambda row: row.problem.name)
def test_it_has_what_is_called(row: TunedRow, tmp_path: Path) -> None:
    """Operands, reference and library call are the whole module's, and use no name that is left out."""
    assert row.config is not None
    module = generate(row.problem, [row.config], "sm_90", gpu_for_arch("sm_90"))
    loaded: list[ModuleType] = []
    for name, text in (("whole", module.text), ("measured", module.measured_text)):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        loaded.append(load_module(str(path)))
    whole, measured = loaded
    assert measured.OPERANDS == whole.OPERANDS
    left_out = set(vars(whole)) - set(vars(measured)) - set(vars(builtins))
    for name in (name for name, value in vars(measured).items() if isinstance(value, FunctionType)):
        function = getattr(measured, name)
        if function.__module__ == measured.__name__:
            assert inspect.getsource(function) == inspect.getsource(getattr(whole, name))
            assert not left_out & set(used(function.__code__)), name
    assert all(callable(getattr(measured, name)) for name in CALLED)
    assert not hasattr(measured, "CONFIGS")


def test_every_format_is_looked_at() -> None:
    """The results have winners of all, but for those that are never measured there."""
    assert {row.problem.op for row in one_of_each_format()} <= set(op_names())
    assert len({row.problem.op for row in one_of_each_format()}) >= 8
