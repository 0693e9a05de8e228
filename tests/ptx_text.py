"""PTX as a list of instructions, for ptx_machine: as much of the language as its kernels are written in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

_PREDICATE = re.compile(r"@(!?)(%p\d+|P1)\s+(.*)")


@dataclass(frozen=True)
class Instruction:
    """`guard` is a predicate register, negated where `unless`; `operands` as they are written."""

    opcode: str
    operands: tuple[str, ...]
    guard: str = ""
    unless: bool = False


@dataclass(frozen=True)
class Program:
    """Instructions, and where labels stand; parameters by their position."""

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    parameters: tuple[str, ...]

    @cached_property
    def order(self) -> Any:
        """Of each instruction its number in an order in which what branches join at comes behind all of them, wherever
        the text has it: the reverse of that in which a search of what may follow leaves them. Of a loop that is so
        where its exit is the branch's target, or behind it.
        """
        left: list[int] = []
        seen = {0}
        stack = [(0, self._following(0))]
        while stack:
            place, following = stack[-1]
            if (after := next(following, None)) is None:
                left.append(place)
                stack.pop()
            elif after not in seen:
                seen.add(after)
                stack.append((after, self._following(after)))
        order = np.full(len(self.instructions), len(left))
        order[left[::-1]] = range(len(left))
        return order

    def _following(self, place: int) -> Iterator[int]:
        one = self.instructions[place]
        if one.opcode.startswith("bra"):
            yield self.labels[one.operands[0]]
        if one.guard or not one.opcode.startswith(("bra", "ret")):
            yield place + 1


def read_program(text: str) -> Program:
    """Of a module with one kernel. Labels within braces (inline assembly) are told apart by where their braces open."""
    header, body = text.split(".entry", 1)[1].split("\n{", 1)
    parameters = tuple(re.findall(r"\w+_param_\d+", header))
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    scopes: list[int] = []
    for number, line in enumerate(_statements(body)):
        if line == "{":
            scopes.append(number)
        elif line == "}":
            if scopes:
                scopes.pop()
        elif line.endswith(":"):
            labels[_scoped(line[:-1], scopes)] = len(instructions)
        elif not line.startswith("."):
            instructions.append(_instruction(line, scopes))
    return Program(tuple(instructions), labels, parameters)


def _statements(body: str) -> list[str]:
    found = []
    for raw in body.splitlines():
        line = raw.split("//")[0].strip().rstrip(";").strip()
        if not line:
            continue
        label = re.match(r"([\w$]+:)\s*(.*)", line)
        found += [part for part in (label.groups() if label else (line,)) if part]
    return found


def _scoped(label: str, scopes: list[int]) -> str:
    return label if label.startswith("$") or not scopes else f"{label}@{scopes[-1]}"


def _instruction(line: str, scopes: list[int]) -> Instruction:
    guard, unless = "", False
    if found := _PREDICATE.match(line):
        unless, guard, line = bool(found[1]), found[2], found[3]
    opcode, _, rest = line.partition(" ")
    operands = operands_of(rest.strip())
    if opcode.startswith("bra"):
        operands = (_scoped(operands[0], scopes),)
    return Instruction(opcode, operands, guard, unless)


@cache
def operands_of(text: str) -> tuple[str, ...]:
    """What commas outside of brackets and braces part."""
    found, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            found.append(text[start:place].strip())
            start = place + 1
    last = text[start:].strip()
    return (*found, last) if last else tuple(found)
