"""Flags and variables of tune_gemm, gradlib and AITER's tuners that genkern does not take, and what to write instead.

Flags that genkern does take are options of its parser (genkern/cli/options.py). docs/porting.md lists both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from genkern.errors import InputError

_SPLITS = "SPLIT_K is part of every space: leave it out"
_RACE = "--all times the known configs again and keeps the fastest: leave it out"
# By name, with underscores instead of dashes.
INSTEAD = {
    # ROCm/triton, python/perf-kernels/tools/tune_gemm/tune_gemm.py.
    "--time_breakdown": "-v prints the time of each stage",
    "--no_warmup": "kernels are compiled in parallel while others are measured: leave it out",
    "--hack_triton_compiler": "genkern does not change the installed Triton: leave it out",
    # ROCm/tritonBLAS, tools/triton_gemm_bench.py.
    "--kernel": "--family takes a kernel of your own (docs/cute.md)",
    "--kernel_type": "kernels of every family are tried: leave it out",
    "--use_selector": "--search zero takes the model's choice",
    # ROCm/aiter, aiter/utility/base_tuner.py and the tuners of its formats, CK's A4W4 among them.
    "--splitK": _SPLITS,
    "--shape_grouped": "one GPU measures all candidates of a size: leave it out",
    "--run_config": "--benchmark -i RESULTS times the configs of results",
    "--update_improved": _RACE,
    "--min_improvement_pct": _RACE,
    "--with_hipblaslt": "--libtype all times hipBLASLt too: leave it out",
    "--preshuffle": "--op names the format, that of shuffled weights by its own name",
    "--blockPerCu": "waves_per_eu is part of AMD's spaces: leave it out",
    "--last": "-i takes a file: write the rows to tune into one",
    "--grouped_gemm": "-i untuned_fmoe.csv tunes experts",
    "--mxfp4_flydsl": "genkern has no kernels in FlyDSL: leave it out",
}
# Variables that AITER's tuners read, and genkern's options for them.
VARIABLES_INSTEAD = {
    "GTUNE_MODEL": "--model_dir",
    "GTUNE_TP": "--tp",
    "GTUNE_BATCH_SIZE": "--nsets",
    "GTUNE_INPUT": "-i",
    "GTUNE_TUNED": "-o",
}


def require_own_flags(arguments: Iterable[str], known: Iterable[str]) -> None:
    """Raise InputError for another tuner's flag that genkern does not take, saying what to write instead."""
    names = frozenset(known)
    for argument in arguments:
        name = argument.partition("=")[0]
        written = "--" + name[2:].replace("-", "_") if name.startswith("--") else name
        if name not in names and (advice := INSTEAD.get(written)):
            raise InputError(f"{name} is a flag of another tuner: {advice} (docs/porting.md)")


def unread_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a line for each variable of another tuner that is set and that genkern does not read."""
    return [f"{name} is not read: give {option}" for name, option in VARIABLES_INSTEAD.items() if environ.get(name)]
