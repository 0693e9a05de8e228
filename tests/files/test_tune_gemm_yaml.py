from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from forms import FORMS, PLACES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_tests import repeats
from winner_factory import results_text, write_results

from genkern.errors import ResultsError
from genkern.files.file_kind import read_results
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import read_sizes
from genkern.gemm.config import Config
from genkern.gemm.problem import MAX_DIMENSION, GemmProblem
from genkern.gemm.records import Check
from genkern.kernels.catalogue import FAMILIES, block_problem, parameters_of, sums_of, warps_problem
from genkern.ops.op import gb_per_s
from genkern.result.result import Proof, Result

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "tune_gemm"
AMD = Config("tiled", 256, 128, 64, 8, 2, 8, 2, waves_per_eu=1, matrix_instr_nonkdim=16, kpack=2, schedule_hint="none")
NVIDIA = Config("persistent_tma", 128, 256, 64, 8, 1, 8, 3)
CHECK = Check(AMD.name, True, 0.0, 1e-05, "64x1280x8192", "float32 reference")
VERSIONS = (("genkern", "0.1.0"), ("triton", "3.7.0"), ("torch", "2.12.0+rocm7.1"))
AMD_WINNER = Result(
    GemmProblem(64, 1280, 8192),
    AMD,
    duration_us=12.34567,
    spread_us=0.125,
    samples=15,
    discarded=0,
    time_source="rocprofv3",
    arch="gfx942",
    device="AMD Instinct MI300X",
    versions=VERSIONS,
    check=Proof.of(CHECK),
    vendor_us=13.5,
    runner_up="tiled_BM64",
    runner_up_us=12.9,
)
NVIDIA_WINNER = Result(
    GemmProblem(4096, 6144, 4096, "a8w8", "fp8e4m3fn", "fp8e4m3fn", "fp16", bias=True),
    NVIDIA,
    duration_us=101.0,
    spread_us=0.0,
    samples=15,
    discarded=0,
    time_source="cudagraph",
    arch="sm_90",
    device="NVIDIA H200 (it's 'odd': {x}, # é)",
)
ENTRY = (
    "{'M': 64, 'N': 128, 'K': 256, 'rowMajorA': 'T', 'rowMajorB': 'N', 'BLOCK_SIZE_M': 64, 'BLOCK_SIZE_N': 64, "
    "'BLOCK_SIZE_K': 32, 'GROUP_SIZE_M': 4, 'SPLIT_K': 1, 'num_warps': 4, 'num_stages': 2, 'waves_per_eu': 0, "
    "'matrix_instr_nonkdim': 16, 'kpack': 2, 'instruction_sched_variant': 'none'}"
)


def expected(winner: Result) -> Result:
    """What a reader finds of a written winner: rounded times, the device's compute units, the order of sums."""
    check = winner.check and replace(winner.check, problem_size="")
    sums = sums_of(winner.problem, winner.known_config, winner.arch)
    return replace(winner, duration_us=round(winner.known_us, 4), compute_units=304, sums=sums, check=check)


def read(tmp_path: Path, text: str, defaults: GemmDefaults | None = None) -> list[Result]:
    path = tmp_path / "results.yaml"
    path.write_text(text)
    return read_results(str(path), defaults)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ResultsError) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert "results.yaml" in str(caught.value)
    return str(caught.value)


def test_winners_round_trip(tmp_path: Path) -> None:
    """What was written is read: problem, config, time, device with odd characters, versions, check."""
    path = str(tmp_path / "new" / "results.yaml")
    write_results(path, [AMD_WINNER, NVIDIA_WINNER])
    assert read_results(path) == [expected(AMD_WINNER), expected(NVIDIA_WINNER)]


