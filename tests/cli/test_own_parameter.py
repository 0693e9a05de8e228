"""A parameter of one's own: one file, given by --family, in which a family declares it; everything else follows."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from command import run_here
from cute_stand_in import StandInFarm
from forms import FORMS
from small_gemms import make_module
from winner_factory import report, winner

from genkern.cli.candidates_file import CandidatesFile
from genkern.compile.cache import BinaryCache
from genkern.errors import InputError
from genkern.files import tune_gemm_yaml
from genkern.files.config_entry import config_of, parse_config
from genkern.files.file_kind import read_results
from genkern.files.gemm_entry import GemmDefaults
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.parameter import PARAMETERS
from genkern.gemm.problem import GemmProblem
from genkern.kernels import catalogue
from genkern.kernels.catalogue import FAMILIES, add, add_file, values_problem
from genkern.kernels.contract.family import Family
from genkern.kernels.contract.product import product_of
from genkern.kernels.cute import user_families
from genkern.kernels.cute.source_file import sha256_of
from genkern.kernels.generate import generate
from genkern.kernels.kernel import Target
from genkern.kernels.specs import compiled_in, kernel_specs, launch_plan, plan_text
from genkern.ops.op import get_op
from genkern.packing.m_ranges import MRange
from genkern.packing.packer import CallToPack, Packer
from genkern.space.explanation import parameters_table
from genkern.space.prune import prune
from genkern.space.space import Space, read_space

FILE = """\
from genkern.gemm.parameter import Parameter
from genkern.kernels.contract.argument import Constant, Integer, Leading, Pointer
from genkern.kernels.contract.expression import name
from genkern.kernels.contract.call import Call, Kernel
from genkern.kernels.families.common import BINARY_NAME
from genkern.kernels.contract.family import Family
from genkern.kernels.contract.traits import KernelTraits as Form
from genkern.kernels.contract.symbols import NUM_WARPS, TILES, TILES_OF_C, K, M, N
from genkern.kernels.contract.variant import Variant

PREFETCH = Parameter("prefetch", "pf", range(9), "steps of K that are asked for ahead", 0)
ORDER = Parameter("order", "", ("rows", "columns"), "which side of C programs walk along first", "rows")
CHUNK = Parameter("chunk", "ch", (1, 2, 4), "tiles that a program takes at a time", 1, at_run_time=True)


def variant(problem, config):
    return Variant("matmul_cute_ahead", __file__)


def call(product, variant):
    sizes = (Integer("M", M), Integer("N", N), Integer("K", K), Integer("chunk", name("chunk")))
    constants = (BINARY_NAME, Constant("warps", NUM_WARPS), Constant("shared_bytes", 0))
    arguments = (Pointer("a_ptr", "a"), Pointer("b_ptr", "b"), Pointer("c_ptr", "c"), *sizes, *constants)
    kernel = Kernel(variant, (*arguments, Constant("prefetch", name("prefetch"))), (TILES, 1, 1), ())
    return Call((kernel,), (TILES_OF_C,))


def legal(problem, config, gpu):
    return "as much ahead as there is" if config.prefetch * config.BLOCK_SIZE_K > problem.K else ""


FORM = Form("cute_ahead", variant, call, legal=legal, interpreted=False, reads="")
FAMILY = Family("cute_ahead", FORM, (PREFETCH, ORDER, CHUNK), language="cute")
"""
SPACE = """\
archs: [sm_90]
ops: [a16w16]
rules: []
families:
  - family: cute_ahead
    BLOCK_SIZE_M: [64]
    BLOCK_SIZE_N: [64]
    BLOCK_SIZE_K: [64]
    GROUP_SIZE_M: [1]
    SPLIT_K: [1]
    num_warps: [4]
    num_stages: [1]
    prefetch: [0, 2, 8]
    order: [rows, columns]
  - family: tiled
    BLOCK_SIZE_M: [64]
    BLOCK_SIZE_N: [64]
    BLOCK_SIZE_K: [64]
    GROUP_SIZE_M: [1]
    SPLIT_K: [1]
    num_warps: [4]
    num_stages: [2]
