"""Flags and variables of other tuners: docs/porting.md says what becomes of each, and that is what happens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import ROOT, run_here

from genkern.cli.options import AITER_ERROR_RATIO, parse, parser
from genkern.cli.other_tuners import INSTEAD, VARIABLES_INSTEAD, unread_variables
from genkern.cli.target import choose_target
from genkern.errors import InputError
from genkern.files.aiter_variables import AITER_TABLES
from genkern.files.file_kind import read_results
from genkern.gemm.gpus import DetectedDevice
from genkern.runtime.calls.configuration import ONLINE_OF_OTHERS, Configuration, configuration

NAMES = {name for group in parser()._action_groups for each in group._group_actions for name in each.option_strings}
# ROCm/triton's tune_gemm.py (parse_args), ROCm/aiter's gradlib (gemm_tuner.py, GemmTuner.py), aiter/utility/
# base_tuner.py, and the tuners of csrc/ (CK's A4W4 has no flags of its own).
FLAGS = {
    *("-m", "-n", "-k", "-col_a", "-col_b", "-dtype_a", "-dtype_b", "-dtype_c", "--ngpus", "--gpu_ids"),
    *("--gemm_size_file", "--o", "--keep", "--compare", "--compare_wo_tuning", "--benchmark", "--time_breakdown"),
    *("--verbose", "--num_threads", "--jobs", "--iters", "--init_type", "--rotating_tensor", "--bias_vector"),
    *("--icache_flush", "--no_warmup", "--hack_triton_compiler"),
    *("--model_dir", "--batch_size", "--nsets", "--tp", "--tuned_file", "--input_file", "--indtype", "--outdtype"),
    *("--all_bias", "-v", "-i", "--untune_file", "-o", "--tune_file", "--mp", "--splitK", "--shape_grouped"),
    *("--sort", "--errRatio", "--batch", "--all", "-o2", "--profile_file", "--warmup", "--timeout", "--run_config"),
    *("--update_improved", "--min_improvement_pct", "--libtype", "--with-hipblaslt", "--preshuffle", "--blockPerCu"),
    *("--last", "--grouped-gemm", "--mxfp4-flydsl"),
}


def rows(kind: str) -> Iterator[tuple[list[str], str]]:
    """The names of each row of a table of the page, and what genkern does with them."""
    for line in (ROOT / "docs" / "porting.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if len(cells) >= 3 and cells[0].startswith("`") and (cells[0][1] == "-") == (kind == "flags"):
            yield re.findall("`([^`]+)`", cells[0]), cells[2]


DOCUMENTED = [(name, what) for names, what in rows("flags") for name in names]


def test_every_flag_of_the_seeds_is_documented() -> None:
    """And every flag that is refused by name."""
    documented = {name.replace("-", "_").lstrip("_") for name, _ in DOCUMENTED}
    assert {name.replace("-", "_").lstrip("_") for name in FLAGS | INSTEAD.keys()} <= documented


@pytest.mark.parametrize(("flag", "what"), DOCUMENTED)
def test_a_flag_is_accepted_or_refused_by_name(flag: str, what: str) -> None:
    """As the page says; what is refused says what to write instead."""
    if what == "accepted":
        assert flag in NAMES
        return
    assert what == "refused"
    with pytest.raises(InputError, match=re.escape(flag)) as error:
        parse(["-i", "sizes.yaml", f"{flag}=1"])
    assert INSTEAD["--" + flag.lstrip("-").replace("-", "_")] in str(error.value)


@pytest.mark.parametrize("names_what", list(rows("variables")), ids=lambda row: row[0][0])
def test_a_variable_is_read_or_told_of(names_what: tuple[list[str], str]) -> None:
    """As the page says: it changes what a program does, or a line names it."""
    names, what = names_what
    for name in names:
        found = configuration({name: "1"})
        said = [*found.notes, *unread_variables({name: "1"})]
        if what == "read":
            assert (found != Configuration(), said) == (True, [])
        else:
            assert what == "told"
            assert [name in line for line in said] == [True]


def test_every_variable_is_documented() -> None:
    """Those of the tables in the code, and AITER's switches."""
    documented = {name for names, _ in rows("variables") for name in names}
    switches = {"AITER_TUNE_GEMM", "AITER_LOG_TUNED_CONFIG"}
    assert {*AITER_TABLES, *ONLINE_OF_OTHERS, *VARIABLES_INSTEAD, *switches} <= documented