def test_fields_of_the_loads_round_trip(tmp_path: Path) -> None:
    """xcd_remap and cache_modifier are written where they are set, and AITER's way to set none of them is read."""
    placed = dataclasses.replace(AMD_WINNER.config, xcd_remap=1, cache_modifier=".cg")
    path = str(tmp_path / "results.yaml")
    write_results(path, [dataclasses.replace(AMD_WINNER, config=placed), AMD_WINNER])
    assert [row.config for row in read_results(path)] == [placed, AMD_WINNER.config]
    one, other = yaml.safe_load(Path(path).read_text())
    assert (one["xcd_remap"], one["cache_modifier"]) == (1, ".cg")
    assert not {"xcd_remap", "cache_modifier"} & other.keys()
    for neutral in ("null", "''"):
        assert read(tmp_path, f"- {ENTRY[:-1]}, 'cache_modifier': {neutral}}}\n")[0].config.cache_modifier == "none"
    assert "cache_modifier = '.cv' is not usable" in refusal(tmp_path, f"- {ENTRY[:-1]}, 'cache_modifier': '.cv'}}\n")
    assert "xcd_remap = 2 is not usable" in refusal(tmp_path, f"- {ENTRY[:-1]}, 'xcd_remap': 2}}\n")
    assert "batch_invariant = 1 is not true or false" in refusal(tmp_path, f"- {ENTRY[:-1]}, 'batch_invariant': 1}}\n")
    assert "without sums" in refusal(tmp_path, f"- {ENTRY[:-1]}, 'batch_invariant': true}}\n")
    assert "vendor_sums = " in refusal(tmp_path, f"- {ENTRY[:-1]}, 'vendor_sums': 'a\u00e9'}}\n")
    assert "invariant_loss" in refusal(tmp_path, f"- {ENTRY[:-1]}, 'invariant_loss': -0.5}}\n")


def test_no_winners_is_an_empty_list(tmp_path: Path) -> None:
    """A run without winners writes a file that every reader takes as an empty list."""
    assert read(tmp_path, results_text([])) == []
    assert yaml.safe_load(results_text([])) == []


def test_line_is_tune_gemms(tmp_path: Path) -> None:
    """A line starts with tune_gemm's keys in its order and quotes, and ends with its comment."""
    line = results_text([AMD_WINNER]).splitlines()[1]
    assert line.startswith(
        "- {'M': 64, 'N': 1280, 'K': 8192, 'rowMajorA': 'T', 'rowMajorB': 'N', 'BLOCK_SIZE_M': 256, "
        "'BLOCK_SIZE_N': 128, 'BLOCK_SIZE_K': 64, 'GROUP_SIZE_M': 8, 'SPLIT_K': 2, 'num_warps': 8, 'num_stages': 2, "
        "'waves_per_eu': 1, 'matrix_instr_nonkdim': 16, 'kpack': 2, 'instruction_sched_variant': 'none', 'op': "
    )
    assert line.endswith("} # TFLOPS: 108.72 time(us): 12.35")


def test_any_yaml_reader_gets_the_values() -> None:
    """yaml.safe_load sees a plain list of mappings with numbers as numbers, 1e-05 among them."""
    amd, nvidia = yaml.safe_load(results_text([AMD_WINNER, NVIDIA_WINNER]))
    assert amd["worst_row_error"] == 1e-05
    assert amd["time_us"] == 12.3457
    assert amd["TFLOPS"] == pytest.approx(AMD_WINNER.problem.tflops(12.34567), abs=1e-3)
    assert amd["GBps"] == pytest.approx(gb_per_s(AMD_WINNER.problem, 12.34567), abs=1e-3)
    assert amd["versions"] == dict(VERSIONS)
    assert amd["check"] == "float32 reference"
    assert (amd["vendor_us"], amd["runner_up"], amd["runner_up_us"]) == (13.5, "tiled_BM64", 12.9)
    assert nvidia["bias"] is True
    assert nvidia["device"] == NVIDIA_WINNER.device
    assert not {"waves_per_eu", "matrix_instr_nonkdim", "kpack", "instruction_sched_variant"} & nvidia.keys()
    assert not {"error_ratio", "vendor_us", "runner_up"} & nvidia.keys()


def test_results_serve_as_a_size_list(tmp_path: Path) -> None:
    """The file that a run wrote can be tuned again: same problems, nothing else taken over."""
    path = str(tmp_path / "results.yaml")
    write_results(path, [AMD_WINNER, NVIDIA_WINNER])
    sizes = read_sizes(path, GemmDefaults(), "sm_90")
    assert sizes.problems == (AMD_WINNER.problem, NVIDIA_WINNER.problem)
    assert sizes.notes == ()


