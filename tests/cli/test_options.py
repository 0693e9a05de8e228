"""Tests of genkern/cli/options.py: every way to write an option, every refusal, and the help."""

from __future__ import annotations

import argparse
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import repeats

from genkern.arguments import read_shard, shard_of
from genkern.cli.options import ABOUT_MEASURING, parse, parser
from genkern.cli.setting import make_setting
from genkern.errors import InputError
from genkern.journal.header import origin_differences
from genkern.search.strategies import ZERO
from genkern.subcommands import COMMANDS, MODES

SIZES = ["-i", "sizes.yaml"]
ACTIONS = [action for group in parser()._action_groups for action in group._group_actions]
NAMES = sorted({name for action in ACTIONS for name in action.option_strings})


@pytest.mark.parametrize(
    ("written", "name", "value"),
    [
        (["--gemm_size_file", "a b.yaml"], "gemm_size_file", "a b.yaml"),
        (["--gemm-size-file=a-b.yaml"], "gemm_size_file", "a-b.yaml"),
        (["--input_file", "x"], "gemm_size_file", "x"),
        (["--input-file", "x"], "gemm_size_file", "x"),
        (["-ix"], "gemm_size_file", "x"),
        ([*SIZES, "--tuning_results_file", "r"], "tuning_results_file", "r"),
        ([*SIZES, "--tuning-results-file=r"], "tuning_results_file", "r"),
        ([*SIZES, "-o", "r-1.csv"], "tuning_results_file", "r-1.csv"),
        ([*SIZES, "-or-1.csv"], "tuning_results_file", "r-1.csv"),
        ([*SIZES, "--o", "r"], "tuning_results_file", "r"),
        ([*SIZES, "--tuned_file", "r"], "tuning_results_file", "r"),
        ([*SIZES, "-o2", "p"], "profile_file", "p"),
        ([*SIZES, "--profile-file", "p"], "profile_file", "p"),
        ([*SIZES, "--mp", "2"], "ngpus", 2),
        ([*SIZES, "--ngpus=2"], "ngpus", 2),
        ([*SIZES, "--gpu-ids", "3,1,3"], "gpu_ids", (3, 1)),
        ([*SIZES, "--num_threads", "3"], "jobs", 3),
        ([*SIZES, "--jobs", "3"], "jobs", 3),
        ([*SIZES, "-dtype_a", "fp16"], "dtype_a", "fp16"),
        ([*SIZES, "-dtype-a", "fp16"], "dtype_a", "fp16"),
        ([*SIZES, "--dtype-c=fp32"], "dtype_c", "fp32"),
        ([*SIZES, "-col_a"], "col_a", True),
        ([*SIZES, "-row_b"], "row_b", True),
        ([*SIZES, "-col_b"], "row_b", False),
        ([*SIZES, "--bias-vector"], "bias_vector", True),
        ([*SIZES, "--activation=gelu"], "activation", "gelu"),
        (SIZES, "activation", "none"),
        ([*SIZES, "--errRatio", "0.1"], "errRatio", 0.1),
        (SIZES, "errRatio", 1.0),
        ([*SIZES, "--atol", "0.1"], "errRatio", 0.0),
        ([*SIZES, "--rtol=1e-3"], "errRatio", 0.0),
        ([*SIZES, "--rtol", "1e-3", "--errRatio", "0.05"], "errRatio", 0.05),
        ([*SIZES, "--rtol", "1e-3"], "rtol", 1e-3),
        (SIZES, "atol", 0.01),
        ([*SIZES, "--num-iters", "100"], "num_iters", 100),
        (SIZES, "num_iters", None),
        ([*SIZES, "--no-check"], "no_check", True),
        ([*SIZES, "--rotating-tensor", "0"], "rotating_tensor", 0.0),
        ([*SIZES, "--compare-wo-tuning"], "compare_wo_tuning", True),
        ([*SIZES, "-vv"], "verbose", 2),
        ([*SIZES, "--verbose"], "verbose", 1),
        (["-m", "1", "-n", "2", "-k3"], "k", 3),
        (["--benchmark", "-o", "r.yaml"], "tuning_results_file", "r.yaml"),
    ],
)
def test_every_spelling_is_understood(written: list[str], name: str, value: object) -> None:
    """Underscores, dashes, one dash, an equals sign, tune_gemm's and AITER's names: the same option."""
    assert getattr(parse(written), name) == value


