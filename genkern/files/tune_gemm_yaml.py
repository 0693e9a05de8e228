"""Reads and writes tune_gemm's YAML: size lists, and results with one flow mapping per line.

Source: ROCm/triton, python/perf-kernels/tools/tune_gemm (README and perf_regression_ci/*.yaml). tune_gemm's keys come
    first, so that readers of its files find them; then genkern's: device, versions, time and check.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace

import yaml

from genkern.errors import InputError, ResultsError
from genkern.files.config_entry import AMD_KEYS, config_of, parse_config, row_keys
from genkern.files.flat_yaml import Entry, read_entries
from genkern.files.gemm_entry import (
    SIZE_KEYS,
    GemmDefaults,
    SizeItem,
    names_types,
    own_keys,
    refuse_unknown,
    resolve,
    with_result_defaults,
)
from genkern.gemm.config import Config, has_amd_options
from genkern.gemm.gpu import arch_vendor
from genkern.gemm.parameter import AMD_OPTIONS, CORE, PARAMETERS
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import own_values, words_in_calls
from genkern.ops.op import get_op
from genkern.result.result import Result
from genkern.result.row import result_of, values_of

SCHEMA = 1
ONE_ROW_A_KEY = False
EMPTY = "[]\n"
UNTYPED = "no key has the types"
FP16_ADVICE = "; tune_gemm's own default is fp16: --dtype_a fp16 takes that"
# A comment, not a key: tune_gemm's readers expect a plain list.
_SCHEMA_LINE = re.compile(r"# genkern results, schema ([0-9]{1,9})\b")
_HEAD = f"# genkern results, schema {SCHEMA}: a list that readers of tune_gemm's results can load\n"
_TIME_COMMENT = re.compile(r"# TFLOPS: \S+ time\(us\): ([0-9.]{1,30})\s*$")


def size_items(text: str, where: str) -> Iterator[SizeItem]:
    """Yield the sizes of a size list or a results file. Raises InputError.

    tune_gemm's entries name no types, and its own default is fp16. genkern's default is bf16 for every file and for -m,
    -n and -k alike, so that a list means the same in both of genkern's file formats; a note says what was assumed.
    """
    known, size_keys = dict.fromkeys(_known_keys()), SIZE_KEYS + own_keys()
    for entry in read_entries(text, where, InputError):
        try:
            refuse_unknown(entry.values.keys(), known, "key")
        except InputError as exc:
            raise InputError(f"{where}, line {entry.line}: {exc}") from None
        values = {key: entry.values[key] for key in size_keys if key in entry.values}
        if "family" in entry.values:
            # genkern writes the activation of a result only if there is one.
            values.setdefault("activation", "none")
            values = with_result_defaults(values)
        yield SizeItem(entry.line, values, UNTYPED, FP16_ADVICE)


def read_rows(text: str, where: str, defaults: GemmDefaults) -> Iterator[Result]:
    """Yield the results that genkern or tune_gemm wrote, in file order.

    tune_gemm records neither types nor bias: they come from `defaults`, or are genkern's default (bf16). The family is
        then "tiled", and the time is that of the line's trailing comment, if there is one. An entry without
        `activation` is a result without activation, whatever `defaults` has. Raises ResultsError (one line: file, line,
        what) when it reaches an invalid result.
    """
    schema = _SCHEMA_LINE.match(text)
    if schema and int(schema[1]) > SCHEMA:
        raise ResultsError(f"{where}: has schema {schema[1]}, this genkern reads up to {SCHEMA}; update genkern")
    rows, lines, last = _Rows(defaults), _LineReader(text), 0
    for entry in read_entries(text, where, ResultsError):
        # A comment belongs to the only entry of its line. A list on one line has no such comments, and may be long.
        is_first, last = last < entry.line, entry.line
        try:
            yield rows.row(entry, lines if is_first else None)
        except InputError as exc:
            raise ResultsError(f"{where}, line {entry.line}: {exc}") from None


def size_line(problem: GemmProblem, config: Config | None = None, arch: str = "") -> str:
    """Return a size list's line that leaves nothing to defaults, including the format's own fields.

    Left out are only fields whose default in calls differs from that in lists (Field.in_calls), if the problem has the
    default. With a config for `arch`, the line is a result without a time: the config takes part when its size is tuned
    (--all).
    """
    layout = {"rowMajorA": "T" if problem.row_major_a else "N", "rowMajorB": "T" if problem.row_major_b else "N"}
    named = {key: getattr(problem, key) for key in SIZE_KEYS if key not in layout}
    fields = get_op(problem.op).fields
    own = asdict(own_values(fields, problem))
    for name in words_in_calls(fields).keys() - dict(problem.own).keys():
        # The command line may give this field for the whole list, since its default differs between calls and lists.
        del own[name]
    values = named | layout | own
    values = {key: values[key] for key in dict.fromkeys((*SIZE_KEYS, *values))}
    if config is not None:
        values |= {"family": config.family, **config.values}
        values |= {"config": config.name, "arch": arch}
    return "- {" + ", ".join(f"'{key}': {_flow(value)}" for key, value in values.items()) + "}\n"


def split(text: str, where: str, lines: Sequence[int]) -> tuple[str, list[str]]:
    """Return the text before the first entry, and the text of each entry; entries can be joined and appended to.

    `lines` are the lines where entries begin, as `read_rows` returns them.
    """
    if not lines:
        return "", []
    if (starts := _starts_of(text, lines)) is not None:
        return text[: starts[0]], [text[start:end] for start, end in itertools.pairwise([*starts, len(text)])]
    # Another form of list, such as JSON: nothing can be added to it without rewriting it.
    return "", [
        "- " + yaml.safe_dump(dict(entry.values), default_flow_style=True, sort_keys=False, width=10**9)
        for entry in read_entries(text, where, ResultsError)
    ]


def _starts_of(text: str, lines: Sequence[int]) -> list[int] | None:
    """Return the offsets in `text` of the entries at these lines; None unless each begins a line of a plain list."""
    starts: list[int] = []
    at, number = 0, 1
    for line in _lines_of(text):
        if line.startswith(("...", "---", "%")):
            return None
        if len(starts) < len(lines) and lines[len(starts)] == number:
            if not line.startswith("- "):
                return None
            starts.append(at)
        at, number = at + len(line), number + 1
    # False if two entries are on one line.
    return starts if len(starts) == len(lines) else None


class _LineReader:
    """Lines of a text by number from 1, requested in ascending order, and read only when requested."""

    def __init__(self, text: str) -> None:
        self._lines = enumerate(_lines_of(text), 1)

    def line(self, number: int) -> str:
        """Return the line; "" if there is none."""
        return next((line for at, line in self._lines if at == number), "")


def _lines_of(text: str) -> Iterator[str]:
    """Yield the lines of `text` with their ends, counted as YAML counts them."""
    at = 0
    while at < len(text):
        end = text.find("\n", at) + 1 or len(text)
        # Few lines contain other line ends, and searching all lines for them takes longer.
        if (line := text[at:end]).removesuffix("\n").removesuffix("\r").isprintable():
            yield line
        else:
            yield from line.splitlines(keepends=True)
        at = end


def render(winners: Sequence[Result], compute_units: int, head: str) -> tuple[str, list[str]]:
    """Return the head (`head` unless it is ""), and a line for each of `winners`. Times are in microseconds, to 0.1 ns.

    `compute_units` is the number of compute units of the run's device.
    """
    return head or _HEAD, [_line(winner, compute_units) for winner in winners]


def obstacle(problem: GemmProblem) -> str:
    """Return "": YAML can hold every problem."""
    return ""


def no_room(ops: Sequence[str], head: str) -> str:
    """Return "": one list can hold several ops."""
    return ""


def _known_keys() -> tuple[str, ...]:
    return tuple(dict.fromkeys((*row_keys(), *PARAMETERS.by_name)))


class _Rows:
    """Makes rows from entries. Rows of one file share equal configs and texts, of which a large file has few."""

    def __init__(self, defaults: GemmDefaults) -> None:
        # genkern writes the activation only if there is one.
        self._defaults = replace(defaults, activation="none")
        self._known = dict.fromkeys(_known_keys())
        self._config_keys = ("family", "config", "instruction_sched_variant", *PARAMETERS.by_name)
        self._configs: dict[object, Config] = {}

    def row(self, entry: Entry, lines: _LineReader | None) -> Result:
        """Return the row of `entry`. With `lines`, a comment at the end of its line may have its time. Raises
        InputError."""
        values = entry.values
        refuse_unknown(values.keys(), self._known, "key")
        if values.get("time_us") is None and lines and (comment := _TIME_COMMENT.search(lines.line(entry.line))):
            values = {**values, "time_us": _positive_or_none(comment[1])}
        arch = values.get("arch")
        problem = resolve(values, self._defaults, arch=None, tuned_on=arch if isinstance(arch, str) else "").problem
        typed = names_types(values, self._defaults)
        result = result_of(values, problem, self._config(values), typed=typed, line=entry.line)
        for name, _ in result.peer_us:
            parse_config(name)
        return result

    def _config(self, values: Mapping[str, object]) -> Config:
        # An empty value may be an error, and a mapping is never part of a config; `config_of` decides.
        if None in values.values():
            return config_of(values)
        said = tuple(map(values.get, self._config_keys))
        # 1, 1.0 and true are equal as keys, but only 1 is valid in a config.
        key = said, tuple(map(type, said))
        if dict in key[1]:
            return config_of(values)
        if (known := self._configs.get(key)) is None:
            known = self._configs[key] = config_of(values)
        return known


def _positive_or_none(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _line(winner: Result, compute_units: int) -> str:
    us = winner.known_us
    fields = ", ".join(
        f"'{key}': {_flow(value)}" for key, value in _fields(winner, compute_units).items() if value is not None
    )
    return f"- {{{fields}}} # TFLOPS: {winner.problem.tflops(us):.2f} time(us): {us:.2f}\n"


def _fields(winner: Result, compute_units: int) -> dict[str, object]:
    problem, config = winner.problem, winner.known_config
    values: dict[str, object] = {
        "M": problem.M,
        "N": problem.N,
        "K": problem.K,
        "rowMajorA": "T" if problem.row_major_a else "N",
        "rowMajorB": "T" if problem.row_major_b else "N",
    }
    values |= {parameter.name: getattr(config, parameter.name) for parameter in CORE}
    if has_amd_options(config) or arch_vendor(winner.arch) == "amd":
        named = zip(AMD_KEYS, AMD_OPTIONS, strict=True)
        values |= {key: getattr(config, option.name) for key, option in named}
    options = {option.name for option in AMD_OPTIONS}
    values |= {name: value for name, value in config.others if name not in options}
    return values | {
        "op": problem.op,
        "family": config.family,
        "config": config.name,
        "dtype_a": problem.dtype_a,
        "dtype_b": problem.dtype_b,
        "dtype_c": problem.dtype_c,
        "bias": problem.bias,
        "activation": None if problem.activation == "none" else problem.activation,
        **dict(problem.own),
        **values_of(replace(winner, compute_units=compute_units)),
    }


def _flow(value: object) -> str:
    """Return `value` in YAML's flow style, on one line, quoted like tune_gemm's dicts."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # YAML 1.1 reads 1e-05 as text: a float needs a point. A value that is not finite becomes null.
        text = repr(value) if math.isfinite(value) else "null"
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    if not isinstance(value, str):
        return str(value)
    if value.isascii() and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    return str(yaml.safe_dump(value, default_style='"', width=math.inf)).strip()