def test_activation_is_written_where_there_is_one(tmp_path: Path) -> None:
    """It comes back; a result that names none is of a product without, whatever the command line says."""
    problem = dataclasses.replace(AMD_WINNER.problem, activation="silu")
    text = results_text([AMD_WINNER, dataclasses.replace(AMD_WINNER, problem=problem)])
    plain, activated = yaml.safe_load(text)
    assert "activation" not in plain
    assert activated["activation"] == "silu"
    for defaults in (GemmDefaults(), GemmDefaults(activation="relu")):
        assert [row.problem for row in read(tmp_path, text, defaults)] == [AMD_WINNER.problem, problem]
        assert read_sizes(str(tmp_path / "results.yaml"), defaults, "gfx942").problems == (AMD_WINNER.problem, problem)
    assert read(tmp_path, f"- {ENTRY}\n", GemmDefaults(activation="relu"))[0].problem.activation == "none"
    assert "activation = 'tanh' is unknown" in refusal(tmp_path, text.replace("'silu'", "'tanh'"))


def test_measured_encoding_is_kept(tmp_path: Path) -> None:
    """Results of another target keep its fp8 encoding: they say what was measured."""
    problem = GemmProblem(1, 2, 3, "a8w8", "fp8e4m3fnuz", "fp8e5m2fnuz")
    row = read(tmp_path, results_text([dataclasses.replace(AMD_WINNER, problem=problem)]))[0]
    assert row.problem == problem


