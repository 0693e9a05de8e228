"""Tests of genkern.kernels.specs: what the farm compiles for a config is what the generated module launches."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from forms import FORMS, RINGS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreted import fitted, takes
from long_tests import pairs, repeats, spread
from small_gemms import AMD, TILED, make_module, specs_of, taking, variants_of, write_module
from test_families_gpu import CONFIGS, LARGE_K, LAYOUTS, LONG_SUMS, TYPES
from triton_launcher import arguments_of

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sides, together, traits_of
from genkern.kernels.contract.argument import constants_of
from genkern.kernels.contract.gluon_tile import STORED, buffer_bytes, landing_bytes
from genkern.kernels.contract.product import product_of
from genkern.kernels.families.index_width import wide_operands
from genkern.kernels.generate import generate
from genkern.kernels.plan import LaunchPlan
from genkern.kernels.source import load_module
from genkern.kernels.specs import (
    binary_name,
    call_of,
    compile_options,
    kernel_specs,
    launch_plan,
)
from genkern.ops.op import get_op

SIZES = st.integers(1, 300)
POWERS = st.sampled_from([16, 32, 64, 128])
HINTS = st.sampled_from(["none", "attention", "ck_v3", "llvm-iglp-0", "a_GM1_SK1"])
TILED_CONFIGS = st.builds(
    Config,
    st.just("tiled"),
    *(POWERS, POWERS, POWERS),
    GROUP_SIZE_M=st.integers(1, 32),
    SPLIT_K=st.integers(1, 16),
    num_warps=st.sampled_from([1, 2, 4, 8]),
    num_stages=st.integers(1, 4),
    waves_per_eu=st.sampled_from([0, 0, 1, 8]),
    matrix_instr_nonkdim=st.sampled_from([0, 16, 32]),
    kpack=st.sampled_from([0, 1, 2]),
    schedule_hint=HINTS,
    xcd_remap=st.integers(0, 1),
    cache_modifier=st.sampled_from(["none", "none", ".ca", ".cg"]),
)
ALL_TYPES = [
    ("a16w16", "bf16", "bf16"),
    ("a16w16", "fp32", "fp16"),
    ("a8w8", "int8", "bf16"),
    ("a8w8", "fp8e5m2", "fp32"),
]


def imported(folder: Path, problem: GemmProblem, configs: list[Config]) -> ModuleType:
    """The generated module, in a file of its own: modules are remembered by path."""
    module = generate(problem, configs, "sm_90")
    own = folder / hashlib.sha256(module.text.encode()).hexdigest()[:16]
    own.mkdir(exist_ok=True)
    return load_module(str(write_module(own, module)))


@settings(max_examples=repeats(30, 60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(configs=st.lists(TILED_CONFIGS, min_size=1, max_size=5, unique=True))
def test_names_in_the_module_are_those_of_config(tmp_path: Path, configs: list[Config]) -> None:
    """The module has the same names, names of binaries and values in its table as genkern has of its configs."""
    module = imported(tmp_path, GemmProblem(100, 96, 4097), configs)
    assert list(module.CONFIGS) == [config.name for config in configs]
    for config in configs:
        row = module.CONFIGS[config.name]
        assert (row.name, row.form, row.binary) == (config.name, traits_of(config).stem, binary_name(config))
        assert {*config.values} <= {*row._fields[4:]}
        assert row[4:] == tuple(getattr(config, name) for name in row._fields[4:])
        (kernel, *_) = call_of(product_of(GemmProblem(100, 96, 4097), get_op("a16w16"), "gfx942"), config).kernels
        assert module._options_of(row) == dict(compile_options(kernel, config))
        assert getattr(module, f"matmul_{config.name}").args == (row,)
        assert getattr(module, f"try_config_{config.name}").args == (row,)


@given(TILED_CONFIGS, TILED_CONFIGS)
def test_binaries_with_one_name_are_one(one: Config, other: Config) -> None:
    """Configs whose binaries have the same name differ in run-time arguments only: no profiler confuses them."""
    runtime = {"GROUP_SIZE_M": 1, "SPLIT_K": 1}
    same = dataclasses.replace(one, **runtime) == dataclasses.replace(other, **runtime)
    assert (binary_name(one) == binary_name(other)) == same
    sharing = dataclasses.replace(one, GROUP_SIZE_M=other.GROUP_SIZE_M, SPLIT_K=other.SPLIT_K)
    assert binary_name(one) == binary_name(sharing)


@pytest.mark.parametrize(("types", "bias"), pairs(ALL_TYPES, [False, True]))
def test_farm_compiles_what_is_launched(tmp_path: Path, types: tuple[str, str, str], bias: bool) -> None:
    """For every layout: the compiled kernels, the launch plan and the module have the same arguments, in order.

    So have they the same constants, options, grids and workspaces; and what kernels rely on is true.
    """
    op, dtype, dtype_c = types
    sizes = ((128, 64, 256), (1, 48, 4096), (17, 100, 97), (48, 33, 64))
    # One in five has each layout and each size.
    for row_major_a, row_major_b, (m, n, k) in spread([*itertools.product((True, False), (True, False), sizes)], 5):
        problem = GemmProblem(m, n, k, op, dtype, dtype, dtype_c, row_major_a, row_major_b, bias)
        _one_for_all(tmp_path, problem)


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(48, 33, 64, "batched_a16w16", own=(("batch_size", 3),)),
        GemmProblem(1, 48, 4096, "batched_a8w8", "int8", "int8", own=(("batch_size", 3),)),
        GemmProblem(17, 112, 96, "a8w8_bpreshuffle", "int8", "int8", own=(("layout", "n8k16"),)),
        GemmProblem(17, 104, 97),
    ],
    ids=lambda problem: problem.name,
)
def test_arguments_agree_for_batches_shuffled_weights_and_copies(tmp_path: Path, problem: GemmProblem) -> None:
    """Batches, whose operands have strides of their own, weights whose rows are together, and copies."""
    _one_for_all(tmp_path, problem)


def _one_for_all(folder: Path, problem: GemmProblem) -> None:
    """What is compiled, planned and launched for a problem by the module is the same, and what is promised holds."""
    torch = pytest.importorskip("torch")
    gpu, op = gpu_for_arch("sm_90"), get_op(problem.op)
    configs = taking(problem)
    module = imported(folder, problem, configs)
    operands = module.make_operands("cpu")
    generated = generate(problem, configs, "sm_90")
    product = product_of(problem, op, "sm_90")
    for config in configs:
        row = module.CONFIGS[config.name]
        given = module.with_workspace(row, operands, 132)
        launches = module.launches(row, given, 132)
        specs = kernel_specs(problem, config, op, generated.source_sha256, generated.arch)
        known = {"units": 132}
        plan = LaunchPlan.from_json(launch_plan(product, config, gpu).to_json())
        assert plan == launch_plan(product, config, gpu)
        if "workspace" in given:
            assert plan.workspace_elements(known) == module.workspace_elements(row, 132)
        for spec, launch, planned in zip(specs, launches, plan.launches, strict=True):
            assert launch.kernel.__name__ == spec.function
            assert planned.symbol == f"{spec.function}_{dict(spec.constants)['BINARY']}"
            assert launch.constants == dict(spec.constants)
            assert launch.options == dict(spec.options)
            assert planned.cluster == getattr(launch, "cluster", 1)
            assert planned.programs(known) == launch.grid
            names = [name for name, _ in (*spec.signature, *spec.constants)]
            assert [argument.name for argument in planned.arguments] == names
            assert launch.kernel.arg_names == names
            assert dict(constants_of(planned.arguments)) == launch.constants
            for value, other in zip(arguments_of(planned, given, known), launch.args, strict=True):
                assert value is other or _described(value) == _described(other)
            for (name, kind), value in zip(spec.signature, launch.args, strict=True):
                promised = dict(spec.divisible).get(name, 1)
                if isinstance(value, int):
                    assert kind == "i32"
                    assert value < 2**31
                    assert value % promised == 0
                elif isinstance(value, torch.Tensor):
                    assert kind == "*" + TRITON_NAMES[value.dtype]
                    assert promised == 16
                else:
                    assert kind == f"tensordesc<{TRITON_NAMES[value.base.dtype]}{list(value.block_shape)}>"


def _described(value: Any) -> object:
    """A number or a text as it is; of a descriptor, what it is encoded from."""
    if isinstance(value, (int, str)):
        return value
    matrix = value.base.data_ptr(), tuple(value.base.shape), tuple(value.base.stride())
    return *matrix, tuple(value.block_shape), getattr(value, "layout", None)


@pytest.mark.parametrize(
    "problem", [GemmProblem(128, 64, 256), GemmProblem(1, 64, 256, bias=True)], ids=lambda p: p.name
)
def test_calls_pass_every_argument_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: GemmProblem) -> None:
    """matmul_<config> calls each kernel of the config with all its parameters, Triton's options, in its clusters."""
    pytest.importorskip("torch")
    configs = taking(problem)
    module = imported(tmp_path, problem, configs)
    generated = generate(problem, configs, "sm_90")
    called = []

    class Recorder:
        def __init__(self, name: str, parameters: list[str]) -> None:
            self.name, self.parameters = name, parameters
            self.compiled = SimpleNamespace(packed_metadata=(4, 1, 1024))

        def warmup(self, *args: object, grid: tuple[int, int, int], **kwargs: object) -> SimpleNamespace:
            return self.compiled

        def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
            def call(*args: object, **kwargs: object) -> None:
                given = [*self.parameters[: len(args)], *(name for name in kwargs if name in self.parameters)]
                assert sorted(given) == sorted(self.parameters)
                assert "num_warps" in kwargs
                called.append(self.name)

            assert all(count >= 1 for count in grid)
            return call

    for name in generated.source_sha256:
        monkeypatch.setattr(module, name, Recorder(name, getattr(module, name).arg_names))
    operands = module.make_operands("cpu")
    for config in configs:
        called.clear()
        getattr(module, f"matmul_{config.name}")(operands)
        assert called == [variant.name for variant in variants_of(problem, config)]
        # Triton launches by what it has packed of its kernel.
        for variant in variants_of(problem, config):
            assert getattr(module, variant.name).compiled.packed_metadata == (4, variant.cluster, 1024)