def test_defaults_are_those_of_the_help() -> None:
    """What the help says of defaults is what `parse` does."""
    options = parse(SIZES)
    for action in ACTIONS:
        said = re.search(r"\(default: ([\d.]+)\)", action.help or "")
        if said:
            assert getattr(options, action.dest) == float(said[1]), action.dest
    assert options.jobs >= 1


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ([], "nothing to tune"),
        (["-m", "5"], "all of -m, -n and -k"),
        (["-m", "5", "-k", "6"], "all of -m, -n and -k"),
        (["-m", "5", "-n", "5", "-k", "6", *SIZES], "not both"),
        (["-m", "4.5", "-n", "5", "-k", "6"], "'4.5' is not a whole number"),
        (["-m", "__import__('os')", "-n", "5", "-k", "6"], "is not a whole number"),
        (["-m", "9" * 5000, "-n", "5", "-k", "6"], "is not a whole number"),
        ([*SIZES, "--op", "a4w4"], "a16w16"),
        ([*SIZES, "--activation", "tanh"], "silu"),
        ([*SIZES, "--activation"], "expected one argument"),
        ([*SIZES, "--profiler", "nsys"], "cudagraph"),
        ([*SIZES, "--compare", "--benchmark"], "not allowed with"),
        ([*SIZES, "--gpu_ids", "0", "--ngpus", "1"], "not allowed with"),
        ([*SIZES, "--gpu_ids", "-1"], "--gpu_ids"),
        ([*SIZES, "--gpu_ids", "a,b"], "list of GPU numbers"),
        ([*SIZES, "--jobs", "0"], "whole number from 1"),
        ([*SIZES, "--jobs", "nan"], "whole number from 1"),
        ([*SIZES, "--timeout", "nan"], "number of seconds"),
        ([*SIZES, "--timeout", "-5"], "--timeout"),
        ([*SIZES, "--rotating_tensor", "inf"], "number of MiB"),
        ([*SIZES, "--errRatio", "1.5"], "share from 0 to 1"),
        ([*SIZES, "--atol", "-1"], "number from 0"),
        ([*SIZES, "--rtol", "nan"], "number from 0"),
        ([*SIZES, "--iters", "5", "--num_iters", "5"], "not allowed with"),
        ([*SIZES, "--compare", "--no_check"], "contradict each other"),
        ([*SIZES, "--no-such"], "--no-such"),
        ([*SIZES, "--compar"], "--compar: did you mean --compare?"),
        ([*SIZES, "--gemm-size-fil=x"], "did you mean --gemm_size_file?"),
        ([*SIZES, "--arch", ""], "--arch is empty"),
        ([*SIZES, "--bucket_keys", "named"], "--bucket_keys belongs to --bucket"),
        ([*SIZES, "--predicted"], "--predicted belongs to --bucket"),
        ([*SIZES, "--tuning_results", "x"], "--tuning_results"),
        ([*SIZES, "stray"], "stray"),
        ([*SIZES, "--space"], "expected one argument"),
        (["--compare_wo_tuning"], "reads a results file"),
        (["--benchmark", "-m", "1", "-n", "1", "-k", "1"], "reads a results file"),
        (["--benchmark", "-i", "r.yaml", "-o", "./r.yaml"], "write its times over"),
        (["-i", "s.csv", "-o2", "./s.csv"], "--profile_file"),
        ([*SIZES, "-o", ""], "-o is empty"),
        (["-i", ""], "--gemm_size_file is empty"),
        ([*SIZES, "-o", "r.json"], "results are YAML"),
        ([*SIZES, "-o", "r.csv", "-o2", "x/../r.csv"], "--profile_file"),
    ],
)
def test_refusals_name_the_option_and_the_way_out(written: list[str], said: str) -> None:
    """Nothing that cannot be meant is taken; the message is short whatever was written."""
    with pytest.raises(InputError) as refused:
        parse(written)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("words", [[], *([word] for word in MODES)])
def test_help_is_one_screen_and_names_only_what_there_is(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At most 50 lines; every option that it names is one of the parser, every command one of the table."""
    for columns, most in (("200", 100), ("82", 82)):
        monkeypatch.setenv("COLUMNS", columns)
        with pytest.raises(SystemExit) as left:
            parse([*words, "--help"])
        assert left.value.code == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= 50
        assert max(map(len, lines)) <= most
        named = {
            name.replace("-", "_").replace("__", "--", 1)
            for name in re.findall(r"(?<!\S)--[a-z][\w-]+", "\n".join(lines))
        }
        assert named <= {*parser("".join(words))._option_string_actions}
    if not words:
        assert all(re.search(rf"\b{word}\b", "\n".join(lines)) for word in COMMANDS)


def test_whole_help_fits_100_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a wide terminal too; on a narrow one it wraps."""
    for columns, most in (("200", 100), ("80", 80)):
        monkeypatch.setenv("COLUMNS", columns)
        with pytest.raises(SystemExit) as left:
            parse(["--help-all"])
        assert left.value.code == 0
        text = capsys.readouterr().out
        head, _, rest = text.partition("\nwhat to tune:")
        options, _, examples = rest.partition("\nexamples:")
        assert max(map(len, options.splitlines())) <= most
        assert max(map(len, (head + examples).splitlines())) <= 100


def test_help_groups_every_option_with_units_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option stands in a group of its own kind and says what it is; a value has a name and a default."""
    with pytest.raises(SystemExit):
        parse(["--help_all"])
    text = capsys.readouterr().out
    for title in ("what to tune", "what to do", "how to measure", "search and compile", "results", "examples"):
        assert re.search(rf"^{title}.*:$|^.*{title}:$", text, re.MULTILINE), title
    assert "\noptions:\n" not in text
    for action in ACTIONS:
        assert action.help, action.dest
        longest = max(action.option_strings, key=len)
        assert longest in text
        if action.nargs != 0 and action.dest not in ("m", "n", "k", "gemm_size_file", "ngpus", "profile_file"):
            assert "default" in action.help, action.dest
    for unit in ("seconds", "MiB"):
        assert unit in text


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The name and a version, and nothing is run."""
    with pytest.raises(SystemExit) as left:
        parse(["--version"])
    assert left.value.code == 0
    assert re.fullmatch(r"genkern \d+\.\d+\.\d+\n", capsys.readouterr().out)


# A process is given no argument with a NUL in it.
LETTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
WORDS = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(NAMES).map(lambda name: name.replace("_", "-")),
    st.tuples(st.sampled_from(NAMES), st.text(LETTERS, max_size=8)).map("=".join),
    st.sampled_from(["0", "1", "-1", "1e9", "nan", "fp8", "a8w8", "gfx942", "x.yaml", "0,1", "--", "-", "", "%s", "%"]),
    st.text(LETTERS, max_size=12),
)


