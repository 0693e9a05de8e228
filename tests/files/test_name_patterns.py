"""Patterns of a checkpoint's configuration say what Python's re says, in bounded time."""

from __future__ import annotations

import contextlib
import random
import re
import time

import pytest

from genkern.files.name_patterns import NamePattern, Steps, UnreadPattern

NAME = "model.layers.12.mlp.experts.17.gate_proj"


def made_pattern(random_: random.Random, depth: int = 0) -> str:
    """A pattern of characters, classes, groups, repeats, anchors and look-aheads."""
    kind = random_.random()
    if depth > 3 or kind < 0.4:
        return random_.choice(["a", "b", ".", r"\.", "[ab]", "[^a]", r"\d", r"\w", "x", "[a-c1]"])
    inner = made_pattern(random_, depth + 1)
    if kind < 0.6:
        return inner + made_pattern(random_, depth + 1)
    if kind < 0.7:
        return f"({inner}|{made_pattern(random_, depth + 1)})"
    if kind < 0.85:
        return f"(?:{inner})" + random_.choice(["*", "+", "?", "{2}", "{1,3}", "*?", "{2,}", "{0}"])
    if kind < 0.92:
        return random_.choice(["(?=", "(?!"]) + inner + ")"
    return random_.choice(["^", "$", r"\b", r"\A"]) + inner


def test_a_pattern_matches_what_re_matches() -> None:
    """From the start, anywhere, and up to which positions, for random patterns and short texts."""
    random_ = random.Random(5)
    for _ in range(500):
        pattern = made_pattern(random_)
        own = NamePattern(pattern)
        for _ in range(4):
            text = "".join(random_.choice("ab.x1") for _ in range(random_.randint(0, 8)))
            assert own.matches(text) == (re.match(pattern, text) is not None), (pattern, text)
            assert own.found_in(text) == (re.search(pattern, text) is not None), (pattern, text)
            ends = [end for end in range(len(text) + 1) if re.match(rf"(?:{pattern})(?<=(?s:\A.{{{end}}}))", text)]
            assert set(ends) <= set(own.ends(text)), (pattern, text)
            assert bool(own.ends(text)) == own.matches(text)


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"(a+)+$", r"(a|a)*$", r"(.*)*x", ".*.*.*.*.*.*.*.*x", "((((a*)*)*)*)*b", "(a|aa)+$", "(.*a){20}x"),
        *("(a?){50}a{50}b", "a{1,65000}" * 10 + "b", r"(\w+\.?)+!", "(?=(a+)+b)a", r"^(\w|\d)+$"),
    ],
)
def test_no_pattern_takes_long(pattern: str) -> None:
    """Patterns that make a backtracking matcher run for years say no, or that they take too long, in a second."""
    start = time.process_time()
    own = NamePattern(pattern, Steps(100_000))
    with contextlib.suppress(UnreadPattern):
        assert not own.matches("a" * 120 + ".")
    assert time.process_time() - start < 1


def test_patterns_of_a_configuration_share_their_steps() -> None:
    """Many slow patterns together stop as one does."""
    steps = Steps(2000)
    patterns = [NamePattern(rf"(\w+\.)+!{each}", steps) for each in range(1000)]
    with pytest.raises(UnreadPattern, match="too long"):
        assert not any(pattern.matches(NAME) for pattern in patterns)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "invalid"),
        ("a**", "invalid"),
        ("a" * 1001, "1000 characters"),
        ("(" * 40 + "a" + ")" * 40, "deep"),
        (r"(a)\1", "groupref"),
        (r"(?<=a)b", "assert"),
        ("(?i)a", "flags"),
        ("(?i:a)", "flags"),
    ],
)
def test_what_is_not_followed_is_said(pattern: str, why: str) -> None:
    """With the pattern's first characters."""
    with pytest.raises(UnreadPattern, match=why) as caught:
        NamePattern(pattern)
    assert repr(pattern[:60]) in str(caught.value)
