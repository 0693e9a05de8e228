"""A format's own fields: declared once, and the same whoever writes or reads them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import pytest

from genkern.errors import InputError
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import number, own_text, own_values, parse_own, word
from genkern.timing.session import Budget, Session


@dataclass(frozen=True)
class Fields:
    scale: str = word("whole", "per_row", help="of what a scale is")
    block: int = number(128, 16, 256, help="elements with one scale")


def test_only_what_differs_from_the_default_is_kept() -> None:
    """So problems that say a default and those that say nothing are one, and share results, names and hashes."""
    said = parse_own(Fields, {"scale": "whole", "block": 128, "M": 5})
    assert said == () == parse_own(Fields, {})
    assert GemmProblem(1, 2, 3, own=said) == GemmProblem(1, 2, 3)
    assert parse_own(Fields, {"scale": "per_row", "block": "64"}) == (("block", 64), ("scale", "per_row"))


def test_values_come_back_as_they_were() -> None:
    """Through a problem, its JSON in a journal, and a Session; two that differ are two, in order and by name."""
    own = parse_own(Fields, {"scale": "per_row", "block": 64})
    problem = GemmProblem(1, 2, 3, own=own)
    assert own_values(Fields, problem) == Fields("per_row", 64)
    assert GemmProblem(**json.loads(json.dumps(asdict(problem)))) == problem
    session = Session("m.py", problem, "sm_90", 0, "d", Budget())
    assert Session.from_json(session.to_json()) == session
    plain = GemmProblem(1, 2, 3)
    assert len({problem, plain}) == 2
    assert sorted([problem, plain]) == [plain, problem]
    assert problem.name == f"{plain.name}_block_64_scale_per_row"
    assert own_text(problem.own) == "block=64 scale=per_row"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"scale": "per_column"}, "scale = 'per_column' is not one of whole, per_row"),
        ({"block": 8}, "block = '8' is not a whole number from 16 to 256"),
        ({"block": "many"}, "block = 'many' is not a whole number"),
        ({"block": True}, "block = 'True' is not a whole number"),
    ],
)
def test_other_values_are_refused(values: dict[str, object], said: str) -> None:
    """In one line that names the field and what it may be."""
    with pytest.raises(InputError, match=said):
        parse_own(Fields, values)


@pytest.mark.parametrize("own", [(("block", 1.5),), (("../block", 1),), (("block", "a b"),), (("block", True),)])
def test_a_problem_takes_no_other_things(own: object) -> None:
    """What a journal or a program gives goes to file names and templates."""
    with pytest.raises(InputError, match="is not a field of a number format"):
        GemmProblem(1, 2, 3, own=own)  # type: ignore[arg-type]
