"""Tests of genkern/search/command_line.py: which strategy options mean together."""

from __future__ import annotations

import pytest

from genkern.cli.options import parse
from genkern.errors import InputError
from genkern.search.command_line import limit_option, strategy_option
from genkern.search.strategies import DEFAULT

SIZE = ("-m", "16", "-n", "128", "-k", "256")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", DEFAULT),
        ("--search predicted:16", "predicted:16"),
        ("--strategy cached", "cached"),
        ("--exhaustive", "exhaustive"),
        ("--search exhaustive --exhaustive", "exhaustive"),
        ("--search zero --search cached:7", "cached:7"),
        ("--protocol tune_gemm", "predicted"),
        ("--protocol tune_gemm --exhaustive", "exhaustive"),
    ],
)
def test_what_options_mean(given: str, said: str) -> None:
    """The short ones are the long ones; a protocol that measures everything leaves nothing out."""
    assert strategy_option(parse([*SIZE, *given.split()])).said == said


def test_another_default() -> None:
    """Only where the options mean none."""
    assert strategy_option(parse([*SIZE]), "zero").said == "zero"
    assert strategy_option(parse([*SIZE, "--search", "cached"]), "zero").said == "cached"
    assert strategy_option(parse([*SIZE, "--protocol", "tune_gemm"]), "zero").said == "predicted"


@pytest.mark.parametrize(("given", "said"), [("", ""), ("--budget 30s", "30s"), ("--search predicted --budget 7", "7")])
def test_what_a_budget_means(given: str, said: str) -> None:
    """It goes with every strategy that does not measure everything by its name."""
    options = parse([*SIZE, *given.split()])
    assert limit_option(options, strategy_option(options)).said == said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--budget soon", "--budget soon: write seconds"),
        ("--budget 9 --exhaustive", "--budget leaves out what --search exhaustive is to measure: give one of them"),
        ("--budget 9s --protocol tune_gemm", "what --protocol tune_gemm is to measure"),
    ],
)
def test_what_is_no_limit_is_said(given: str, said: str) -> None:
    options = parse([*SIZE, *given.split()])
    with pytest.raises(InputError, match=said):
        limit_option(options, strategy_option(options))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--search cached --exhaustive", "--search cached and --exhaustive contradict each other: give one of them"),
        ("--search cached --protocol tune_gemm", "cached leaves out what --protocol tune_gemm is to measure"),
        ("--patience 9", "--patience is no longer part of genkern: use --budget N"),
    ],
)
def test_what_contradicts_itself_is_said(given: str, said: str) -> None:
    """In one line."""
    with pytest.raises(InputError, match=said) as caught:
        strategy_option(parse([*SIZE, *given.split()]))
    assert "\n" not in str(caught.value)
