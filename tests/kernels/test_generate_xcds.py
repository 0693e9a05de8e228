"""The order of programs on GPUs of several XCDs, and the modifier of B's loads, in generated modules."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_gemms import AMD, SPLIT, TILED, XCD, kernels_of

from genkern.errors import InputError
from genkern.gemm.gpus import gpu_for_arch, gpu_for_device
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.argument import Integer
from genkern.kernels.contract.expression import evaluate
from genkern.kernels.contract.product import product_of
from genkern.kernels.generate import generate
from genkern.kernels.source import load_module
from genkern.kernels.specs import launch_plan
from genkern.ops.op import get_op


def test_modules_without_remapping_know_nothing_of_it() -> None:
    """XCDs and cache modifiers stand only in the modules, and only in the kernels, of configs that use them."""
    problem = GemmProblem(100, 64, 256)
    plain = generate(problem, [TILED, SPLIT, AMD], "gfx942").text
    assert "xcd" not in plain.lower()
    assert "cache_modifier" not in plain
    module = generate(problem, [TILED, XCD], "gfx942")
    kernels = kernels_of(module)
    assert "NUM_XCDS" in kernels["matmul_tiled_xcd_cg_mask_m"]
    assert kernels["matmul_tiled_xcd_cg_mask_m"].count('cache_modifier=".cg"') == 1
    assert "b_ptrs, cache_modifier" in kernels["matmul_tiled_xcd_cg_mask_m"]
    assert kernels["matmul_tiled_mask_m"] in plain


def test_an_arch_that_nobody_knows_needs_the_gpu() -> None:
    """The number of XCDs is in the text; where a GPU is given, "any" is an arch like others."""
    problem = GemmProblem(100, 64, 256)
    with pytest.raises(InputError, match=r"xcd_remap .*'any'"):
        generate(problem, [TILED, XCD], "any")
    assert "XCDS, UNITS_PER_XCD = 8, 38" in generate(problem, [XCD], "any", gpu_for_arch("gfx942")).text
    assert "XCDS" not in generate(problem, [TILED], "any").text


@pytest.mark.parametrize(
    ("device", "units", "xcds"),
    [
        ("AMD Instinct MI300X", 304, 8),
        ("AMD Instinct MI300X", 152, 4),
        ("AMD Instinct MI300X", 38, 1),
        ("AMD Instinct MI300A", 228, 6),
        ("AMD Instinct MI300A", 38, 1),
        ("AMD Instinct MI300X", 2, 8),
    ],
)
def test_xcds_are_the_devices(tmp_path: Path, device: str, units: int, xcds: int) -> None:
    """NUM_XCDS follows from the GPU table and the CUs that the runtime shows: a partition has fewer (DPX, CPX)."""
    pytest.importorskip("torch")
    problem, gpu = GemmProblem(64, 64, 64), gpu_for_device(device, "gfx942")
    path = tmp_path / f"{device.split()[-1]}.py"
    path.write_text(generate(problem, [XCD], "gfx942", gpu).text)
    module = load_module(str(path))
    (launch,) = module.launches(module.CONFIGS[XCD.name], module.make_operands("cpu"), units)
    assert launch.args[launch.kernel.arg_names.index("NUM_XCDS")] == xcds
    (planned,) = launch_plan(product_of(problem, get_op(problem.op), "gfx942"), XCD, gpu).launches
    (argument,) = (each for each in planned.arguments if each.name == "NUM_XCDS")
    assert isinstance(argument, Integer)
    assert evaluate(argument.value, {"units": units}) == xcds


@given(count=st.integers(1, 3000), xcds=st.integers(1, 40))
def test_every_tile_is_one_programs(count: int, xcds: int) -> None:
    """Remapping is a bijection of the program numbers for any grid; each XCD gets neighbours, and its fair share.

    Workgroup number i runs on XCD i % xcds.
    """
    text = kernels_of(generate(GemmProblem(64, 64, 64), [XCD], "gfx942"))["on_one_xcd"]
    scope = {"tl": SimpleNamespace(minimum=min)}
    exec(text.removeprefix("@triton.jit\n"), scope)  # the generated function, as plain Python
    place = scope["on_one_xcd"]
    assert callable(place)
    tiles = [place(program, count, xcds) for program in range(count)]
    assert sorted(tiles) == list(range(count))
    for xcd in range(min(xcds, count)):
        own = tiles[xcd::xcds]
        assert own == list(range(own[0], own[0] + len(own)))
        assert count // xcds <= len(own) <= count // xcds + 1