@settings(max_examples=repeats(150, 400))
@given(st.lists(WORDS, max_size=8))
def test_whatever_is_written_is_taken_or_refused(written: list[str]) -> None:
    """No traceback: options, an InputError with one printable message, or the exit of --help and --version."""
    try:
        outcome: object = parse(written)
    except (InputError, SystemExit) as error:
        outcome = error
    if isinstance(outcome, SystemExit):
        assert outcome.code == 0
        assert any(word.startswith("-") for word in written)
    else:
        assert str(outcome)
        assert isinstance(outcome, InputError | argparse.Namespace)


def test_what_was_written_is_told_from_defaults() -> None:
    """In whichever spelling, a default's own value too; and only a tuning can be gone on with."""
    assert parse(SIZES).given.isdisjoint(ABOUT_MEASURING)
    written = parse([*SIZES, "--iters=60", "--rotating-tensor", "0", "--exhaustive"])
    assert written.given & set(ABOUT_MEASURING) == {"--iters", "--rotating_tensor", "--exhaustive"}
    assert set(ABOUT_MEASURING) <= {name for action in ACTIONS for name in action.option_strings}
    assert parse([*SIZES, "--compare"]).tunes
    for mode in ("--compare_wo_tuning", "--benchmark", "--explain"):
        assert not parse([*SIZES, mode]).tunes


def test_rounds_and_tolerances_reach_the_budget() -> None:
    """--num_iters sets the fewest rounds too, --atol and --rtol go with each session; journals without them are as
    they were."""
    size = ["-m", "16", "-n", "128", "-k", "256", "--arch", "gfx942", "--profiler", "predict"]
    plain = make_setting(parse(size))
    asked = make_setting(parse([*size, "--num_iters", "100", "--atol", "0.5"]))
    rounds = [(setting.budget.min_rounds, setting.budget.final_rounds) for setting in (plain, asked)]
    assert rounds == [(10, 60), (100, 100)]
    few = make_setting(parse([*size, "--num_iters", "3"])).budget
    assert (few.min_rounds, few.final_rounds) == (3, 3)
    assert (asked.budget.atol, asked.budget.rtol, asked.options.errRatio) == (0.5, 0.01, 0.0)
    headers = [setting.journal_header({}, "predicted") for setting in (plain, asked)]
    assert not {"atol", "rtol"} & {*headers[0], *headers[0]["budget"]}  # type: ignore[misc]
    said = origin_differences(*headers)
    assert "atol was None, is 0.5" in said
    assert "errRatio was 1.0, is 0.0" in said


def test_shards_are_all_of_a_list() -> None:
    """Each item is in one shard; neighbours are in different ones."""
    assert [shard_of("abcdefg", f"{number}/3") for number in (1, 2, 3)] == [tuple("adg"), tuple("be"), tuple("cf")]
    assert shard_of("abc", None) == tuple("abc")
    assert shard_of("abc", "5/5") == ()
    for text in ("0/2", "3/2", "1", "1/", "-1/2", "01/2", "1/2 "):
        with pytest.raises(argparse.ArgumentTypeError):
            read_shard(text)


def test_a_check_asks_for_no_other_search() -> None:
    """Without a GPU the model's first choice wins, checked or not; only with -o2 more are tried."""
    size = ["-m", "1", "-n", "16", "-k", "16", "--arch", "sm_90", "--profiler", "predict", "--compile"]
    for wanted, name in (([], ZERO), (["--compare"], ZERO), (["-o2", "all.csv"], "guided")):
        assert make_setting(parse([*size, *wanted])).strategy.name == name


@pytest.mark.parametrize(("options", "predicts"), [([], True), (["--compile"], False), (["--keep"], False)])
def test_kernels_are_made_without_a_gpu_if_an_option_asks_for_them(options: list[str], predicts: bool) -> None:
    size = ["-m", "1", "-n", "16", "-k", "16", "--arch", "sm_90", "--profiler", "predict"]
    assert make_setting(parse([*size, *options])).predicts == predicts
