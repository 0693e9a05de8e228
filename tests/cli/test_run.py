"""Tests of genkern/cli/run.py: whole runs of the command, on machines with and without a GPU."""

from __future__ import annotations

import csv
import importlib.metadata
import json
from collections import Counter
from pathlib import Path

import pytest
import yaml
from command import DATA, SMALL, run, run_here
from machines import machine
from small_gemms import needs_interpreter
from tiny_space import EVERYTHING, TINY_AMD, TINY_NVIDIA

from genkern.cli.candidates_file import COLUMNS
from genkern.files.file_kind import read_results
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome
from genkern.journal.batch import measurements_of
from genkern.journal.journal_line import entry_of
from genkern.space.prune import prune
from genkern.space.space import load_space
from genkern.timing.libraries import StoredAlgorithm

THREE = ["16x128x256", "33x64x4097", "64x128x256"]


@pytest.fixture
def sizes(tmp_path: Path) -> Path:
    """Three small sizes, one of them with an odd K."""
    path = tmp_path / "sizes.yaml"
    path.write_text(SMALL)
    return path


def predicted(cache_dir: Path) -> list[object]:
    """Options of a run that needs no GPU and little time."""
    target = ["--arch", "gfx942", "--profiler", "predict", "--compile", "--space", TINY_AMD]
    return [*target, "--jobs", 1, "--cache_dir", cache_dir]


def measured(cache_dir: Path) -> list[object]:
    """Options of a run on a machine with H200s."""
    return ["--space", TINY_NVIDIA, "--cache_dir", cache_dir]


def entries(path: Path) -> list[dict[str, object]]:
    """The results in a YAML file."""
    found: list[dict[str, object]] = yaml.safe_load(path.read_text())
    return found


def names(path: Path) -> list[str]:
    """The sizes in a YAML file of results, in its order."""
    return ["{M}x{N}x{K}".format(**entry) for entry in entries(path)]


def events(log: Path) -> list[str]:
    """What the measured processes did."""
    return log.read_text().splitlines() if log.exists() else []


def test_yaml_in_yaml_out(sizes: Path, tmp_path: Path, cache_dir: Path) -> None:
    """A process of its own: every size gets tune_gemm's keys and ours, predicted times say so, a table is printed."""
    results = tmp_path / "new folder" / "results.yaml"
    ran = run("--gemm-size-file", sizes, "--o", results, *predicted(cache_dir))
    assert (ran.status, ran.err) == (0, "")
    assert names(results) == THREE
    for entry in entries(results):
        assert entry["time_source"] == "predicted"
        assert entry["arch"] == "gfx942"
        assert entry["versions"]["triton"] == importlib.metadata.version("triton")  # type: ignore[index]
        assert {"BLOCK_SIZE_M", "num_warps", "kpack", "time_us", "TFLOPS"} <= entry.keys()
        assert entry["BLOCK_SIZE_M"] == Config.parse(str(entry["config"])).BLOCK_SIZE_M
    assert "AMD Instinct MI300X (gfx942), a16w16 bf16\n" in ran.out
    advice = ran.out.splitlines()[-1]
    assert "These times are predicted" in ran.out
    assert "a machine with a gfx942 GPU" in advice
    assert {path.name for path in results.parent.iterdir()} == {"results.yaml", "results.yaml.journal.previous"}
    assert not list((cache_dir / "modules").iterdir())


