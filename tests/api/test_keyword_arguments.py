"""Keyword arguments of genkern.tune: each is a flag of the command with the flag's values, and no flag is missing."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from genkern.api.options import NOT_IN_PYTHON, TuneOptions, arguments_of, option_names
from genkern.arguments import shown_names
from genkern.cli.options import parse, parser
from genkern.errors import InputError

SIZE = ("-m", "1", "-n", "64", "-k", "64")
HINTS = typing.get_type_hints(TuneOptions, localns={"torch": torch})
# A value that the flag accepts, for flags that do not accept every text.
ACCEPTED = {
    "op": "a16w16",
    "dtype": "bf16",
    "gpu_ids": [0, 1],
    "nsets": [1, 16],
    "m_weights": "1:2,16:1",
    "cluster": "tcp://localhost:1",
    "search": "guided",
}
# Arguments that other options need.
WITH = {
    "tp": ("--model_dir", "x"),
    "nsets": ("--model_dir", "x"),
    "sums": ("--batch_invariant",),
    "m_weights": ("--batch_invariant",),
}
NOT_TRIED = ("family",)  # it would import the file


def flags() -> dict[str, argparse.Action]:
    """The long name of each flag, without its dashes, by which Python knows it."""
    named = {}
    for action in parser()._actions:
        names = [name.lstrip("-") for name in shown_names(action) if name.startswith("--") and len(name) > 3]
        if names:
            named[names[0]] = action
    return named


def kinds(name: str) -> Iterator[type]:
    """The types that an argument may have, without None."""
    hint = HINTS[name]
    for each in typing.get_args(hint) or (hint,):
        if each is not type(None):
            yield each


def test_every_flag_is_an_argument_or_says_what_is() -> None:
    """Also flags that will be added: their name goes into TuneOptions, or into NOT_IN_PYTHON with what replaces it."""
    assert set(option_names()) - {"dtype"} == set(flags()) - set(NOT_IN_PYTHON)
    assert set(NOT_IN_PYTHON) <= set(flags())


@pytest.mark.parametrize("name", sorted(set(option_names()) - {"dtype", *NOT_TRIED}))
def test_an_argument_has_the_values_of_its_flag(name: str) -> None:
    """Switches are bool, words are the flag's choices, numbers are numbers; the command parses what Python passes."""
    action = flags()[name]
    found = list(kinds(name))
    if action.nargs in (0, "?"):
        assert found == [bool]
        value: object = True
    elif action.choices:
        assert [word for each in found for word in typing.get_args(each) or (each,)] == list(action.choices)
        value = list(action.choices)[-1]
    elif name in ACCEPTED:
        value = ACCEPTED[name]
    elif int in found or float in found:
        value = 2 if int in found else 0.5
        # Fields of number formats are read later, by their format.
        assert not callable(action.type) or action.type(str(value)) == value
    else:
        assert str in found, (name, found)
        value = "x"
    size = SIZE if "--model_dir" not in WITH.get(name, ()) else ()
    options = parse([*size, *WITH.get(name, ()), *arguments_of({name: value})])
    kept = getattr(options, action.dest)
    assert kept is not None
    assert f"--{name}" in options.given
    assert kept == value or str(kept) == str(value) or isinstance(kept, (tuple, dict)), (name, kept)


def test_defaults_and_types_of_pytorch() -> None:
    assert arguments_of({"iters": None, "compare": False, "search": None}) == []
    assert arguments_of({"dtype": torch.bfloat16}) == ["--dtype_a=bfloat16"]
    assert arguments_of({"space": Path("a/b.yaml"), "gpu_ids": (0, 2)}) == ["--space=a/b.yaml", "--gpu_ids=0,2"]
    assert arguments_of({"family": ["a.py", Path("b.py")]}) == ["--family=a.py", "--family=b.py"]
    assert arguments_of({"libtype": ["triton", "cublaslt"], "budget": 200}) == [
        "--libtype=triton,cublaslt",
        "--budget=200",
    ]
    assert parse([*SIZE, *arguments_of({"dtype": torch.float16})]).dtype_a == "float16"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"itres": 3}, "iters"),
        ({"benchmark": True}, "command"),
        ({"model_dir": "x"}, "problems"),
        ({"iters": object()}, "iters"),
        ({"gpu_ids": [0.5]}, "gpu_ids"),
    ],
)
def test_a_mistake_is_one_line(options: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        arguments_of(options)
    assert "\n" not in str(caught.value)


def test_sequences_are_written_once() -> None:
    """A text is no list of letters."""
    assert arguments_of({"libtype": "triton,torch"}) == ["--libtype=triton,torch"]
    values: Sequence[object] = arguments_of({"nsets": range(1, 4)})
    assert values == ["--nsets=1,2,3"]
