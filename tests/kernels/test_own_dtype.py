"""A dtype is a row: one that genkern does not have, added from outside, and what follows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from compiled import compile_all
from rooflines import roofline_us

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.dtypes import BY_TORCH, CODES, DTYPES, DType, add_dtype, parse_dtype
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate
from genkern.kernels.legality import legal
from genkern.ops.fields import parse_own
from genkern.ops.op import get_op
from genkern.profiling.checking.alphabet import LARGEST, choose_alphabet
from genkern.profiling.checking.bound import accumulator_roundoff
from genkern.runtime.backends.cublaslt_api import DIALECT
from genkern.runtime.backends.lt_operation import operation_of, refusal

# fp8 with an exponent's bias of 15, which Triton has on NVIDIA: no number is larger than 1.875. PyTorch has none.
E4B15 = DType(
    name="fp8e4b15",
    bits=8,
    kind="float",
    exact=1,
    largest=1.875,
    encoding="ocp",
    triton="fp8e4b15",
    language="float8e4b15",
    torch="bits8",
    peak="fp8",
    guard=0x7E,
    aliases=("e4b15",),
    codes=("bits2x4",),
)  # type: ignore[arg-type]
TILE = Config("tiled", 64, 64, 64, num_warps=4, num_stages=2)


@pytest.fixture
def known() -> Iterator[DType]:
    """The row, while the test lasts."""
    add_dtype(E4B15)
    yield E4B15
    forget(E4B15)


def forget(row: DType) -> None:
    del DTYPES[row.name], BY_TORCH[f"torch.{row.torch}"]
    for code in row.codes:
        del CODES[f"torch.{code}"]


def problem_of(dtype: str, K: int = 64) -> GemmProblem:
    op = get_op("a8w8")
    return GemmProblem(64, 64, K, op.name, dtype, dtype, "bf16", own=parse_own(op.fields, {}))


def test_names_of_an_added_dtype_are_parsed(known: DType) -> None:
    """By any of them, on any target; nobody knew them before."""
    for text in ("fp8e4b15", "torch.bits8", "E4B15"):
        assert parse_dtype(text, "sm_90") is known
    assert (BY_TORCH["torch.bits8"], CODES["torch.bits2x4"]) == ("fp8e4b15", "fp8e4b15")
    forget(known)
    with pytest.raises(InputError, match="unknown dtype 'e4b15'"):
        parse_dtype("e4b15", "sm_90")
    add_dtype(known)


def test_an_added_dtype_is_checked_by_its_row(known: DType) -> None:
    """Which targets take it, exact inputs, the bound of random ones, and the roofline."""
    refuse = get_op("a8w8").refuse
    assert refuse(problem_of(known.name), "sm_90") == ""
    assert "does not compute in fp8e4b15: use fp8e4m3fnuz" in refuse(problem_of(known.name), "gfx942")
    assert "no fp8" in refuse(problem_of(known.name), "sm_80")
    # Of integers it has those of magnitude 1.
    few, many = (get_op("a8w8").operands(problem_of(dtype)) for dtype in (known.name, "fp8e4m3fn"))
    assert (choose_alphabet(few).largest, choose_alphabet(many).drifting) == (1, LARGEST)
    assert accumulator_roundoff("fp32", known.name, "sm_90") == 2.0**-13
    gpu = gpu_for_arch("sm_90")
    assert roofline_us(problem_of(known.name, 4096), gpu) == roofline_us(problem_of("fp8e4m3fn", 4096), gpu)


def test_guards_of_an_added_dtype_are_its_rows(known: DType) -> None:
    """The bits around a tensor of PyTorch's type."""
    torch = pytest.importorskip("torch")
    from genkern.profiling.checking.guard import guarded

    forget(known)
    shown = replace(known, torch="uint8", codes=())
    codes = CODES.pop("torch.uint8")
    add_dtype(shown)
    try:
        made = guarded(Operand("a", "activation", (4, 16), known.name), torch.uint8, "cpu", sliced=False)
        assert (made.pattern, int(made.bits[0])) == (0x7E, 0x7E)
    finally:
        forget(shown)
        CODES["torch.uint8"] = codes
        add_dtype(known)


def test_the_library_takes_it_by_its_code(known: DType) -> None:
    """Where the row says one, and what C may be; else not at all."""
    problem = problem_of(known.name)
    assert "no product of fp8e4b15 and fp8e4b15 to bf16" in refusal(problem, DIALECT)
    forget(known)
    add_dtype(replace(known, cuda=77, outputs=("bf16",)))
    assert (operation_of(problem, DIALECT).a.dtype, operation_of(problem, DIALECT).b.dtype) == (77, 77)


def test_descriptors_name_it(known: DType) -> None:
    """In modules with kernels that read operands of wgmma through TMA, where the row says PTX's name."""
    forget(known)
    add_dtype(replace(known, ptx="e4b15", ptx_flags=", 1, 1"))
    config = Config("warp_specialized", 64, 64, 128, num_warps=4, num_stages=3)
    problem, gpu = problem_of(known.name, 1024), gpu_for_arch("sm_90")
    assert legal(problem, config, gpu) == ""
    text = generate(problem, [config], "sm_90", gpu).text
    assert '"bits8": gl.float8e4b15,' in text
    assert 'types = "e4b15.e4b15"' in text


@pytest.mark.filterwarnings("ignore:the use of fp8e4b15")
def test_a_kernel_is_compiled_for_it(known: DType, tmp_path: Path) -> None:
    """By Triton, to other code than that of another fp8."""
    codes = []
    for dtype in (known.name, "fp8e5m2"):
        (binary,) = compile_all(tmp_path, problem_of(dtype), [TILE], "sm_90")
        codes.append(binary.resources.code_sha256)
    assert codes[0] != codes[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 12}, "elements of 12 bits"),
        ({"kind": "complex"}, "kind complex"),
        ({"peak": "fp4"}, "no GPU has a peak fp4"),
        ({"exact": 2**9}, "integers beyond its largest"),
        ({"guard": 0x1FF}, "guard of more bits"),
        ({"encoding": ""}, "encoding ''"),
        ({"bits": 16, "encoding": "", "exact": 1}, "no code for tensor maps"),
        ({"outputs": ("bf16",)}, "outputs without a library type"),
        ({"ptx_flags": ", 1"}, "flags without a name"),
        ({"torch": ""}, "a name is missing"),
    ],
)
def test_a_row_asserts_itself(change: dict[str, object], message: str) -> None:
    """What cannot be is told by the record."""
    with pytest.raises(AssertionError, match=message):
        replace(E4B15, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"name": "bf16"}, "bf16"),
        ({"triton": "fp8e5"}, "fp8e5m2"),
        ({"aliases": ("half",)}, "fp16"),
        ({"torch": "uint8"}, r"torch\.uint8"),
        ({"codes": ("int8",)}, r"torch\.int8"),
        ({"targets_own": ("fp8",)}, "fp8e4m3fn"),
    ],
)
def test_names_of_other_types_are_refused(change: dict[str, object], name: str) -> None:
    """Before anything is known by the new one."""
    before = {*DTYPES}, {*BY_TORCH}, {*CODES}
    with pytest.raises(AssertionError, match=name):
        add_dtype(replace(E4B15, **change))  # type: ignore[arg-type]
    assert ({*DTYPES}, {*BY_TORCH}, {*CODES}) == before
