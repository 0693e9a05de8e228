"""What formats add to the command line: options for their fields, and formats by their folders."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from genkern.cli.options import parse
from genkern.cli.setting import make_defaults
from genkern.errors import InputError
from genkern.files.gemm_entry import GemmDefaults, resolve
from genkern.ops.command_line import add_folders, op_name, option_fields

SIZE = ["-m", "16", "-n", "256", "-k", "512", "--arch", "sm_90"]
VALUES = {"M": 16, "N": 256, "K": 512}


def test_a_field_is_an_option_of_its_name() -> None:
    """What is said goes to the problems of the formats that have it; what is not said is no part of a problem."""
    options = parse([*SIZE, "--op", "a8w8", "--scales", "per_token"])
    assert option_fields(options) == (("scales", "per_token"),)
    assert resolve(VALUES, make_defaults(options, "sm_90"), "sm_90").problem.own == (("scales", "per_token"),)
    assert resolve(VALUES, make_defaults(parse([*SIZE, "--op", "a8w8"]), "sm_90"), "sm_90").problem.own == ()


def test_a_format_without_the_field_says_so() -> None:
    """A list of several formats has sizes that the command line's field is not meant for."""
    resolved = resolve(VALUES, GemmDefaults(own=(("scales", "per_token"),)), "sm_90")
    assert resolved.problem.own == ()
    assert resolved.notes == ("the command line's scales is not a field of a16w16: it is not used there",)


def test_results_do_not_take_the_command_lines_fields() -> None:
    """A result that does not say a field has its default, whatever this run asks for."""
    defaults = GemmDefaults(own=(("block_n", "64"),))
    entry = {**VALUES, "op": "a8w8_blockscale"}
    assert resolve(entry, defaults, None).problem.own == ()
    sized = resolve(entry, defaults, "sm_90").problem
    assert sized.own == (("block_n", 64),)
    assert resolve({**entry, "block_n": 32}, defaults, "sm_90").problem == replace(sized, own=(("block_n", 32),))


@pytest.mark.parametrize("value", ["0", "2000", "many", ""])
def test_a_value_that_is_none_is_refused(value: str) -> None:
    """With the name of the option and what it may be."""
    options = parse([*SIZE, "--op", "a8w8_blockscale", f"--block_n={value}"])
    with pytest.raises(InputError, match=r"block_n = .* 1 to 1024"):
        make_defaults(options, "sm_90")


def test_a_word_that_is_no_format_is_refused(tmp_path: Path) -> None:
    """And so is a folder that holds none, in one line each."""
    with pytest.raises(argparse.ArgumentTypeError, match="is none of a16w16, "):
        op_name("a4w4")
    for argv in (["--op", str(tmp_path)], [f"--op={tmp_path}"]):
        with pytest.raises(InputError, match="holds no format"):
            add_folders(argv)
    add_folders(["--op"])
    add_folders([])
