"""`genkern sbatch`: writes scripts with which Slurm compiles on any nodes and measures on nodes with GPUs."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import jinja2
from jinja2.sandbox import SandboxedEnvironment
from rich.console import Console

from genkern.arguments import Parser, number
from genkern.cli.kernel_cache.kernels import sizes_for
from genkern.cli.options import parse
from genkern.cli.setting import require_arch
from genkern.cli.target import require_gpu
from genkern.cluster.batch_values import (
    WHICH_GPUS,
    absolute,
    account,
    duration,
    gpus,
    gpus_each,
    option_names,
    partitions,
    require_plain,
)
from genkern.cluster.compiling import add_chosen, check_search, chosen_spaces
from genkern.cluster.measuring import TAKEN
from genkern.cluster.work_folder import MANIFEST
from genkern.errors import InputError, OutputError
from genkern.file_io import open_regular, require_absent, require_writable, shown_path, write_whole

# In the order in which they are written: the last one submits the others, which then exist and are complete.
SCRIPTS = ("compile.sh", "measure.sh", "collect.sh", "workers.sh", "gpu_workers.sh", "submit.sh")
_LOGS = "logs"
_JOBS = 8
_count = number("a whole number from 1 to 9999", 1, 9999, integer=True)
_retries = number("a whole number from 0 to 99", 0, 99, integer=True)


def parse_sbatch(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern sbatch`; the attribute `tuning` is the list of options for `genkern measure`.

    Raises InputError; SystemExit(0) after printing for --help.
    """
    options, tuning = sbatch_parser().parse_known_args(argv)
    options.tuning = absolute(tuning)
    require_gpu(options)
    check_search(options)
    # Options that `genkern measure` would refuse are refused here.
    if taken := sorted(option_names(options.tuning) & TAKEN):
        raise InputError(
            f"{taken[0]} cannot be passed on to the tasks: say what to measure with -i and --space of genkern sbatch"
        )
    said = parse([*options.tuning, "-i", options.gemm_size_file[0], "-o", "results.yaml", "--arch", options.arch])
    if not said.tunes:
        mode = next(name for name in ("--compare_wo_tuning", "--benchmark", "--explain") if name in said.given)
        raise InputError(f"{mode} does not tune, but the tasks that measure do: leave it out")
    require_arch(said, options.arch)
    return options