@needs_interpreter
@pytest.mark.usefixtures("fast_checks")
def test_an_activation_goes_through_a_whole_run(
    tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tuned, checked, written, and known again: with the option the size is done, without it another one."""
    results, candidates = tmp_path / "r.yaml", tmp_path / "c.csv"
    options = ["-m", 33, "-n", 64, "-k", 128, "-o", results, "-o2", candidates, *predicted(cache_dir)]
    ran = run_here(capsys, *options, "--activation", "gelu", "--bias_vector", "--compare")
    assert (ran.status, ran.err) == (0, "")
    assert "a16w16 bf16 bias, gelu\n" in ran.out
    assert [entry["activation"] for entry in entries(results)] == ["gelu"]
    with open(candidates) as file:
        assert {row["activation"] for row in csv.DictReader(file)} == {"gelu"}
    again = run_here(capsys, *options, "--activation", "gelu", "--bias_vector")
    assert "1 of 1 sizes are in" in again.out
    verified = run_here(capsys, "--compare_wo_tuning", "-i", results, "--cache_dir", cache_dir, *predicted(cache_dir))
    assert (verified.status, verified.err) == (0, "")
    assert "all 1 configs" in verified.out
    assert run_here(capsys, *options, "--bias_vector").status == 0
    assert [entry.get("activation") for entry in entries(results)] == ["gelu", None]


def test_aiter_csv_in_csv_out(tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """AITER's untuned list, spaces after commas included, becomes AITER's tuned table, which then grows."""
    untuned, tuned = tmp_path / "untuned.csv", tmp_path / "tuned.csv"
    untuned.write_text(
        "M, N, K, bias, dtype, outdtype, scaleAB, bpreshuffle\n"
        "16, 128, 256, False, torch.bfloat16, torch.bfloat16, False, False\n"
    )
    assert run_here(capsys, "-i", untuned, "--tuned_file", tuned, *predicted(cache_dir)).status == 0
    first = tuned.read_text()
    rows = list(csv.DictReader(first.splitlines()))
    assert [(row["gfx"], row["M"], row["N"], row["K"]) for row in rows] == [("gfx942", "16", "128", "256")]
    assert rows[0]["libtype"] == "genkern_predicted"
    Config.parse(rows[0]["kernelName"])
    assert run_here(capsys, "-m", 64, "-n", 128, "-k", 256, "-o", tuned, *predicted(cache_dir)).status == 0
    assert tuned.read_text().startswith(first)
    assert len(tuned.read_text().splitlines()) == 3


def test_aiters_own_lists_and_tune_gemms_own_list_are_read(
    tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files written by others, with their odd sizes: every size is explained, and nothing else is done."""
    lists = {
        DATA / "tune_gemm" / "tuning_gemm_sizes.yaml": 63,
        DATA / "aiter" / "llama70B_untuned_gemm_bf16.csv": 156,
    }
    if not all(path.exists() for path in lists):
        pytest.skip("the files of others are not here")
    for path, sizes_in_it in lists.items():
        ran = run_here(capsys, "--input_file", path, "--explain", *predicted(cache_dir))
        assert (ran.status, ran.err) == (0, "")
        assert ran.out.count(" on AMD Instinct MI300X, space tiny_amd:\n") == sizes_in_it
        assert ran.out.count("\ngroup_m_redundant ") == ran.out.count("\nkept ") == sizes_in_it


def test_a_second_run_skips_what_is_done(
    sizes: Path, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so, touches nothing, and tunes only what is new; --all tunes everything again, to the same winners."""
    results = tmp_path / "r.yaml"
    options = ["-i", sizes, "-o", results, *predicted(cache_dir)]
    assert run_here(capsys, *options).status == 0
    before = results.read_bytes()
    again = run_here(capsys, *options)
    assert again.status == 0
    assert f"note: 3 of 3 sizes are in {results} already (--all tunes them again)\n" in again.out
    assert "candidates:" not in again.out
    # Nothing is checked either, which --compare asked for.
    assert "again, --compare_wo_tuning checks them)\n" in run_here(capsys, *options, "--compare").out
    assert results.read_bytes() == before
    sizes.write_text(SMALL + "- {'M': 1, 'N': 64, 'K': 64}\n")
    assert "note: 3 of 4 sizes" in run_here(capsys, *options).out
    assert results.read_bytes().startswith(before)
    assert names(results) == [*THREE, "1x64x64"]
    everything = run_here(capsys, *options, "--all")
    assert "already" not in everything.out
    assert results.read_bytes().startswith(before)


def test_sort_orders_the_results(
    sizes: Path, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Old and new entries each by size; without it the order is that of the list."""
    lines = SMALL.splitlines(keepends=True)
    sizes.write_text("".join(reversed(lines)))
    plain, ordered = tmp_path / "plain.yaml", tmp_path / "ordered.yaml"
    assert run_here(capsys, "-i", sizes, "-o", plain, *predicted(cache_dir)).status == 0
    assert run_here(capsys, "-i", sizes, "-o", ordered, "--sort", *predicted(cache_dir)).status == 0
    assert names(plain) == THREE[::-1]
    assert names(ordered) == THREE


def test_keep_keeps_modules_that_run_alone(tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In modules/ of the cache; without it nothing stays there."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "binaries").symlink_to(cache_dir / "binaries")
    (cache_dir / "binaries").mkdir(exist_ok=True)
    size = ["-m", 16, "-n", 128, "-k", 256, "-o", tmp_path / "r.yaml"]
    assert run_here(capsys, *size, *predicted(cache), "--keep").status == 0
    (module,) = (cache / "modules").iterdir()
    assert module.suffix == ".py"
    assert "def main(" in module.read_text()
    assert run_here(capsys, *size, *predicted(cache), "--all").status == 0
    assert list((cache / "modules").iterdir()) == [module]


def test_every_candidate_has_exactly_one_outcome(
    sizes: Path, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--profile_file lists each config that pruning left, once; with those pruned they make up the space."""
    profile = tmp_path / "candidates.csv"
    ran = run_here(capsys, "-i", sizes, "-o", tmp_path / "r.yaml", "-o2", profile, "-v", *predicted(cache_dir))
    assert ran.status == 0
    with open(profile) as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    space, gpu = load_space(str(TINY_AMD), "gfx942", "a16w16"), gpu_for_arch("gfx942")
    kept = {
        (str(size["M"]), str(size["N"]), str(size["K"]), config.name)
        for size in yaml.safe_load(SMALL)
        for config in prune(space, GemmProblem(**size), gpu).kept
    }
    assert Counter((row["M"], row["N"], row["K"], row["config"]) for row in rows) == Counter(kept)
    outcomes = {row["outcome"] for row in rows}
    assert outcomes - {"predicted"} <= {outcome.value for outcome in Outcome} - {"measured"}
    assert "predicted" in outcomes
    totals = next(line for line in ran.out.splitlines() if line.startswith("candidates: "))
    counts = [int(part.split()[-1].replace(",", "")) for part in totals.split(", ")]
    assert sum(counts) == 3 * space.size


def test_tuning_again_does_not_lose_a_better_config(
    tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a space that has the old winner no more, it is measured all the same, and stays."""
    poor = tmp_path / "poor.yaml"
    poor.write_text(
        "archs: [gfx942]\nops: [a16w16]\nrules: []\nfamilies:\n"
        "  - {family: tiled, BLOCK_SIZE_M: [256], BLOCK_SIZE_N: [128], BLOCK_SIZE_K: [32], num_warps: [8],\n"
        "     GROUP_SIZE_M: [1], SPLIT_K: [1], num_stages: [2], waves_per_eu: [0], matrix_instr_nonkdim: [16],\n"
        "     kpack: [1], schedule_hint: [none]}\n"
    )
    size = ["-m", 16, "-n", 128, "-k", 256, "-o", tmp_path / "r.yaml"]
    assert run_here(capsys, *size, *predicted(cache_dir)).status == 0
    good = entries(tmp_path / "r.yaml")
    again = run_here(capsys, *size, *predicted(cache_dir), "--all", "--space", poor)
    assert again.status == 0
    assert entries(tmp_path / "r.yaml")[0]["config"] == good[0]["config"]
    assert "candidates: predicted 2\n" in again.out


def test_candidates_of_sizes_that_are_not_tuned_again_stay(
    sizes: Path, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second run over a longer list adds to the profile file; --all replaces, and never doubles."""
    profile, results = tmp_path / "candidates.csv", tmp_path / "r.yaml"
    options = ["-o", results, "-o2", profile, *predicted(cache_dir)]
    assert run_here(capsys, "-m", 16, "-n", 128, "-k", 256, *options).status == 0
    first = profile.read_text()
    assert run_here(capsys, "-i", sizes, *options).status == 0
    longer = profile.read_text()
    assert longer.startswith(first)
    assert run_here(capsys, "-i", sizes, "--all", *options).status == 0
    assert sorted(profile.read_text().splitlines()) == sorted(longer.splitlines())


def test_several_gpus_make_the_same_file(
    sizes: Path, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine with two GPUs both measure; the results stand in the order of the list all the same."""
    log, results = tmp_path / "log", tmp_path / "r.yaml"
    env = machine(tmp_path, gpus=2, log=str(log))
    ran = run_here(capsys, "-i", sizes, "-o", results, "--mp", 2, *measured(cache_dir), env=env)
    assert (ran.status, ran.err) == (0, "")
    assert names(results) == THREE
    assert events(log).count("retime") == events(log).count("confirm") == 3
    assert {entry["time_source"] for entry in entries(results)} == {"cudagraph"}
    assert {entry["device"] for entry in entries(results)} == {"NVIDIA H200"}
    # But for what the strategy did not ask for.
    assert "predicted" not in ran.out.replace("predicted_out", "")
    assert "vs vendor" in ran.out


def test_the_librarys_best_call_is_in_results_and_table(sizes: Path, tmp_path: Path, cache_dir: Path) -> None:
    """Its algorithm to the bit, with PyTorch's own time beside it; --libtype leaves it out."""
    results, table = tmp_path / "r.yaml", tmp_path / "r.csv"
    algorithm = StoredAlgorithm(131000, bytes(range(64))).name
    env = machine(tmp_path, gpus=1, lt={algorithm: 99.9})
    ran = run("-i", sizes, "-o", results, *measured(cache_dir), env=env)
    assert (ran.status, ran.err) == (0, "")
    for entry in entries(results):
        assert (entry["vendor"], entry["choice"]) == (algorithm, "tie")
        assert entry["vendor_us"] == pytest.approx(99.9, rel=1e-2)
        assert entry["torch_us"] == pytest.approx(150, rel=1e-2)
    assert "0.999x vendor (cublaslt), a tie, 1.500x torch" in ran.out
    assert all(column in ran.out for column in ("vs vendor", "vs torch", "cublaslt", "tie 0.999x"))
    ran = run("-i", sizes, "-o", table, "--libtype", "torch,triton", *measured(cache_dir), env=env)
    assert (ran.status, ran.err) == (0, "")
    rows = read_results(str(table))
    assert {(row.vendor, row.choice) for row in rows} == {("torch", "config")}
    assert "1.500x vendor (cudagraph)" in ran.out
    times = tmp_path / "times.csv"
    ran = run("--benchmark", "-i", results, "-o", times, *measured(cache_dir)[-2:], env=env)
    assert (ran.status, ran.err) == (0, "")
    with open(times) as file:
        assert {row["vendor"] for row in csv.DictReader(file)} == {algorithm}


def test_duplicates_are_tuned_once_and_said_once(
    tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also when the second spelling says what is the default anyway."""
    sizes, results = tmp_path / "sizes.yaml", tmp_path / "r.yaml"
    one = "- {'M': 16, 'N': 128, 'K': 256}\n"
    sizes.write_text(one + one + "- {'M': 16, 'N': 128, 'K': 256, 'rowMajorA': 'T', 'dtype_a': 'bf16'}\n")
    ran = run_here(capsys, "-i", sizes, "-o", results, *predicted(cache_dir))
    assert ran.status == 0
    assert ran.out.count("duplicate size") == 1
    assert "2 duplicate sizes are tuned once: 16x128x256\n" in ran.out
    assert names(results) == ["16x128x256"]


def test_without_pytorch_predicted_tuning_works(tmp_path: Path, cache_dir: Path) -> None:
    """Compiling and predicting need neither a GPU nor PyTorch."""
    results = tmp_path / "r.yaml"
    env = machine(tmp_path, missing=["torch"])
    ran = run("-m", 16, "-n", 128, "-k", 256, "-o", results, *predicted(cache_dir), env=env)
    assert (ran.status, ran.err) == (0, "")
    assert names(results) == ["16x128x256"]


def test_an_interrupted_run_with_all_goes_on(
    sizes: Path, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command, --all included, does not begin from the start; another one is told of the journal."""
    log, results = tmp_path / "log", tmp_path / "r.yaml"
    search = [*EVERYTHING, *measured(cache_dir)]
    options = ["-i", sizes, "-o", results, "--all", *search]
    fine = machine(tmp_path, gpus=1, log=str(log))
    assert run_here(capsys, *options, env=fine).status == 0
    journal = results.with_name("r.yaml.journal")
    finished = results.with_name("r.yaml.journal.previous")
    whole = finished.read_text().splitlines(keepends=True)
    half = next(i for i, line in enumerate(whole) if json.loads(line)["fact"] == "won") + 4
    journal.write_text("".join(whole[:half]))
    before = len(events(log))
    other = run_here(capsys, "-m", 7, "-n", 64, "-k", 64, "-o", results, *search, env=fine)
    assert "all was True, is False" in other.refusal
    assert run_here(capsys, *options, env=fine).status == 0
    again = events(log)[before:]
    left = (entry_of(line.rstrip().encode()) for line in whole[half:])
    left_out = sum(len(entry["value"]["config"]) for entry in left if entry["fact"] == "screened")
    assert sum(line.startswith("screen") for line in again) == left_out
    assert names(results) == THREE


def test_the_journal_knows_driver_and_clocks(
    sizes: Path, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In its header, and the usual clock with the finals of each size; the driver stands in the results too.

    After an update of the driver, or on a GPU that is held to another clock, an interrupted run does not go on.
    """
    results, journal = tmp_path / "r.yaml", tmp_path / "r.yaml.journal"
    options = ["-i", sizes, "-o", results, *measured(cache_dir)]
    ran = run_here(capsys, *options, "--ngpus", 2, "-v", env=machine(tmp_path, gpus=2))
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.count("; finals at 1755 MHz, 688 W") == len(THREE)
    assert {entry["versions"]["driver"] for entry in entries(results)} == {"570.86.15"}  # type: ignore[index]
    text = results.with_name("r.yaml.journal.previous").read_text()
    facts = [entry_of(line.encode()) for line in text.splitlines()]
    header = facts[0]["value"]
    each = {"sm_clock_max_mhz": 1980, "memory_clock_max_mhz": 3201}
    assert (header["driver"], header["devices"]) == ("570.86.15", {"0": each, "1": each})
    finals = [measurements_of(fact["value"]) for fact in facts if fact["fact"] == "retimed"]
    assert [{final.usual_mhz for final in of_a_size} for of_a_size in finals] == [{1755.0}] * len(THREE)
    journal.write_text("".join(line + "\n" for line in text.splitlines()[:5]))
    results.unlink()
    updated = run_here(capsys, *options, env=machine(tmp_path, gpus=1, driver="580.1"))
    assert "driver was '570.86.15', is '580.1'" in updated.refusal
    held = run_here(capsys, *options, env=machine(tmp_path, gpus=1, sm_mhz=1755))
    assert "sm_clock_max_mhz was 1980, is 1755 on device 0" in held.refusal
    assert run_here(capsys, *options, env=machine(tmp_path, gpus=1)).status == 0
    assert names(results) == THREE


def test_options_about_measuring_are_said_to_be_idle(
    sizes: Path, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line where times are predicted, none where they are measured."""
    given = ["--iters", 20, "--protocol=genkern"]
    options = ["-i", sizes, "-o", tmp_path / "r.yaml", *predicted(cache_dir)]
    ran = run_here(capsys, *options, *given)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.count("--iters") == 1
    assert "note: --protocol, --iters have no effect on predicted times\n" in ran.out
    assert "no effect" not in run_here(capsys, *options, "--all").out
    measuring = ["-i", sizes, "-o", tmp_path / "m.yaml", *measured(cache_dir), *given]
    assert "no effect" not in run_here(capsys, *measuring, env=machine(tmp_path, gpus=1)).out
