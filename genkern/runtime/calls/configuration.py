"""Configuration: the environment variables that change how calls are served (table in docs/dispatch.md)."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from genkern.files.aiter_variables import AITER_CONFIG, AITER_TABLES
from genkern.gemm.dtypes import DTYPES
from genkern.installation import is_checkout
from genkern.ops.op import op_by_type, op_names
from genkern.runtime.bundles.shipped_bundles import WORD, shipped_bundles

CONFIG = "GENKERN_CONFIG"
# The second name is from earlier releases.
RECORD_DIR = ("GENKERN_RECORD_DIR", "GENKERN_CAPTURE_DIR")
ONLINE_OPTIONS = "GENKERN_ONLINE_OPTIONS"
# genkern's name before AITER's: it takes precedence if both are set, also with the value 0.
LOG_CHOICES = ("GENKERN_LOG_TUNED_CONFIG", "AITER_LOG_TUNED_CONFIG")
RECORD = ("GENKERN_TUNE_GEMM", "AITER_TUNE_GEMM")
ONLINE = ("GENKERN_ONLINE_TUNING",)
BUNDLE_SHA256 = "GENKERN_BUNDLE_SHA256"
ONLY_PROVED = ("GENKERN_ONLY_PROVED",)
BATCH_INVARIANT = "GENKERN_BATCH_INVARIANT"
# Modes of batch invariance: off; a call without a batch-invariant kernel raises; it warns, and the library serves it.
OFF, STRICT, WARN = MODES = ("off", "strict", "warn")
# Prefixes of variables that end in a format's name in capitals, or for AITER in a type's name (aiter/jit/core.py:
# AITER_CONFIG_*).
OF_FORMAT = (f"{CONFIG}_", f"{AITER_CONFIG}GEMM_")
_AS_AITER = "GEMM_"
# Variables that make other libraries tune at run time.
ONLINE_OF_OTHERS = {"HIP_ONLINE_TUNING": "hipBLASLt", "AITER_ONLINE_TUNE": "AITER's fused MoE"}
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Configuration:
    """What environment variables ask of a process.

    paths: bundles or results files for all formats.
    own_paths: further ones by format.
    log_choices: log what serves each problem.
    record: append problems without a row of their own to a file in `record_dir`.
    online: tune these problems at run time.
    online_options: options of the tuning command.
    record_dir: folder of recorded sizes; "" means the default folder.
    pins: sha256 of the bundles that may be used; empty means any bundle.
    only_proved: leave calls without a proof to the library.
    batch_invariant: the initial mode (one of MODES).
    notes: lines about variables whose values are invalid or have no effect.
    """

    paths: tuple[str, ...] = ()
    own_paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    log_choices: bool = False
    record: bool = False
    online: bool = False
    online_options: tuple[str, ...] = ()
    record_dir: str = ""
    pins: tuple[str, ...] = ()
    only_proved: bool = False
    batch_invariant: str = OFF
    notes: tuple[str, ...] = ()

    def paths_of(self, op: str) -> tuple[str, ...]:
        """Return the paths of a format's bundles and results files, each path once."""
        return tuple(dict.fromkeys((*self.own_paths.get(op, ()), *self.paths)))


def configuration(environ: Mapping[str, str]) -> Configuration:
    """Return the configuration in `environ`. Invalid values are reported in `notes`.

    They are ignored, with two exceptions: an invalid GENKERN_BATCH_INVARIANT counts as 1, and an invalid word of
    GENKERN_BUNDLE_SHA256 matches no bundle. Never raises.
    """
    notes: list[str] = []
    own: dict[str, tuple[str, ...]] = {}
    for prefix in (OF_FORMAT[0], AITER_CONFIG):
        for name in sorted(name for name in environ if name.startswith(prefix)):
            op = AITER_TABLES.get(name) or _op_of(name.removeprefix(prefix).removeprefix(_AS_AITER))
            if op is None:
                notes.append(f"{name}: genkern has no such format (it has {', '.join(op_names())}), so it is not read")
            else:
                own[op] = (*own.get(op, ()), *named_paths(name, environ[name], notes))
    try:
        online_options = tuple(shlex.split(environ.get(ONLINE_OPTIONS, "")))
    except ValueError as error:
        online_options = ()
        notes.append(f"{ONLINE_OPTIONS}: {error}; it is not read")
    pins = tuple(environ.get(BUNDLE_SHA256, "").lower().replace(":", " ").split())
    if any(not re.fullmatch("[0-9a-f]{64}", pin) for pin in pins):
        notes.append(f"{BUNDLE_SHA256} lists a word that is no sha256 (64 hexadecimal digits): it matches no bundle")
    online = _flag(ONLINE, environ, notes)
    for name, tuned in ONLINE_OF_OTHERS.items():
        if not online and environ.get(name, "").strip().lower() in _YES:
            notes.append(f"{name} tunes {tuned}; {ONLINE[0]}=1 lets genkern tune its kernels while a program runs")
    return Configuration(
        paths=named_paths(CONFIG, environ.get(CONFIG, ""), notes),
        own_paths=own,
        log_choices=_flag(LOG_CHOICES, environ, notes),
        record=_flag(RECORD, environ, notes),
        online=online,
        online_options=online_options,
        record_dir=next(filter(None, map(environ.get, RECORD_DIR)), ""),
        pins=pins,
        only_proved=_flag(ONLY_PROVED, environ, notes),
        batch_invariant=_mode(environ, notes),
        notes=tuple(notes),
    )


def named_paths(name: str, text: str, notes: list[str]) -> tuple[str, ...]:
    """Return the paths in a variable's value. The word "shipped" stands for the bundles installed with genkern."""
    found: list[str] = []
    for path in filter(str.strip, text.split(os.pathsep)):
        if path.strip() != WORD:
            found.append(os.path.expanduser(path))
            continue
        if not (bundles := shipped_bundles()):
            how = (
                "`make bundle` makes them"
                if is_checkout()
                else f"`genkern pack RESULTS -o FILE.genkern` packs your own results: set {name} to that path"
            )
            notes.append(f"{name}={WORD}: this genkern was installed without winners ({how})")
        found += bundles
    return tuple(found)


def _op_of(name: str) -> str | None:
    """Return the format that a variable names in capitals, or the format whose operands have the type that it names."""
    for op in op_names():
        if op.upper() == name:
            return op
    return op_by_type(name.lower()).name if name.lower() in DTYPES else None


def _mode(environ: Mapping[str, str], notes: list[str]) -> str:
    text = environ.get(BATCH_INVARIANT, "").strip().lower()
    if text == WARN:
        return WARN
    if text not in _YES + _NO:
        # A user who sets the variable wants batch invariance.
        notes.append(f"{BATCH_INVARIANT} = {text[:40]!r} is not 1, {WARN} or 0: it is taken as 1")
    return OFF if text in _NO else STRICT


def _flag(names: tuple[str, ...], environ: Mapping[str, str], notes: list[str]) -> bool:
    """Return the value of the first of these variables that is set; False if none is set or the value is invalid."""
    name = next((name for name in names if name in environ), None)
    text = environ[name].strip().lower() if name is not None else ""
    if text not in _YES + _NO:
        notes.append(f"{name} = {text[:40]!r} is neither 1 nor 0: it is taken as 0")
    return text in _YES