def test_tune_gemms_entry(tmp_path: Path) -> None:
    """tune_gemm's own line has no family, types or device: tiled, the defaults, None; its time is in the comment."""
    row = read(tmp_path, f"- {ENTRY} # TFLOPS: 0.42 time(us): 9.87\n", GemmDefaults(dtype_a="fp16", bias=True))[0]
    assert row.problem == GemmProblem(64, 128, 256, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16", bias=True)
    assert row.config == Config("tiled", 64, 64, 32, 4, 1, 4, 2, waves_per_eu=0, matrix_instr_nonkdim=16, kpack=2)
    assert (row.duration_us, row.arch, row.device, row.time_source, row.versions) == (9.87, "", "", "", ())
    assert read(tmp_path, f"- {ENTRY}\n")[0].duration_us is None


def test_newer_name_of_the_hint(tmp_path: Path) -> None:
    """schedule_hint, the newer name of instruction_sched_variant, is read."""
    text = ENTRY.replace("'instruction_sched_variant': 'none'", "'schedule_hint': 'attention'")
    assert read(tmp_path, f"- {text}\n")[0].config.schedule_hint == "attention"


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data (files of tune_gemm)")
def test_tune_gemms_own_file() -> None:
    """tune_gemm's results file is read whole: 63 rows, every config plausible."""
    rows = read_results(str(SHARED / "fallback_tuned_configs.yaml"))
    assert len(rows) == 63
    assert rows[0].config == Config("tiled", 256, 256, 64, 8, 1, 8, 2, waves_per_eu=0, matrix_instr_nonkdim=16, kpack=2)
    assert {row.config.matrix_instr_nonkdim for row in rows} <= {16, 32}


@pytest.mark.parametrize(
    ("old", "new", "expected_text"),
    [
        ("'BLOCK_SIZE_M': 64", "'BLOCK_SIZE_M': 63", "BLOCK_SIZE_M = 63"),
        ("'BLOCK_SIZE_M': 64", "'BLOCK_SIZE_M': 2048", "BLOCK_SIZE_M = 2048"),
        ("'BLOCK_SIZE_M': 64", "'BLOCK_SIZE_M': true", "BLOCK_SIZE_M = true"),
        ("'BLOCK_SIZE_M': 64", "'BLOCK_SIZE_M': 64.0", "BLOCK_SIZE_M = 64.0"),
        ("'BLOCK_SIZE_M': 64, ", "", "BLOCK_SIZE_M is missing"),
        ("'num_warps': 4", "'num_warps': 3", "num_warps = 3"),
        ("'num_warps': 4", "'num_warps': 12", "num_warps = 12 is not a power of two"),
        ("'num_warps': 4", "'num_warps': 64", "num_warps = 64"),
        ("'num_warps': 4", "'num_warps': 4; import os", "num_warps"),
        ("'num_stages': 2", "'num_stages': -1", "num_stages = -1"),
        ("'SPLIT_K': 1", "'SPLIT_K': 0", "SPLIT_K = 0"),
        ("'kpack': 2", "'kpack': 9", "kpack = 9"),
        ("'kpack': 2", "'kpac': 2", "did you mean kpack"),
        ("'matrix_instr_nonkdim': 16", "'matrix_instr_nonkdim': 15", "nonkdim = 15"),
        ("'none'", "'none\"; import os'", "schedule_hint"),
        ("'none'", "'none', 'family': '{{ x }}'", "family"),
        ("'none'", "'none', 'time_us': .nan", "time_us = nan"),
        ("'none'", "'none', 'time_us': 0", "time_us = 0"),
        ("'none'", "'none', 'time_us': '5'", "time_us = '5'"),
        ("'none'", "'none', 'time_us': 0x" + "f" * 1000, "time_us"),
        ("'none'", "'none', 'spread_us': -1", "spread_us = -1"),
        ("'none'", "'none', 'error_ratio': 2", "error_ratio = 2"),
        ("'none'", "'none', 'worst_row_error': .inf", "worst_row_error"),
        ("'none'", "'none', 'arch': 942", "arch = 942"),
        ("'none'", "'none', 'versions': 3", "versions"),
        ("'none'", "'none', 'versions': {'triton': 3.7}", "triton = 3.7"),
        ("'none'", "'none', 'config': 'tiled_BM1'", "config is 'tiled_BM1'"),
        ("'none'", "'none', 'dtype_a': 'fp4'", "fp4"),
        ("'M': 64", "'M': 0", "M = 0"),
    ],
)
def test_bad_value_is_one_line(tmp_path: Path, old: str, new: str, expected_text: str) -> None:
    """Every value is checked; the message has file, line and key."""
    assert old in ENTRY
    message = refusal(tmp_path, f"- {ENTRY}\n- {ENTRY.replace(old, new)}\n")
    assert "line 2" in message
    assert expected_text in message


@pytest.mark.parametrize("text", ["", "M: 1\n", "- 5\n", "- {M: 1\n", "\x00", "- {M: 1, N: 1, K: 1}\n"])
def test_other_files_are_one_line(tmp_path: Path, text: str) -> None:
    """An empty file, a size list, broken YAML: ResultsError in one line."""
    refusal(tmp_path, text)


def test_newer_schema_is_refused(tmp_path: Path) -> None:
    """A file of a later genkern is not read as if it were this one's."""
    assert "schema 2" in refusal(tmp_path, results_text([AMD_WINNER]).replace("schema 1", "schema 2"))


SIDES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Any form of any family, with any values of its parameters that it may have."""
    stem = draw(st.sampled_from(tuple(FORMS)))
    family, others = PLACES[stem]
    language, declared = FAMILIES[family].language, parameters_of(family)
    chosen = dict(others)
    for side in SIDES:
        able = [size for size in range(8, 1025, 8) if not block_problem(FORMS[stem], side, size, language)]
        chosen[side] = draw(st.sampled_from(able))
    for name, parameter in declared.items():
        values = parameter.values or ("none", "attention", "iglp0")
        if name == "num_warps":
            values = tuple(value for value in values if not warps_problem(language, int(value)))
        if name not in SIDES and not parameter.in_text:
            chosen[name] = draw(st.sampled_from(values))
    return Config(family, **chosen)  # type: ignore[arg-type]


SIZES = st.integers(1, MAX_DIMENSION)
TIMES = st.floats(0.001, 1e7)
PROBLEMS = st.builds(
    GemmProblem,
    *(SIZES, SIZES, SIZES, st.just("a16w16"), st.just("fp16"), st.just("fp16")),
    *(st.sampled_from(["fp16", "fp32"]), st.booleans(), st.booleans(), st.booleans()),
)


@settings(max_examples=repeats(100, 300), deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    problem=PROBLEMS,
    config=configs(),
    time_us=TIMES,
    spread_us=TIMES,
    device=st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=30),
    error=st.floats(0, 1),
)
def test_any_winner_round_trips(
    tmp_path: Path, problem: GemmProblem, config: Config, time_us: float, spread_us: float, device: str, error: float
) -> None:
    """Any problem, config, time and printable device text comes back; times to 0.1 ns."""
    winner = Result(
        problem,
        config,
        arch="sm_90",
        device=device,
        duration_us=time_us,
        time_source="cupti",
        spread_us=spread_us,
        vendor_us=time_us,
        check=Proof(device, "", error, error, problem.size),
        versions=(("triton", device),),
    )
    write_results(str(tmp_path / "results.yaml"), [winner])
    row = read_results(str(tmp_path / "results.yaml"))[0]
    assert (row.problem, row.config, row.device) == (problem, config, device)
    assert row.check is not None
    assert row.check.error_ratio == error
    assert row.versions == (("triton", device),)
    assert row.duration_us is not None
    assert math.isclose(row.duration_us, time_us, abs_tol=1e-4)
