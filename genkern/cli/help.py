"""The help of one screen: `genkern --help`, and `--help` of the modes of the main command."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Collection
from typing import Any

from genkern.arguments import shown_names
from genkern.subcommands import COMMANDS, FARM, HEADINGS, MODEL

# Headings whose commands are listed on one line.
_IN_ONE_LINE = (FARM, MODEL)
_HEAD = """usage: genkern tune FILE [options]      (or -m M -n N -k K, or --model_dir DIR)
       genkern COMMAND [options]        (genkern COMMAND --help lists its options)

Find the fastest GEMM kernel for each matrix size: C = activation(A @ B + bias).
"""
_OPTIONS = """options of tune, which may be given without the word tune too:
  -i FILE           sizes: tune_gemm's YAML, AITER's CSV, or results of either
  -m M -n N -k K    one size
  --arch, --device  GPU to predict for if there is none here: sm_90, h100
  --op, --dtype_a   number format and types (default: a16w16 in bf16)
  --compare         check every finalist; --compare_wo_tuning only checks
  -o FILE           results; the same command resumes
  --all             tune sizes that have results again
  --budget LIMIT    limit of a size's search: 30s, or 200 kernels
  -v, --json        more text; JSON lines for scripts
  --help-all        every option, as docs/options.md lists them

examples:
  genkern tune sizes.yaml --compare
  genkern tune -m 16 -n 4096 -k 4096 --arch sm_90
  genkern why 64x6144x4096 --device h200
"""
_MOST_COLUMNS, _NAMES = 100, 32
# Where the short help of an option ends.
_CLAUSE = re.compile(r" \(|; |\. ")
# Options of a mode's --help; --help-all has the others.
_USUAL = {
    "tune": (
        *("file", "gemm_size_file", "model_dir", "m", "n", "k", "op", "dtype_a", "dtype_c"),
        *("compare", "no_check", "arch", "device", "gpu_ids", "ngpus", "libtype", "space", "jobs", "search", "budget"),
        *("compile", "batch_invariant", "tuning_results_file", "profile_file", "all", "verbose", "json", "help"),
    ),
    "check": (
        *("file", "gemm_size_file", "arch", "device", "gpu_ids", "errRatio", "atol", "rtol", "jobs", "cache_dir"),
        *("timeout", "op", "dtype_a", "verbose", "json", "help"),
    ),
    "bench": (
        *("file", "gemm_size_file", "arch", "device", "gpu_ids", "profiler", "libtype", "iters", "num_iters"),
        *("rotating_tensor", "icache_flush", "init_type", "jobs", "cache_dir", "tuning_results_file"),
        *("verbose", "json", "help"),
    ),
    "explain": ("file", "gemm_size_file", "m", "n", "k", "arch", "device", "op", "dtype_a", "space", "json", "help"),
}


def main_help() -> str:
    """Return the help of `genkern --help`."""
    lines = [_HEAD]
    for heading in HEADINGS:
        words = [word for word, each in COMMANDS.items() if each.heading == heading]
        if heading in _IN_ONE_LINE:
            lines.append(f"{heading}: {', '.join(words)}")
            continue
        lines.append(f"{heading}:")
        lines += [f"  {word:<17} {COMMANDS[word].summary}" for word in words]
    return "\n".join(lines) + "\n\n" + _OPTIONS


def mode_help(parser: argparse.ArgumentParser, word: str) -> str:
    """Return the help of a mode with its most used options."""
    return _help_of(parser, _USUAL[word]) + "\n--help-all prints every option.\n"


def _help_of(parser: argparse.ArgumentParser, usual: Collection[str]) -> str:
    """Return the usage, and one line for each of these options, in the parser's groups."""
    columns = min(_MOST_COLUMNS, shutil.get_terminal_size().columns - 2)
    lines = [*textwrap.wrap(f"usage: {parser.usage}", columns, subsequent_indent=" " * 7), ""]
    lines += textwrap.wrap(parser.description or "", columns)
    for group in parser._action_groups:
        if actions := [action for action in group._group_actions if action.dest in usual]:
            lines += ["", f"{group.title}:", *(_line(action, columns) for action in actions)]
    return "\n".join(lines) + "\n"


def _line(action: argparse.Action, columns: int) -> str:
    """Return an option's first name or two, its value, and the beginning of its help."""
    names = ", ".join(shown_names(action)[:2]) or str(action.metavar)
    if action.option_strings and action.metavar:
        names += f" {action.metavar}"
    said = textwrap.shorten(_CLAUSE.split(action.help or "")[0], columns - _NAMES - 1, placeholder=" ...")
    return f"  {names:<{_NAMES - 2}} {said}" if len(names) < _NAMES - 2 else f"  {names}\n{' ' * _NAMES} {said}"


class ShortHelp(argparse.Action):
    """Prints the help of one screen, and exits."""

    def __init__(self, option_strings: list[str], dest: str, word: str = "", **named: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **named)
        self.dest, self.word = "help", word

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(mode_help(parser, self.word) if self.word else main_help(), end="")
        parser.exit()