TRITON_NAMES: dict[object, str] = {}


@pytest.fixture(autouse=True, scope="module")
def _triton_names() -> None:
    torch = pytest.importorskip("torch")
    TRITON_NAMES.update(
        {
            torch.bfloat16: "bf16",
            torch.float16: "fp16",
            torch.float32: "fp32",
            torch.int8: "i8",
            torch.int32: "i32",
            torch.float8_e5m2: "fp8e5",
        }
    )


@given(m=SIZES, n=SIZES, k=SIZES, config=TILED_CONFIGS)
def test_masks_exactly_where_tiles_overhang(m: int, n: int, k: int, config: Config) -> None:
    """A kernel masks a dimension exactly when its block does not divide it; the kernel's name says so."""
    main, *rest = variants_of(GemmProblem(m, n, k), config)
    sizes = ((m, config.BLOCK_SIZE_M), (n, config.BLOCK_SIZE_N), (k, config.BLOCK_SIZE_K))
    needed = [size % block != 0 for size, block in sizes]
    assert [main.mask_m, main.mask_n, main.mask_k] == needed
    letters = "".join(letter for letter, mask in zip("mnk", needed, strict=True) if mask)
    placed = "_xcd" * config.xcd_remap + {"none": "", ".ca": "_ca", ".cg": "_cg"}[config.cache_modifier]
    assert main.name == "matmul_tiled" + "_split" * (config.SPLIT_K > 1) + placed + f"_mask_{letters}" * bool(letters)
    assert [variant.name for variant in rest] == ["reduce_splits"] * (config.SPLIT_K > 1)