def sbatch_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern sbatch",
        usage="genkern sbatch --arch ARCH -i SIZES... -o FOLDER [options of tuning]",
        description="Write the scripts with which Slurm compiles and measures; FOLDER/submit.sh submits them. Options "
        "of tuning may follow.",
    )
    group = p.add_argument_group("which kernels")
    add_chosen(group)
    group.add_argument(
        "-o", "--output", metavar="FOLDER", required=True, help="the folder to write, which all nodes share"
    )
    group.add_argument("--overwrite", action="store_true", help="replace existing scripts")
    group.add_argument("--cache_dir", metavar="DIR", help="folder of compiled kernels (default: FOLDER/cache)")
    jobs = p.add_argument_group("which jobs")
    few = f"tasks of the job array that compiles (default: {_JOBS}, or the number of sizes if smaller)"
    jobs.add_argument("--jobs", type=_count, metavar="N", help=few)
    jobs.add_argument(
        "--gpu_jobs", type=_count, default=4, metavar="N", help="GPUs that measure at a time (default: 4)"
    )
    jobs.add_argument("--cpus", type=_count, default=8, metavar="N", help="CPUs of a task (default: 8)")
    jobs.add_argument(
        "--gpus", type=gpus, default="1", metavar="SPEC", help="GPUs of a task, as for sbatch (default: 1)"
    )
    jobs.add_argument("--partition", type=partitions, metavar="NAME", help="for compiling (default: Slurm's)")
    jobs.add_argument("--gpu_partition", type=partitions, metavar="NAME", help="for measuring (default: Slurm's)")
    jobs.add_argument("--account", type=account, metavar="NAME", help="the account that is charged (default: Slurm's)")
    jobs.add_argument("--time", type=duration, metavar="TIME", help="time limit of a task (default: the partition's)")
    jobs.add_argument(
        "--retries", type=_retries, default=10, metavar="N", help="times that a task is restarted (default: 10)"
    )
    jobs.add_argument("--templates", metavar="FOLDER", help="your own templates/batch/ (default: genkern's)")
    jobs.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_sbatch(options: argparse.Namespace, console: Console) -> int:
    """Write the scripts. Raises InputError or OutputError."""
    folder = Path(options.output).absolute()
    for path in (str(folder), *options.gemm_size_file, options.space or "", options.cache_dir or ""):
        require_plain(path, "the path")
    problems = sizes_for(options, console)
    chosen_spaces(options, problems)
    sizes = len(problems)
    options.jobs = options.jobs or min(_JOBS, sizes)
    if sizes < options.jobs:
        raise InputError(f"--jobs {options.jobs}: the lists have {sizes} sizes, and each task needs at least one")
    for name in SCRIPTS:
        require_absent(str(folder / name), options.overwrite)
        require_writable(str(folder / name))
    said = values(options, folder)
    texts = {name: rendered(name, said, options.templates) for name in SCRIPTS}
    for name, text in texts.items():
        write_whole(str(folder / name), text)
    try:
        # Slurm does not create folders for logs.
        (folder / _LOGS).mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {shown_path(str(folder / _LOGS))} ({error.strerror})") from None
    console.print(f"{sizes} sizes in {options.jobs} tasks; to submit: sh {shlex.quote(str(folder / SCRIPTS[-1]))}")
    return 0


def values(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Return the values for templates: numbers, checked names, and commands quoted for a shell."""
    space = options.space
    if space and os.path.exists(space):
        space = os.path.abspath(space)
    which = ["--device", options.gpu.name] if options.device else ["--arch", options.arch]
    which += ["-i", *map(os.path.abspath, options.gemm_size_file)]
    which += ["--op", *options.op] if options.op else []
    which += ["--space", space] if space else []
    cache = ["--cache_dir", os.path.abspath(options.cache_dir or folder / "cache")]
    # `genkern measure` uses one GPU by default.
    count = gpus_each(options.gpus)
    which_gpus = ["--ngpus", str(count)] if count > 1 and not option_names(options.tuning) & WHICH_GPUS else []
    names = ("jobs", "gpu_jobs", "cpus", "gpus", "partition", "account", "time", "retries")
    return {
        **{name: getattr(options, name) for name in names},
        "gpu_partition": options.gpu_partition or options.partition,
        "python": shlex.quote(sys.executable),
        "genkern": shlex.join([sys.executable, "-m", "genkern"]),
        "which": shlex.join([*which, "--search", options.search, *cache]),
        "gpus_each": count,
        "manifest": MANIFEST,
        "tuning": shlex.join([*cache, *which_gpus, *options.tuning]),
    }


def rendered(name: str, said: dict[str, object], own: str | None) -> str:
    """Return the script rendered from NAME.j2 in the folder `own`, or from genkern's template if `own` is None.

    Raises InputError if the template cannot be read or rendered.
    """
    loader = jinja2.FileSystemLoader(own) if own else jinja2.PackageLoader("genkern.templates", "batch")
    templates = SandboxedEnvironment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.globals.update(said)
    try:
        if own:
            open(Path(own, f"{name}.j2"), "rb", opener=open_regular).close()
        return templates.get_template(f"{name}.j2").render().lstrip("\n")
    except (jinja2.TemplateError, OSError, UnicodeDecodeError, TypeError) as error:
        where = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise InputError(f"{shown_path(f'{own or chr(0)}/{name}.j2')}: {where}{' '.join(str(error).split())}") from None