"""
H200 = gpu_for_arch("sm_90")
PROBLEM = GemmProblem(64, 512, 256)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The family's file; what it declares is known while the test lasts."""
    for key, value in vars(PARAMETERS).items():
        monkeypatch.setattr(PARAMETERS, key, value)
    path = tmp_path / "ahead.py"
    path.write_text(FILE)
    before = os.environ.get(user_families.ENVIRONMENT)
    yield path
    for name in ("cute_ahead", "ahead"):
        FAMILIES.pop(name, None)
    for key in [key for key in catalogue._FORMS if key[0] in ("cute_ahead", "ahead", "cute_other")]:
        del catalogue._FORMS[key]
    sha256_of.cache_clear()
    os.environ.pop(user_families.ENVIRONMENT, None)
    if before is not None:
        os.environ[user_families.ENVIRONMENT] = before


def config(**named: int | str) -> Config:
    """A config of that family."""
    return Config("cute_ahead", 64, 64, 64, 1, 1, 4, 1, **named)  # type: ignore[arg-type]


def space_of(file: Path, text: str = SPACE) -> Space:
    (file.parent / "ahead.yaml").write_text(text)
    return read_space(file.parent / "ahead.yaml")


def test_names_and_bounds(file: Path) -> None:
    """Configs say it in their names and read it from there; values that it may not have are refused in one line."""
    with pytest.raises(InputError, match="'prefetch'"):
        config(prefetch=2)
    assert add_file(file) == "cute_ahead"
    ahead = config(prefetch=2, order="columns", chunk=4)
    assert ahead.name == "cute_ahead_BM64_BN64_BK64_GM1_SK1_nW4_nS1_ch4_columns_pf2"
    assert parse_config(ahead.name) == ahead
    assert config().name == "cute_ahead_BM64_BN64_BK64_GM1_SK1_nW4_nS1"
    assert config().prefetch == Config("tiled", 64, 64, 64).prefetch == 0
    assert ahead.features["prefetch"] == 2.0
    assert ahead.features["order=columns"] == 1.0
    assert values_problem(config(prefetch=9)) == "prefetch 9 is not a whole number from 0 to 8"
    assert values_problem(Config("tiled", 64, 64, 64, prefetch=1)) == "tiled has no parameter prefetch"
    for refused in (f"{config().name}_pf9", f"{config().name}_ch3", "tiled_BM64_BN64_BK64_GM1_SK1_nW4_nS1_pf1"):
        with pytest.raises(InputError) as caught:
            parse_config(refused)
        assert "\n" not in str(caught.value)