def test_run_time_choices_share_binaries(tmp_path: Path) -> None:
    """All (GROUP_SIZE_M, SPLIT_K > 1) of one tile are one pair of binaries; all tiles share the reduction."""
    configs = [
        dataclasses.replace(AMD, BLOCK_SIZE_M=block, GROUP_SIZE_M=group_size, SPLIT_K=split)
        for block, group_size, split in itertools.product((16, 32), (1, 4, 8), (1, 2, 4, 16))
    ]
    module, _ = make_module(tmp_path, GemmProblem(64, 64, 512), configs, "gfx942")
    specs = {spec for config in configs for spec in specs_of(module, config)}
    assert sorted(spec.function for spec in specs) == ["matmul_tiled"] * 2 + ["matmul_tiled_split"] * 2 + [
        "reduce_splits"
    ]


def test_specs_tell_problems_apart(tmp_path: Path) -> None:
    """Layout, types, bias, overhang and alignment each make other binaries; size alone does not."""
    base = GemmProblem(128, 128, 1024)
    same = [dataclasses.replace(base, M=640, N=256, K=4096), dataclasses.replace(base, K=2048)]
    others = [
        dataclasses.replace(base, row_major_a=False),
        dataclasses.replace(base, row_major_b=True),
        dataclasses.replace(base, dtype_a="fp16", dtype_b="fp16"),
        dataclasses.replace(base, dtype_c="fp32"),
        dataclasses.replace(base, bias=True),
        dataclasses.replace(base, M=100),
        dataclasses.replace(base, N=100),
        dataclasses.replace(base, K=1000),
    ]

    def specs(problem: GemmProblem) -> object:
        return specs_of(generate(problem, [TILED], "gfx942"), TILED)

    assert all(specs(problem) == specs(base) for problem in same)
    assert len({specs(problem) for problem in (base, *others)}) == 1 + len(others)


