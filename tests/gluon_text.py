"""The texts of PTX that kernels hold, as instructions. A line ends with an instruction, or it is not understood."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache


@dataclass(frozen=True)
class Instruction:
    """One instruction, with the predicate that it hangs on, if any."""

    predicate: str
    name: str
    fields: tuple[str, ...]

    @cached_property
    def flag(self) -> str:
        """The register of the predicate."""
        return self.predicate.lstrip("!")

    @cached_property
    def negated(self) -> bool:
        return self.predicate.startswith("!")


@dataclass(frozen=True)
class Text:
    """A text's instructions, where its labels point to among them, and the registers that it declares."""

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    registers: frozenset[str]


@lru_cache(maxsize=1024)
def place_of(field: str) -> tuple[str, int]:
    """Base and offset of [base] or [base+offset]."""
    base, _, offset = field.strip("[]").partition("+")
    return base.strip(), int(offset or 0)


@lru_cache(maxsize=1024)
def constraints_of(text: str) -> tuple[list[str], list[str], list[str]]:
    """Those of outputs, those of inputs, and of these which are outputs too."""
    listed = text.split(",")
    outputs = [each for each in listed if each.startswith("=")]
    inputs = listed[len(outputs) :]
    assert listed[: len(outputs)] == outputs
    return outputs, inputs, [each for each in inputs if each.isdigit()]


@lru_cache(maxsize=256)
def parse(text: str) -> Text:
    """Raises AssertionError for what is not PTX as kernels may hold it."""
    text = text.strip()
    if braces := text.startswith("{"):
        assert text.endswith("}")
        text = text[1:-1]
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    registers: set[str] = set()
    for line in text.split("\n"):
        line = line.strip()
        if not line or line.startswith("//") or line == '.pragma "nounroll";':
            continue
        if line.endswith(":"):
            assert braces, "a label that two copies of the text would share"
            labels[line[:-1]] = len(found)
            continue
        assert line.endswith(";"), f"not the whole of an instruction: {line}"
        for part in line[:-1].split(";"):
            if part.strip().startswith(".reg "):
                registers |= set(re.findall(r"\w+(?=,|$)", part))
                continue
            match = re.fullmatch(r"\s*(?:@(!?\w+) )?([a-z][\w.:]+)(?: (.*))?", part)
            assert match, f"not one instruction of PTX: {part}"
            fields = re.findall(r"\[[^\]]*\]|\{[^}]*\}|[^\s,][^,]*", match[3] or "")
            found.append(Instruction(match[1] or "", match[2], tuple(field.strip() for field in fields)))
    return Text(tuple(found), labels, frozenset(registers))