def test_a_space_lists_it(file: Path) -> None:
    """As any other parameter, and leaves it out where it is neutral; pruning asks with it."""
    add_file(file)
    space = space_of(file)
    assert space.size == 3 * 2 + 1
    kept = prune(space, PROBLEM, H200)
    ours = [each for each in kept.kept if each.family == "cute_ahead"]
    assert {(each.prefetch, each.order) for each in ours} == {(p, o) for p in (0, 2) for o in ("rows", "columns")}
    assert kept.illegal == {"as much ahead as there is": 2}
    assert "cute_ahead  prefetch = 0, 2, 8" in parameters_table(space)
    assert "steps of K that are asked for ahead" in parameters_table(space)
    for text, message in (
        (SPACE.replace("[0, 2, 8]", "[0, 9]"), "cute_ahead: prefetch: 9 is not a whole number from 0 to 8"),
        (SPACE.replace("[0, 2, 8]", "[far]"), "prefetch: 'far' is not a whole number from 0 to 8"),
        (SPACE.replace("[rows, columns]", "[diagonal]"), "order: 'diagonal' is not one of rows, columns"),
        (SPACE.replace("prefetch:", "prefetsh:"), "unknown field 'prefetsh': did you mean 'prefetch'?"),
        (SPACE + "    prefetch: [2]\n", "tiled: prefetch must be [0]: this family does not take it"),
    ):
        with pytest.raises(InputError) as caught:
            space_of(file, text)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_explain_says_it(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command with --family and --explain, nothing else: what the parameter is, and what is left."""
    (tmp_path / "ahead.yaml").write_text(SPACE)
    sizes = ["-m", 64, "-n", 512, "-k", 256, "--arch", "sm_90"]
    given = ["--family", file, "--space", tmp_path / "ahead.yaml", "--libtype", "triton,cute"]
    ran = run_here(capsys, *sizes, *given, "--explain")
    assert ran.status == 0, ran
    assert "prefetch = 0, 2, 8" in ran.out
    assert "steps of K that are asked for ahead" in ran.out
    assert "as much ahead as there is" in ran.out


@pytest.mark.parametrize(
    "name", ["M", "op", "arch", "time_us", "code", "source", "batch_size", "instruction_sched_variant"]
)
def test_a_key_of_results_is_no_name_for_it(file: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, where the family's file is given; what a results file says by that name stays what it is."""
    file.write_text(FILE.replace('"prefetch", "pf"', f'"{name}", "pf"'))
    ran = run_here(capsys, "-m", 64, "-n", 512, "-k", 256, "--arch", "sm_90", "--family", file, "--explain")
    assert ran.status == 2
    assert f"parameter {name}: this name has another meaning: choose another name" in ran.err
    assert str(file) in ran.err
    assert len(ran.err.splitlines()) == 1
    assert "cute_ahead" not in FAMILIES


def test_results_hold_it(file: Path, tmp_path: Path) -> None:
    """A key of its own in YAML, left out where it is neutral; what is read is what was written."""
    add_file(file)
    configs = [config(prefetch=2, order="columns"), config(), config(chunk=2)]
    winners = [replace(winner(m), config=each) for m, each in enumerate(configs, 1)]
    head, lines = tune_gemm_yaml.render(winners, 132, "")
    results = tmp_path / "results.yaml"
    results.write_text(head + "".join(lines))
    assert "'order': 'columns', 'prefetch': 2" in lines[0]
    assert "prefetch" not in lines[1] + lines[2]
    assert "'chunk': 2" in lines[2]
    assert [row.config for row in read_results(str(results), GemmDefaults())] == configs
    line = tune_gemm_yaml.size_line(PROBLEM, configs[0], "sm_90")
    assert "'prefetch': 2" in line
    values = {"family": "cute_ahead", **configs[0].values}
    assert config_of(values) == configs[0]
    with pytest.raises(InputError, match=r"prefetch = 12.* 0 to 8"):
        config_of({**values, "prefetch": 12})


def test_candidates_name_it(file: Path, tmp_path: Path) -> None:
    """A row of -o2's file has the config's name, which says it."""
    add_file(file)
    told = report(replace(winner(1), config=config()))
    named = {config(prefetch=number).name: each for number, each in enumerate(told.candidates.values())}
    told.candidates = {name: replace(each, config=name) for name, each in named.items()}
    path = tmp_path / "candidates.csv"
    CandidatesFile(str(path), [PROBLEM]).append(told)
    with open(path, newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert {parse_config(row["config"]).prefetch for row in rows} == {0, 1, 2}


def test_binaries_are_told_apart(file: Path) -> None:
    """By what is compiled in: its key and symbol; what is an argument of launches is in neither, but in the plan."""
    add_file(file)
    problem, op = PROBLEM, get_op("a16w16")
    module = generate(problem, [config(prefetch=2)], "sm_90", H200)

    def spec(**named: int | str) -> object:
        return kernel_specs(problem, config(**named), op, module.source_sha256, "sm_90")[0]

    one, two, turned, chunked = spec(prefetch=1), spec(prefetch=2), spec(prefetch=1, order="columns"), spec(chunk=4)
    target = Target("cuda", 90, 32)
    assert dict(one.constants)["prefetch"] == 1  # type: ignore[attr-defined]
    assert len({each.key(target, "3.7.1") for each in (one, two, turned, spec())}) == 4  # type: ignore[attr-defined]
    assert chunked == spec()
    assert compiled_in(config(prefetch=2, chunk=4)) == config(prefetch=2)
    product = product_of(problem, op, "sm_90")
    plans = [launch_plan(product, config(chunk=number), H200) for number in (1, 4)]
    assert plans[0] != plans[1]
    assert plans[0] == launch_plan(product, config(), H200)


def test_an_own_parameter_is_part_of_a_packed_symbol(file: Path) -> None:
    """A binary of a bundle has it in its symbol."""
    add_file(file)
    packer = Packer(StandInFarm(BinaryCache(file.parent / "cache")), "sm_90", file.parent)
    packer.pack([CallToPack(config(prefetch=2), H200, MRange(1, 64, PROBLEM))])
    beside = set(packer.row_kernels.values())
    (binary,) = (each for digest, each in packer.binaries.items() if digest not in beside)
    assert binary.symbol == "matmul_cute_ahead_BM64_BN64_BK64_nW4_nS1_pf2_0"


def test_the_table_of_a_module_has_it(file: Path) -> None:
    """Of a family in Triton, also where all configs have it at its neutral value: its kernel has it as a constant."""
    add_file(file)
    add(Family("ahead", FORMS["tiled"], (PARAMETERS.by_name["prefetch"],)))
    plain = Config("ahead", 64, 64, 64)
    _, loaded = make_module(file.parent, PROBLEM, [plain, plain.with_values(prefetch=3)], "sm_90")
    assert [(name, each.prefetch) for name, each in loaded.CONFIGS.items()] == [
        (plain.name, 0),
        (plain.with_values(prefetch=3).name, 3),
    ]
    _, loaded = make_module(file.parent, PROBLEM, [plain], "sm_90")
    assert loaded.CONFIGS[plain.name].prefetch == 0
    (launch,) = loaded.launches(loaded.CONFIGS[plain.name], loaded.make_operands("cpu"), 132)
    assert launch.constants["PREFETCH"] == 0


def test_processes_that_it_starts_know_it(file: Path) -> None:
    """A worker reads its names."""
    add_file(file)
    code = (
        "import sys; from genkern.files.config_entry import parse_config as parse; print(parse(sys.argv[1]).prefetch)"
    )
    name = config(prefetch=7).name
    ran = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "7\n"), ran.stderr


MEASURED = """
import sys
from genkern.profiling.loaded_gemm import Launchable, LoadedGemm
gemm = object.__new__(LoadedGemm)
gemm.units = 132
plan, known = gemm._plan_of(Launchable("any", (), sys.argv[1], {"GROUP_SIZE_M": 1, "SPLIT_K": 1, "chunk": 4}))
print(plan.closed(known).launches[0].arguments[-1].value, "genkern.kernels.catalogue" in sys.modules)
"""


def test_the_measured_process_needs_no_family(file: Path) -> None:
    """It reads plans that hang on a parameter which nobody has declared there."""
    add_file(file)
    plan = plan_text(product_of(PROBLEM, get_op("a16w16"), "sm_90"), config(chunk=4), H200)
    ran = subprocess.run([sys.executable, "-c", MEASURED, plan], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "4 False\n"), ran.stderr


def test_what_is_set_at_run_time_is_in_no_binary(file: Path) -> None:
    """Pruning counts the binaries that there are to compile."""
    add_file(file)
    text = SPACE.replace("    order: [rows, columns]\n", "    order: [rows]\n    chunk: [1, 2, 4]\n")
    pruned = prune(space_of(file, text), PROBLEM, H200)
    assert len([each for each in pruned.kept if each.family == "cute_ahead"]) == 2 * 3
    assert pruned.binaries == 2 + 1


@pytest.mark.parametrize(
    ("found", "put", "message"),
    [
        ('"pf"', '"cl"', "parameter prefetch is 'cl' in config names, as another parameter is"),
        ('"prefetch", "pf"', '"swapped", "pf"', "there is another parameter swapped already"),
        ('ahead", 0)', 'ahead")', "parameter prefetch has no neutral value"),
        ('"pf"', '"p f"', "is not a parameter name, or 'p f' not a prefix"),
        ("range(9)", '("a b", "c")', "values must be whole numbers from 0 on, or words"),
    ],
)
def test_a_clash_is_one_line(file: Path, found: str, put: str, message: str) -> None:
    """That names the file; and nothing of it is known then."""
    assert found in FILE
    file.write_text(FILE.replace(found, put, 1))
    before = PARAMETERS.all
    with pytest.raises(InputError, match=message) as caught:
        add_file(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert PARAMETERS.all == before
    assert "cute_ahead" not in FAMILIES
