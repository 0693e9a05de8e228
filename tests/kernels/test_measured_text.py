"""What measured processes import of a generated module: everything that they call, as the whole module has it."""

from __future__ import annotations

import builtins
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest
from shipped_rows import shipped_rows

from genkern.formats.tuned_row import TunedRow
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate
from genkern.kernels.source import load_module
from genkern.ops.op import op_names

CALLED = ("make_operands", "reference", "vendor")


def one_of_each_format() -> list[TunedRow]:
    """A shipped winner in Triton or Gluon of each format, op and types."""
    found: dict[tuple[str, ...], TunedRow] = {}
    for row in shipped_rows():
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


def test_the_measured_text_has_all_that_is_called(tmp_path: Path) -> None:
    """Operands, reference and library call are the whole module's, and use no name that is left out: of each format.

    The results have winners of all, but for those that are never measured there.
    """
    rows = one_of_each_format()
    assert {row.problem.op for row in rows} <= set(op_names())
    assert len({row.problem.op for row in rows}) >= 8
    for number, row in enumerate(rows):
        # A file with the name of another one would be taken for it.
        folder = tmp_path / str(number)
        folder.mkdir()
        check_what_is_called(row, folder)


def check_what_is_called(row: TunedRow, folder: Path) -> None:
    """Raises AssertionError with the problem's name."""
    of = row.problem.name
    assert row.config is not None, of
    module = generate(row.problem, [row.config], "sm_90", gpu_for_arch("sm_90"))
    loaded: list[ModuleType] = []
    for name, text in (("whole", module.text), ("measured", module.measured_text)):
        path = folder / f"{name}.py"
        path.write_text(text)
        loaded.append(load_module(str(path)))
    whole, measured = loaded
    assert measured.OPERANDS == whole.OPERANDS, of
    left_out = set(vars(whole)) - set(vars(measured)) - set(vars(builtins))
    for name in (name for name, value in vars(measured).items() if isinstance(value, FunctionType)):
        function = getattr(measured, name)
        if function.__module__ == measured.__name__:
            # Random numbers of types that the interpreter lacks: the next test compares them.
            assert name == "_random" or inspect.getsource(function) == inspect.getsource(getattr(whole, name)), of
            assert not left_out & set(used(function.__code__)), (of, name)
    assert all(callable(getattr(measured, name)) for name in CALLED), of
    assert not hasattr(measured, "CONFIGS"), of
    assert "triton" not in module.measured_text.lower(), of


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_operands_are_the_same(dtype: str, tmp_path: Path) -> None:
    """Number for number, and so is what they make."""
    torch = pytest.importorskip("torch")
    problem = GemmProblem(17, 48, 32, dtype_a=dtype, dtype_b=dtype, bias=True)
    module = generate(problem, [Config("tiled", 16, 16, 32, 1, 1, 4, 2)], "sm_90")
    made = []
    for name, text in (("whole", module.text), ("measured", module.measured_text)):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        loaded = load_module(str(path))
        operands = loaded.make_operands("cpu", 7)
        made.append({**operands, "c": loaded.reference(operands)})
    whole, measured = made
    assert list(whole) == list(measured)
    for name, tensor in whole.items():
        assert tensor.dtype == measured[name].dtype
        assert tensor.stride() == measured[name].stride()
        assert torch.equal(tensor, measured[name])


MEASURES = """
import sys
import genkern.profiling.harness
from genkern.kernels.refusal import refused_by_device
from genkern.kernels.source import load_module
import torch
module = load_module(sys.argv[1])
operands = module.make_operands("cpu")
module.vendor(operands)
module.reference(operands)
print(refused_by_device(RuntimeError("out of memory")), refused_by_device(KeyError("x")), "triton" in sys.modules)
"""


def test_the_measured_process_imports_no_triton(tmp_path: Path) -> None:
    """Its import is most of a second of each start."""
    pytest.importorskip("torch")
    module = generate(GemmProblem(16, 16, 32), [Config("tiled", 16, 16, 32, 1, 1, 4, 2)], "sm_90")
    path = tmp_path / "measured.py"
    path.write_text(module.measured_text)
    done = subprocess.run([sys.executable, "-c", MEASURES, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "False", "False"], done.stderr
