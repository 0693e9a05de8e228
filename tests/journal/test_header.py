"""Tests of genkern/journal/header.py; how a journal refuses another header is in test_journal.py."""

from __future__ import annotations

from typing import Any

import pytest

from genkern.journal.header import header_of_today, origin_differences

WIDE, NARROW = {"name": "wide", "digest": "1"}, {"name": "narrow", "digest": "2"}
HEADER: dict[str, Any] = {
    "schema": 4,
    "triton": "3.7.0",
    "torch": "2.13",
    "arch": "sm_90",
    "time_source": "cudagraph",
    "space": {"a16w16": WIDE},
    "budget": {"final_rounds": 60},
    "init_type": "randn",
    "errRatio": 0.05,
    "compare": False,
    "all": False,
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"all": True, "compare": True, "torch": "2.14", "time_source": ""}, []),
        ({"space": {"a8w8": NARROW}}, []),
        ({"space": {"a16w16": NARROW, "a8w8": NARROW}}, ["the search space of a16w16 was wide, is narrow"]),
        ({"errRatio": 0.01, "triton": "3.8.0"}, ["errRatio was 0.05, is 0.01", "triton was '3.7.0', is '3.8.0'"]),
        ({"budget": {"final_rounds": 7}}, ["final_rounds was 60, is 7"]),
    ],
)
def test_only_what_makes_another_result_is_said(changes: dict[str, Any], said: list[str]) -> None:
    """Space, tolerance, Triton, inputs and budget; not what was asked of the run besides, nor spaces of other ops."""
    assert origin_differences(HEADER, {**HEADER, **changes}) == said


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ({}, "predicted"),
        ({"patience": 9}, "patience:9"),
        ({"budget": {"exhaustive": True}}, "exhaustive"),
        ({"strategy": "user_families.py 0123"}, "user_families.py 0123"),
        ({"strategy": "user_families.py 0123", "patience": 9}, "user_families.py 0123:9"),
        ({"strategy": "racing", "budget": {"exhaustive": False}}, "racing"),
    ],
)
def test_a_header_says_how_was_searched(before: dict[str, Any], said: str) -> None:
    """Also one of before, in which the number stood apart and the default of then was not named."""
    today = header_of_today({**HEADER, **before})
    assert today["strategy"] == said
    assert "patience" not in today
    assert header_of_today(today) == today


@pytest.mark.parametrize("was", ["none", "winner", "all"])
@pytest.mark.parametrize("asked", ["none", "winner", "all"])
def test_a_run_without_checks_is_none_with_them(was: str, asked: str) -> None:
    """More finalists checked make no other winner; a winner that nobody checked is not what is asked for."""
    said = origin_differences({**HEADER, "checks": was}, {**HEADER, "checks": asked})
    assert said == (["winners were not checked"] if was == "none" != asked else [])