@pytest.mark.parametrize("argv", [["-i", "x.csv", "-k"], ["-i", "x.csv", "-k", "-o", "y.csv"], ["-k", "--mp", "2"]])
def test_aiters_k_is_no_size(argv: list[str]) -> None:
    """Its -k, which asks for split-K, has no value."""
    with pytest.raises(InputError, match="splitK"):
        parse(argv)


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["-i", "a.csv"], "errRatio", AITER_ERROR_RATIO),
        (["-i", "a.CSV", "--rtol", "0.1"], "errRatio", 0.0),
        (["-i", "a.csv", "--errRatio", "0.5"], "errRatio", 0.5),
        (["-i", "a.yaml"], "errRatio", 1.0),
        (["--untune_file", "a.csv"], "gemm_size_file", "a.csv"),
        (["-i", "a", "--tune_file", "b.csv"], "tuning_results_file", "b.csv"),
        (["-i", "a", "--indtype", "f16", "--outdtype", "bf16"], "dtype_a", "f16"),
        (["-i", "a", "--sort", "True"], "sort", True),
        (["-i", "a", "--sort", "False"], "sort", False),
        (["-i", "a", "--sort", "-v"], "sort", True),
        (["--model_dir", "d", "--nsets", "512,1"], "nsets", (1, 512)),
        (["--model-dir", "d", "--tp", "8"], "tp", 8),
    ],
)
def test_spellings_and_defaults_of_aiter(argv: list[str], name: str, value: object) -> None:
    """As its tuners have them for their own files."""
    assert getattr(parse(argv), name) == value


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-i", "a", "--model_dir", "d"], "--model_dir"),
        (["-m", "1", "-n", "1", "-k", "1", "--model_dir", "d"], "--model_dir"),
        (["-i", "a", "--tp", "2"], "--tp"),
        (["-i", "a", "--nsets", "2"], "--nsets"),
        (["--model_dir", "d", "--nsets", "2,x"], "list of numbers"),
        (["--compare_wo_tuning", "-i", "a", "--model_dir", "d"], "results file"),
        (["--model_dir", "d", "--batch_size", "4"], "--batch_size"),
        (["--model_dir", ""], "--model_dir is empty"),
        (["-i", "a", "--sort", "maybe"], "neither True nor False"),
    ],
)
def test_refusals(argv: list[str], said: str) -> None:
    """Sizes come from one place, and options about a model need one."""
    with pytest.raises(InputError, match=said):
        parse(argv)


H200 = [DetectedDevice(index, "NVIDIA H200", "sm_90") for index in range(3)]


@pytest.mark.parametrize(
    ("argv", "gpus"),
    [
        (["-i", "a.csv"], (0, 1, 2)),
        (["-i", "a.csv", "--mp", "2"], (0, 1)),
        (["-i", "a.csv", "--gpu_ids", "2"], (2,)),
        (["-i", "a.csv", "--benchmark"], (0,)),
        (["-i", "a.yaml"], (0,)),
    ],
)
def test_all_gpus_measure_aiters_files(argv: list[str], gpus: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless --mp or --gpu_ids says which; of several kinds of GPUs those like the first."""
    monkeypatch.setattr("genkern.cli.target.installed", lambda package: True)
    assert choose_target(parse(argv), [*H200, DetectedDevice(3, "NVIDIA H100 PCIe", "sm_90")]).gpu_ids == gpus


@pytest.mark.parametrize("libtype", ["hipblaslt", "torch", "cublaslt,torch", "asm", "ck", "opus", "rocblas"])
def test_a_library_alone_needs_a_gpu(libtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without one nothing times it, and no kernel of genkern's wins in its place; AITER's own names lead to aiter."""
    argv = ["-m", 16, "-n", 64, "-k", 64, "--arch", "gfx942", "--profiler", "predict", "-o", tmp_path / "r.yaml"]
    refusal = run_here(capsys, *argv, "--libtype", libtype).refusal
    assert ("aiter" if libtype in ("asm", "ck", "opus", "rocblas") else "GPU") in refusal
    assert not (tmp_path / "r.yaml").exists()


def test_a_models_sizes_are_tuned(cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--model_dir, --tp and --nsets as gradlib has them; --all_bias doubles a size."""
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 256, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps({**config, "head_dim": 16}))
    argv = ["--model_dir", tmp_path, "--nsets", "4", "--arch", "gfx942", "--explain"]
    ran = run_here(capsys, *argv)
    assert ran.status == 0, ran
    sizes = set(re.findall(r"^(\d+x\d+x\d+) a16w16", ran.out, re.MULTILINE))
    assert {"4x128x64", "4x64x64", "4x256x64", "4x64x128"} <= sizes
    halved = run_here(capsys, *argv, "--tp", 2).out
    assert {"4x64x64", "4x64x32", "4x128x64"} <= set(re.findall(r"^(\d+x\d+x\d+) ", halved, re.MULTILINE))
    assert run_here(capsys, "--model_dir", tmp_path / "none", "--explain").refusal
    (tmp_path / "sizes.csv").write_text("M,N,K,bias,dtype\n16,64,64,False,torch.bfloat16\n")
    tuning = ["-i", tmp_path / "sizes.csv", "--all_bias", "--arch", "sm_90", "--profiler", "predict"]
    assert run_here(capsys, *tuning, "-o", tmp_path / "r.yaml", "--cache_dir", cache_dir).status == 0
    assert sorted(row.problem.bias for row in read_results(str(tmp_path / "r.yaml"))) == [False, True]


def test_variables_of_gradlib_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run names them, with the option in their place."""
    monkeypatch.setenv("GTUNE_TUNED", str(tmp_path / "x.csv"))
    ran = run_here(capsys, "-m", 16, "-n", 64, "-k", 64, "--arch", "gfx942", "--explain")
    assert "GTUNE_TUNED is not read: give -o" in ran.out
