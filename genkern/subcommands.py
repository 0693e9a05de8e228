"""The table of subcommands. A new subcommand is one line of `COMMANDS`.

Help, shell completion and docs/options.md are made from this table. The module of WORD defines `WORD_parser`,
`parse_WORD` and `run_WORD` (with _ for -). The words in `MODES` have no module: they are modes of the main command.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter


@dataclass(frozen=True)
class Subcommand:
    """One subcommand.

    heading: the heading under which --help lists it
    module: its module; "" for a mode of the main command
    summary: what it does, in a few words
    next: the last line after success: what to do next. Names in braces are options; if one of them is not given, no
        line is printed. "" for commands that print their own last line.
    """

    heading: str
    module: str
    summary: str
    next: str = ""

    def next_line(self, options: Mapping[str, object]) -> str:
        """Return the last line for these options; "" if there is none."""
        names = [name for _, name, _, _ in Formatter().parse(self.next) if name]
        given = {name: options.get(name) for name in names}
        if not self.next or not all(given.values()):
            return ""
        words = {
            name: shlex.join(map(str, value)) if isinstance(value, list) else shlex.quote(str(value))
            for name, value in given.items()
        }
        return self.next.format(**words)


# Headings of --help, in their order.
TUNE, ASK, USE, EXCHANGE, FARM, MODEL = HEADINGS = (
    "tune and check",
    "ask",
    "use winners",
    "exchange files",
    "on other machines",
    "recorded spaces, new machines",
)
# Modes of the main command, each with the flag that means the same.
MODES = {"tune": "", "check": "--compare_wo_tuning", "bench": "--benchmark", "explain": "--explain"}
_TUNE = "genkern tune {output}"
_CALL = "GENKERN_CONFIG={output} lets a program call the winners; genkern verify {output} proves them on their GPU"
COMMANDS = {
    "tune": Subcommand(TUNE, "", "find the fastest kernel for each size"),
    "check": Subcommand(TUNE, "", "check the configs of a results file"),
    "bench": Subcommand(TUNE, "", "time the configs of a results file"),
    "explain": Subcommand(TUNE, "", "count the configs that each pruning rule drops"),
    "status": Subcommand(TUNE, "genkern.cli.status", "how far a run is"),
    "why": Subcommand(ASK, "genkern.cli.questions.why", "what is called for a size, and why"),
    "report": Subcommand(ASK, "genkern.results_report.command", "results as one page, a table, or pictures"),
    "repro": Subcommand(ASK, "genkern.cli.questions.repro", "a script that runs one result, to attach to an issue"),
    "doctor": Subcommand(ASK, "genkern.cli.doctor.doctor", "what this machine lacks, and the remedy"),
    "completion": Subcommand(ASK, "genkern.cli.completion", "a script of completions for bash, zsh or fish"),
    "ops": Subcommand(ASK, "genkern.cli.ops_table", "formats and GPUs that were measured"),
    "pack": Subcommand(USE, "genkern.packing.command", "winners and their kernels into one bundle", _CALL),
    "verify": Subcommand(
        USE,
        "genkern.packing.verification",
        "prove and time a bundle's kernels on this GPU",
        "GENKERN_CONFIG={bundle} lets a program call its winners",
    ),
    "shapes": Subcommand(USE, "genkern.packing.models.shapes", "a model's sizes", _TUNE),
    "model": Subcommand(USE, "genkern.packing.models.model_command", "a model's bundle for an engine"),
    "engine-check": Subcommand(USE, "genkern.cli.engine_check.checking", "an engine with a bundle and without it"),
    "export": Subcommand(EXCHANGE, "genkern.cli.exporting", "to vLLM's, SGLang's, AITER's files"),
    "import": Subcommand(
        EXCHANGE,
        "genkern.cli.importing",
        "from these files",
        "genkern tune {output} -o {output} --all times the configs and tunes their sizes",
    ),
    "merge": Subcommand(EXCHANGE, "genkern.packing.merge", "several lists of sizes to one", _TUNE),
    "kernels": Subcommand(
        FARM,
        "genkern.cli.kernel_cache.kernels",
        "a file of compiled kernels to start from",
        "genkern tune FILE --kernels {output} takes kernels from it",
    ),
    "cache": Subcommand(FARM, "genkern.cli.kernel_cache.caching", "show or trim the cache of kernels"),
    "compile": Subcommand(FARM, "genkern.cluster.compiling", "fill the cache for a list of sizes"),
    "measure": Subcommand(FARM, "genkern.cluster.measuring", "measure kernels that were compiled elsewhere"),
    "collect": Subcommand(
        FARM,
        "genkern.cluster.collecting",
        "join the results of several machines",
        "genkern pack {output} -o FILE.genkern",
    ),
    "sbatch": Subcommand(FARM, "genkern.cluster.batch_scripts", "Slurm's scripts for a list of sizes"),
    "lab": Subcommand(FARM, "genkern.cluster.lab", "measure whole spaces on a host's GPUs"),
    "record": Subcommand(
        MODEL,
        "genkern.cli.recorded.recording",
        "a table of measured spaces",
        "genkern replay {output} judges strategies on it",
    ),
    "replay": Subcommand(MODEL, "genkern.cli.recorded.replaying", "judge strategies on such tables"),
    "train": Subcommand(MODEL, "genkern.cli.recorded.learning", "fit the model of times"),
    "calibrate": Subcommand(MODEL, "genkern.cli.new_machine.calibrating", "fit the cost model to a GPU"),
    "first-run": Subcommand(MODEL, "genkern.cli.new_machine.first_run", "try everything on a new machine"),
}
