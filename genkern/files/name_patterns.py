"""Patterns for module names from a checkpoint's configuration, matched in bounded time.

A configuration is data that anyone may have written. Python's `re` backtracks, so a short pattern such as `(a+)+$` can
run for years. A pattern with at most two repeats, each of a single character, and one more at its end, goes to `re`;
any other pattern to a matcher that follows all positions of the name at once and stops after a number of steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

try:
    from re import _constants as _codes  # type: ignore[attr-defined]
    from re import _parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants as _codes
    import sre_parse as _parser

_LONGEST_PATTERN = 1000
_LONGEST_NAME = 300
_DEEPEST = 30
# Repeats before the end of a pattern that `re` may have: a name of 100 characters is split in 5,000 ways by two.
_MOST_REPEATS = 2
_CLASSES: dict[Any, Callable[[str], bool]] = {
    _codes.CATEGORY_DIGIT: str.isdecimal,
    _codes.CATEGORY_NOT_DIGIT: lambda char: not char.isdecimal(),
    _codes.CATEGORY_SPACE: str.isspace,
    _codes.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    _codes.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
    _codes.CATEGORY_NOT_WORD: lambda char: not (char.isalnum() or char == "_"),
}
# Steps of the matcher for all patterns and names of a configuration: about ten seconds.
_MOST_STEPS = 20_000_000
_REPEATS = (_codes.MAX_REPEAT, _codes.MIN_REPEAT)
_ANCHORS = (_codes.AT_BEGINNING, _codes.AT_BEGINNING_STRING, _codes.AT_END, _codes.AT_END_STRING)
_BOUNDARIES = (_codes.AT_BOUNDARY, _codes.AT_NON_BOUNDARY)
_CHARACTERS = (_codes.LITERAL, _codes.NOT_LITERAL, _codes.ANY, _codes.IN)


class UnreadPattern(ValueError):
    """A pattern that is invalid, too long, or of a kind that cannot be matched in bounded time."""


@dataclass
class Steps:
    """The number of steps that the patterns of one configuration may still take in total."""

    left: int = _MOST_STEPS


class NamePattern:
    """A regular expression for module names."""

    def __init__(self, pattern: str, steps: Steps | None = None):
        """Parse a pattern. `denies` becomes True if it has a negative lookahead. Raises UnreadPattern."""
        self.shown = repr(pattern[:60])
        if len(pattern) > _LONGEST_PATTERN:
            raise UnreadPattern(f"the pattern {self.shown} has more than {_LONGEST_PATTERN} characters")
        try:
            self._parsed = _parser.parse(pattern)
            flags = self._parsed.state.flags & ~re.UNICODE
            repeats, why = _check(self._parsed, 0)
            # A repeat at the end has nothing after it that could make it give characters back.
            trailing = bool(len(self._parsed)) and self._parsed[-1][0] in _REPEATS
            self.is_quick = repeats is not None and repeats - trailing <= _MOST_REPEATS
            self._compiled = re.compile(pattern)
        except (re.error, OverflowError, RecursionError, ValueError) as error:
            raise UnreadPattern(f"the pattern {self.shown} is invalid: {str(error)[:80]}") from None
        if flags or why:
            raise UnreadPattern(f"the pattern {self.shown} {why or 'sets flags'}")
        self.denies = _codes.ASSERT_NOT in set(_operators(self._parsed))
        self._steps = steps or Steps()
        # For each character class and anchor of the pattern, the positions of the current name where it holds.
        self._masks: dict[int, int] = {}

    def matches(self, name: str) -> bool:
        """Return True if text at the start of `name` matches, as `re.match` finds it. Raises UnreadPattern."""
        return self._compiled.match(name) is not None if self.is_quick else bool(self._ends(name, 1))

    def found_in(self, name: str) -> bool:
        """Return True if text anywhere in `name` matches, as `re.search` finds it. Raises UnreadPattern."""
        return bool(self._ends(name, (1 << len(name) + 1) - 1))

    def ends(self, name: str) -> list[int]:
        """Return the positions where a match from the start of `name` may end. Raises UnreadPattern."""
        found = self._ends(name, 1)
        return [at for at in range(len(name) + 1) if found >> at & 1]

    def _ends(self, name: str, starts: int) -> int:
        """Return the positions where a match may end if it begins at one of `starts`; positions are bits."""
        if len(name) > _LONGEST_NAME:
            raise UnreadPattern(f"a module's name has more than {_LONGEST_NAME} characters")
        self._masks = {}
        return self._sequence(self._parsed, name, starts)

    def _sequence(self, items: Any, name: str, at: int) -> int:
        for item in items:
            at = self._item(item, name, at)
            if not at:
                break
        return at

    def _item(self, item: Any, name: str, at: int) -> int:
        self._steps.left -= 1
        if self._steps.left < 0:
            raise UnreadPattern(f"the pattern {self.shown} takes too long to match")
        op, argument = item
        if op in _CHARACTERS or op is _codes.AT:
            mask = self._masks.get(id(item))
            if mask is None:
                mask = self._masks[id(item)] = _where_at(argument, name) if op is _codes.AT else _where(item, name)
            return at & mask if op is _codes.AT else (at & mask) << 1
        if op is _codes.SUBPATTERN:
            return self._sequence(argument[3], name, at)
        if op is _codes.BRANCH:
            found = 0
            for each in argument[1]:
                found |= self._sequence(each, name, at)
            return found
        if op in _REPEATS:
            return self._repeat(argument, name, at)
        wanted = op is _codes.ASSERT
        bits = (1 << each for each in range(len(name) + 1) if at >> each & 1)
        return sum(bit for bit in bits if bool(self._sequence(argument[1], name, bit)) == wanted)

    def _repeat(self, argument: Any, name: str, at: int) -> int:
        least, most, body = argument
        # Rounds beyond the number of characters take no character, so they lead nowhere new.
        rounds = len(name) + 1
        for _ in range(min(least, rounds)):
            before, at = at, self._sequence(body, name, at)
            if at == before:
                break
        if most is _codes.MAXREPEAT and len(body) == 1 and body[0][0] in _CHARACTERS:
            return self._run(body[0], name, at)
        found = new = at
        for _ in range(min(most - least, rounds)):
            new = self._sequence(body, name, new) & ~found
            if not new:
                break
            found |= new
        return found

    def _run(self, item: Any, name: str, at: int) -> int:
        """Return the positions that any number of characters of the class lead to, in steps of 1, 2, 4, ...
        characters."""
        step = self._item(item, name, (1 << len(name) + 1) - 1)
        width = 1
        while width <= len(name):
            at |= step & (at << width)
            step &= step << width
            width *= 2
        return at


def _operators(items: Any) -> Iterator[Any]:
    """Yield the operators of a parsed pattern, including nested ones."""
    for op, argument in items:
        yield op
        if op is _codes.BRANCH:
            for each in argument[1]:
                yield from _operators(each)
        elif op in (_codes.SUBPATTERN, _codes.ASSERT, _codes.ASSERT_NOT) or op in _REPEATS:
            yield from _operators(argument[-1])


def _check(items: Any, depth: int) -> tuple[int | None, str]:
    """Return the number of repeats in a parsed pattern, and "" or why it cannot be matched.

    The number is None if a repeat's body is more than a character.
    """
    if depth > _DEEPEST:
        return None, f"has groups more than {_DEEPEST} deep"
    total: int | None = 0
    for op, argument in items:
        inner: list[Any] = []
        own: int | None = 0
        if op in _REPEATS:
            inner = [argument[2]]
            own = 1 if len(argument[2]) == 1 and argument[2][0][0] in _CHARACTERS else None
        elif op is _codes.SUBPATTERN:
            inner = [argument[3]]
        elif op is _codes.BRANCH:
            inner = argument[1]
        elif op in (_codes.ASSERT, _codes.ASSERT_NOT):
            inner = [argument[1]]
        allowed = op in _CHARACTERS or op is _codes.AT or inner
        if op is _codes.SUBPATTERN and (argument[1] or argument[2]):
            return None, "sets flags"
        if not allowed or (op in (_codes.ASSERT, _codes.ASSERT_NOT) and argument[0] < 0):
            return None, f"has {str(op).lower()}, which is not supported"
        for each in inner:
            repeats, why = _check(each, depth + 1)
            if why:
                return None, why
            own = None if own is None or repeats is None else own + repeats
        total = None if total is None or own is None else total + own
    return total, ""


def _where(item: Any, name: str) -> int:
    """Return the positions whose character is of the class, as bits."""
    op, argument = item
    return sum(1 << at for at, char in enumerate(name) if _is_one_of(op, argument, char))


def _where_at(anchor: Any, name: str) -> int:
    """Return the positions where the anchor holds, as bits."""
    return sum(1 << at for at in range(len(name) + 1) if _is_at(anchor, name, at))


def _is_one_of(op: Any, argument: Any, char: str) -> bool:
    if op is _codes.ANY:
        return char != "\n"
    if op is not _codes.IN:
        return bool(ord(char) == argument) == (op is _codes.LITERAL)
    negated: bool = argument[0][0] is _codes.NEGATE
    for kind, value in argument[negated:]:
        if kind is _codes.LITERAL:
            hit = bool(ord(char) == value)
        elif kind is _codes.RANGE:
            hit = value[0] <= ord(char) <= value[1]
        else:
            hit = _CLASSES[value](char)
        if hit:
            return not negated
    return negated


def _is_at(anchor: Any, name: str, at: int) -> bool:
    if anchor in (_codes.AT_BEGINNING, _codes.AT_BEGINNING_STRING):
        return at == 0
    if anchor in (_codes.AT_END, _codes.AT_END_STRING):
        return at == len(name) or (anchor is _codes.AT_END and name[at:] == "\n")
    is_word = [0 <= each < len(name) and (name[each].isalnum() or name[each] == "_") for each in (at - 1, at)]
    return (is_word[0] != is_word[1]) == (anchor is _codes.AT_BOUNDARY)
