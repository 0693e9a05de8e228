"""What speaks against a config for a problem: legality, the space, its rules, predicted times, and measurements."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace

from genkern.cli.candidates_file import COLUMNS
from genkern.errors import InputError, ResultsError
from genkern.file_io import read_text, shown_path
from genkern.files.config_entry import parse_config
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.parameter import Value
from genkern.gemm.problem import GemmProblem
from genkern.journal.facts import ProblemFacts, read_journal
from genkern.journal.run_files import RunFiles
from genkern.kernels.catalogue import parameters_of
from genkern.ops.fields import problem_cells
from genkern.search.guided.predicted_times import PredictedTime, predicted_times
from genkern.space.prune import prune
from genkern.space.rules.registry import reason
from genkern.space.space import FamilySpace, Space

_GROUP = "GROUP_SIZE_M"


@dataclass(frozen=True)
class Told:
    """What a measurement says of a config.

    outcome: how the candidate ended, in the words of `Outcome`
    us: microseconds of one call; None if it was not timed
    stage: "screen" or "final"; "" if there is no time
    message: why there is no time, or a remark
    where: the file that says so
    predicted: True if the file holds predicted times
    """

    outcome: str
    us: float | None
    stage: str
    message: str
    where: str
    predicted: bool = False


def outside(space: Space, config: Config) -> str:
    """Return why the config is not in the space before pruning, or ""."""
    if (family := _nearest(space, config)) is None:
        return f"the space {space.name} has no family {config.family}"
    missing = _missing(family, config)
    return f"the space {space.name} has no {'; no '.join(missing)}" if missing else ""


def _nearest(space: Space, config: Config) -> FamilySpace | None:
    """Return the entry of the config's family that lacks the fewest of its values; None if there is no entry."""
    families = (family for family in space.families if family.family == config.family)
    return min(families, key=lambda family: len(_missing(family, config)), default=None)


def _missing(family: FamilySpace, config: Config) -> list[str]:
    """Return the config's values that an entry of a space does not list, each with the listed ones."""
    listed = dict(family.ranges)
    return [
        f"{name} = {value} (but {', '.join(map(str, listed[name]))})"
        for name in parameters_of(config.family)
        if name in listed and (value := getattr(config, name)) not in listed[name]
    ]


def rules_against(space: Space, problem: GemmProblem, config: Config, gpu: Gpu) -> list[tuple[str, str]]:
    """Return the name and the reason of every rule of the space that drops the config, in the space's order.

    A legal config is assumed. Rules are tried one after another on a space of this config alone; the rule that compares
    group sizes needs all group sizes that the space lists.
    """
    found: list[tuple[str, str]] = []
    listed = _nearest(space, config)
    rules = space.rules if listed is None or listed.rules is None else listed.rules
    sizes = dict(listed.ranges).get(_GROUP, ()) if listed is not None else ()
    for rule in rules:
        groups = tuple(sorted({*sizes, config.GROUP_SIZE_M}, key=int)) if rule == "group_m_redundant" else ()
        of_rule = replace(space, families=(_alone(config, groups),), rules=(rule,), order="")
        if config not in prune(of_rule, problem, gpu).kept:
            found.append((rule, reason(rule).rstrip(".")))
    return found


def _alone(config: Config, group_sizes: Sequence[Value]) -> FamilySpace:
    """Return a family's space of this config alone, or of this config with several values of GROUP_SIZE_M."""
    ranges: dict[str, tuple[Value, ...]] = {name: (getattr(config, name),) for name in parameters_of(config.family)}
    if group_sizes:
        ranges[_GROUP] = tuple(group_sizes)
    return FamilySpace(config.family, tuple(ranges.items()))


def predicted_of(problem: GemmProblem, configs: Sequence[Config], gpu: Gpu) -> dict[Config, PredictedTime]:
    """Return predicted times by config. They are never measured times."""
    return dict(zip(configs, predicted_times(problem, configs, gpu), strict=True))


def read_config(text: str) -> Config:
    """Parse a config's name. Raises InputError."""
    try:
        return parse_config(text)
    except InputError as error:
        raise InputError(f"CONFIG: {error}") from None


def facts_beside(path: str, problem: GemmProblem) -> tuple[ProblemFacts, str] | None:
    """Return what the journal beside a results file knows of the problem, and the journal's path; None if nothing."""
    files = RunFiles.named_by(path)
    for journal in (files.journal, files.finished_journal):
        if journal.is_file():
            facts = read_journal(journal).facts.get(problem)
            if facts is not None:
                return facts, str(journal)
    return None


def journal_evidence(path: str, problem: GemmProblem, config: Config) -> Told | None:
    """Return what the journal beside a results file says of the config; None if it says nothing."""
    if (found := facts_beside(path, problem)) is None:
        return None
    facts, where = found[0], shown_path(found[1])
    finals = {final.config: final for final in facts.finals}
    measurement = finals.get(config.name) or facts.screened.get(config.name)
    if measurement is not None:
        predicted = measurement.time_source == "predicted"
        outcome = measurement.outcome.said_of(measurement.time_source)
        return Told(outcome, measurement.duration_us, measurement.stage, measurement.message, where, predicted)
    if (unfit := facts.unfit.get(config.name)) is not None:
        return Told(unfit.outcome.value, None, "", unfit.message, where)
    return None


def candidates_evidence(path: str, problem: GemmProblem, config: Config) -> Told | None:
    """Return what a file of candidates (-o2) says of the config; None if it says nothing. Raises ResultsError."""
    rows = csv.reader(read_text(path, ResultsError).splitlines())
    try:
        if next(rows, None) != list(COLUMNS):
            raise ResultsError(f"{shown_path(path)} is not a list of candidates of this version of genkern (-o2 FILE)")
        cells = list(problem_cells(problem).values())
        for row in rows:
            named = dict(zip(COLUMNS, row, strict=False))
            if row[: len(cells)] == cells and named.get("config") == config.name:
                us = float(named["us"]) if named.get("us") else None
                predicted = named.get("time_source") == "predicted"
                return Told(named["outcome"], us, named["stage"], named["message"], shown_path(path), predicted)
    except (csv.Error, ValueError, KeyError):
        raise ResultsError(f"{shown_path(path)} is damaged: give another --candidates") from None
    return None


def told_by_recorded(path: str, problem: GemmProblem, config: Config, device: str | None) -> Told | None:
    """Return what a recorded space (genkern record) says of the config on a device; None if it says nothing.

    Raises ResultsError for a file that is no recorded space, and InputError if pyarrow is not installed.
    """
    # Imports pandas, which nothing else here needs.
    from genkern.recorded.load import load

    frame = load(path)
    chosen = frame[frame["config"] == config.name]
    cells = problem_cells(problem)
    for name, cell in cells.items():
        chosen = chosen[chosen[name].astype(str) == cell]
    if device:
        chosen = chosen[chosen["device"] == device]
    for row in chosen.to_dict("records"):
        stage = "final" if row["final_us"] == row["final_us"] else "screen"
        us = row["final_us"] if stage == "final" else row["screen_us"]
        has_time = us == us
        message = f"its machine code equals that of {row['copy_of']}" if isinstance(row["copy_of"], str) else ""
        where = f"{shown_path(path)}, {row['device']}"
        return Told(str(row["outcome"]), float(us) if has_time else None, stage if has_time else "", message, where)
    return None
