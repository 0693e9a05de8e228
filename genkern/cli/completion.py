"""`genkern completion`: a script that completes commands, options and their values in bash, zsh or fish.

The script is static, so that a press of Tab starts no Python. It is generated from the parsers. argcomplete would start
genkern at every press (0.3 s and more), and shtab writes no script for fish.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from genkern.arguments import Parser, shown_names, underscored
from genkern.cli.options import parser
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import known_archs
from genkern.ops.op import op_names
from genkern.space.space import shipped_names
from genkern.subcommands import COMMANDS, MODES

SHELLS = ("bash", "zsh", "fish")
_MOST_SAID = 60
_INSTALL = {
    "bash": "genkern completion bash > ~/.local/share/bash-completion/completions/genkern",
    "zsh": "genkern completion zsh > ~/.zfunc/_genkern (with fpath+=~/.zfunc before compinit in ~/.zshrc)",
    "fish": "genkern completion fish > ~/.config/fish/completions/genkern.fish",
}


@dataclass(frozen=True)
class Option:
    """One option of a command.

    names: its names, shortest first
    said: the beginning of its help
    values: the words that it takes; empty if it takes another value or none
    takes_value: whether it takes a value
    """

    names: tuple[str, ...]
    said: str
    values: tuple[str, ...]
    takes_value: bool


def parse_completion(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern completion`. Raises InputError; SystemExit(0) after printing for --help."""
    p = completion_parser()
    return p.parse_args(underscored(argv, p))


def completion_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern completion",
        description="Print a script that completes genkern's commands, options and their values in a shell.",
        epilog="to install it:\n" + "".join(f"  {line}\n" for line in _INSTALL.values()),
    )
    group = p.add_argument_group("for which shell")
    group.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_completion(options: argparse.Namespace, console: Console) -> int:
    """Print the script."""
    # The text is a program: it is printed as it is, with --json too.
    print(script(options.shell), end="")
    return 0


def script(shell: str) -> str:
    """Return the script for a shell of `SHELLS`."""
    of_commands = {word: options_of(each) for word, each in _parsers().items()}
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](of_commands)


def _parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command; that of the main command has the word ""."""
    found = {"": parser(), **{word: parser(word) for word in MODES}}
    for word, each in COMMANDS.items():
        if word not in MODES:
            found[word] = getattr(importlib.import_module(each.module), f"{word.replace('-', '_')}_parser")()
    return found


def options_of(of: argparse.ArgumentParser) -> list[Option]:
    """Return the options of a parser, with dashes and underscores as --help shows them."""
    known: Mapping[str, Iterable[str]] = {
        "arch": known_archs(),
        "op": op_names(),
        "space": shipped_names(),
        **{f"dtype_{operand}": DTYPES for operand in "abc"},
    }
    found = []
    for action in of._actions:
        if not (names := shown_names(action)):
            continue
        values = action.choices or known.get(action.dest, ())
        said = re.sub(r"[^\w ,.%/-]", "", re.split(r" \(|; |: ", action.help or "")[0])[:_MOST_SAID].strip()
        found.append(Option(tuple(names), said, tuple(map(str, values)), action.nargs != 0))
    return found


def _bash(commands: Mapping[str, Sequence[Option]]) -> str:
    words = "\n".join(
        f"        {word or '*'}) options={shlex.quote(' '.join(name for each in found for name in each.names))} ;;"
        for word, found in (*((w, f) for w, f in commands.items() if w), ("", commands[""]))
    )
    values = "\n".join(
        f"        {name}) values={shlex.quote(' '.join(of))} ;;" for name, of in _values(commands).items()
    )
    return f"""# genkern's completion for bash, written by `genkern completion bash`.
_genkern() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" options="" values=""
    COMPREPLY=()
    if [[ $COMP_CWORD -eq 1 && $current != -* ]]; then
        COMPREPLY=($(compgen -W "{" ".join(COMMANDS)}" -- "$current"))
        return
    fi
    case "$before" in
{values}
    esac
    if [[ -n $values ]]; then
        COMPREPLY=($(compgen -W "$values" -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{words}
    esac
    if [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$current"))
    else
        COMPREPLY=($(compgen -f -- "$current"))
        compopt -o filenames 2>/dev/null
    fi
}}
complete -F _genkern genkern
"""


def _values(commands: Mapping[str, Sequence[Option]]) -> dict[str, tuple[str, ...]]:
    """Return the words that options take, by their names; options of several commands have the same words."""
    return {name: each.values for found in commands.values() for each in found if each.values for name in each.names}


def _zsh(commands: Mapping[str, Sequence[Option]]) -> str:
    described = " ".join(shlex.quote(f"{word}:{each.summary}") for word, each in COMMANDS.items())
    cases = []
    for word, found in (*((w, f) for w, f in commands.items() if w), ("", commands[""])):
        texts = " ".join(shlex.quote(f"{name}:{each.said}") for each in found for name in each.names)
        cases.append(f"        {word or '*'}) options=({texts}) ;;")
    values = [f"        {name}) values=({' '.join(map(shlex.quote, of))}) ;;" for name, of in _values(commands).items()]
    newline = "\n"
    return f"""#compdef genkern
# genkern's completion for zsh, written by `genkern completion zsh`.
_genkern() {{
    local -a commands options values
    commands=({described})
    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then
        _describe command commands
        return
    fi
    case $words[CURRENT-1] in
{newline.join(values)}
    esac
    if (( $#values )); then
        compadd -a values
        return
    fi
    case $words[2] in
{newline.join(cases)}
    esac
    if [[ $words[CURRENT] == -* ]]; then
        _describe -o option options
    else
        _files
    fi
}}
if [[ $funcstack[1] == _genkern ]]; then
    _genkern "$@"
else
    compdef _genkern genkern
fi
"""


def _fish(commands: Mapping[str, Sequence[Option]]) -> str:
    lines = ["# genkern's completion for fish, written by `genkern completion fish`."]
    for word, each in COMMANDS.items():
        lines.append(f"complete -c genkern -n __fish_use_subcommand -f -a {word} -d {shlex.quote(each.summary)}")
    for word, found in commands.items():
        seen = f"__fish_seen_subcommand_from {word or ' '.join(COMMANDS)}"
        condition = shlex.quote(seen if word else f"not {seen}")
        for option in found:
            # fish knows -x, --long and the old style of several letters after one dash.
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" if len(name) == 2 else f"-o {name[1:]}"
                for name in option.names
            )
            value = f" -x -a {shlex.quote(' '.join(option.values))}" if option.values else " -r" * option.takes_value
            lines.append(f"complete -c genkern -n {condition} {names}{value} -d {shlex.quote(option.said)}")
    return "\n".join(lines) + "\n"
