"""Mistakes that tests plant in generated kernels in Gluon, and what tests/gluon_stand_in.py says to them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from gluon_cases import assert_exact, product, text_of

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

OVERWRITTEN = "overwritten while it is in use"
NOBODY = "a barrier that nobody completes"
TOO_MANY = "an arrival too many"
# An arrival that comes too early, or twice: what is met first depends on whose turn it is.
UNORDERED = f"{OVERWRITTEN}|{NOBODY}|{TOO_MANY}"
UNFINISHED = "used before its products are done"
EARLY = "read before what it needs has arrived"
UNSEEN = "where nobody else may have seen it"
OUTSIDE = "an address outside the ring"
UNMADE = "a barrier that is not made"
OTHER_KIND = "of the other kind"
IN_L2 = "another place in L2"
# What is changed in a kernel's text, into what, and what the stand-in says to it.
Mistakes = dict[str, tuple[str, str, str]]


def changed(problem: GemmProblem, config: Config, *changes: tuple[str, str]) -> str:
    """The generated module after these replacements, each of which finds something to replace."""
    text = text_of(problem, config)
    for pattern, replacement in changes:
        text, count = re.subn(pattern, replacement, text)
        assert count > 0, pattern
    ast.parse(text)
    return text


def said_to(text: str, problem: GemmProblem, config: Config, units: int, seeds: Iterable[int]) -> list[str]:
    """What the stand-in says to this text with each seed, where it says something."""
    found = []
    for seed in seeds:
        try:
            assert_exact(product(problem, config, units, seed=seed, text=text))
        except AssertionError as error:
            found.append(str(error))
    return found