@pytest.mark.parametrize(
    ("size", "split", "wide"),
    [
        ((2**15, 2**15, 2**15), 1, set()),
        ((2**16, 16, 2**15), 1, {"wide_a"}),
        ((16, 2**16, 2**15), 1, {"wide_b"}),
        ((2**16, 2**15, 16), 1, {"wide_c", "wide_partial"}),
        ((2**15, 2**15, 16), 2, {"wide_partial"}),
        ((2**16, 2**15 - 1, 16), 1, set()),
    ],
)
def test_offsets_past_32_bits_are_wide(size: tuple[int, int, int], split: int, wide: set[str]) -> None:
    """Exactly the operands of 2**31 elements or more are addressed with 64 bits."""
    found = wide_operands(GemmProblem(*size), split)
    assert {name for name, needed in found.items() if needed} == wide


def test_options_left_to_triton() -> None:
    """AMD's fields reach the compiler when they are set, one by one, and not otherwise."""

    def options(**fields: Any) -> dict[str, int | str]:
        config = dataclasses.replace(TILED, **fields)
        (kernel,) = call_of(product_of(GemmProblem(64, 64, 64), get_op("a16w16"), "gfx942"), config).kernels
        return dict(compile_options(kernel, config))

    triton = {"num_warps": 4, "num_stages": 2}
    amd = {"waves_per_eu": 2, "matrix_instr_nonkdim": 16, "kpack": 1, "schedule_hint": "attention"}
    assert options() == triton
    assert options(waves_per_eu=2) == {**triton, "waves_per_eu": 2}
    assert options(**amd) == {**triton, **amd}


def test_gpu_tests_run_every_config() -> None:
    """Each config of the tests that need a GPU takes one of their problems there, and long sums to C in float32."""
    for config in CONFIGS:
        problems = (
            GemmProblem(
                *size, op, *((name if name != "fp8" else "fp8e4m3fn") for name in (dtype, dtype, dtype_c)), *layout
            )
            for op, dtype, dtype_c in TYPES
            for size, layout in LAYOUTS
        )
        assert any(takes(problem, config) for problem in problems)
        sums = fitted(LONG_SUMS, config)
        assert (sums.K, sums.dtype_c) == (LARGE_K, "fp32")


def test_gluon_configs_of_gpu_tests_fit() -> None:
    """Rows are those of the warps, sums fit the registers, and ring, others' sums and C in float32 the SM."""
    for config in [config for config in CONFIGS if traits_of(config).stem in RINGS]:
        rows, width = sides(config)
        landing = landing_bytes(rows, width, traits_of(config).cluster_k)
        assert rows in (16 * config.num_warps, 32 * config.num_warps)
        assert rows * width <= 200 * 32 * config.num_warps
        # C in parts where tiles lie side by side; a block of barriers; what warps exchange takes less than 1 KiB.
        columns = width if traits_of(config).cluster == (1, 1) else min(width, 2 * STORED[-1] + width % STORED[-1])
        needed = config.num_stages * together(config) * buffer_bytes(rows, width) + 1024 + landing + rows * columns * 4
        assert needed + 1024 <= gpu_for_arch("sm_90").shared_bytes_per_block


def test_gluon_kernels_have_every_form() -> None:
    """Upright and swapped, one warpgroup and two, 64 rows each and 128, whole tiles and shares: all run on a GPU."""
    found = {
        (traits_of(config).stem, config.num_warps, sides(config)[0] // (16 * config.num_warps), config.SPLIT_K > 1)
        for config in CONFIGS
        if traits_of(config).stem in RINGS
    }
    assert {form[:3] for form in found} == {
        (name, warps, halves)
        for name, warps, halves in itertools.product(RINGS, (4, 8), (1, 2))
        # 256 rows along N are no block of the spaces.
        if not (warps == 8 and halves == 2 and FORMS[name].swapped)
    }
    forms = {(name, split) for name in RINGS for split in (False, True) if FORMS[name].splits_k or not split}
    assert {(family, split) for family, _, _, split in found} == forms


@pytest.mark.parametrize(
    ("arch", "early"), [("gfx942", False), ("gfx1201", False), ("sm_89", False), ("sm_90", True), ("sm_120", True)]
)
def test_only_what_adds_up_splits_starts_early(arch: str, early: bool) -> None:
    """Dependent launches exist from sm_90 on; of a call's kernels only the reduction is one."""
    problem = GemmProblem(128, 64, 256)
    config = dataclasses.replace(TILED, SPLIT_K=2)
    generated = generate(problem, [config], arch)
    splits, reduction = kernel_specs(problem, config, get_op("a16w16"), generated.source_sha256, arch)
    assert ("launch_pdl", 1) not in splits.options
    assert (("launch_pdl", 1) in reduction.options) is early
    assert ("gdc_wait()" in generated.text) is early
    assert ("gdc_launch_dependents()" in generated.text) is early
