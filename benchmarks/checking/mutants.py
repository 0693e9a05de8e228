"""How many faults the check finds: kernels of every form with one fault each, and the same kernels without.

    python -m benchmarks.checking.mutants [--families tiled,gemv] [--faults bias] [--sizes 40] [-o DATA.jsonl]

Each mutant is a generated module with one edit in its kernels or in how they are launched (faults_of_kernels.py), run
by its own `matmul` and judged by profiling/checking, as a config is before it may win. A wrong verdict, a fault of the
device, a refused launch and a hang all keep a config from winning, and count as found. Then kernels without a fault are
judged over `--sizes` sizes, all types and all forms: each one that is refused is a false alarm. On a GPU all
forms run; without one those that Triton's interpreter runs. Every verdict is added to the file of `-o` at once, and
what it has of the same code, machine and versions is not judged again. The last line says how many were found; the
status is 1 unless that is all of them, all were judged, and there was no false alarm.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import genkern
from benchmarks.checking.judges import Judged, judge
from benchmarks.checking.mutant_cases import Case, kinds_of, mutants, sound
from benchmarks.common.figures import table
from benchmarks.common.kept import Kept
from genkern.cli.target import versions
from genkern.gemm.gpus import detect_devices
from genkern.kernels.catalogue import FAMILIES
from genkern.kernels.cute.release import cute_installed
from genkern.kernels.lowering import digest_of
from genkern.profiling.supervisor import SupervisorError

FOUND = ("wrong", "fault", "refused", "hang")
_PROGRESS_S = 10.0


class Verdicts:
    """Verdicts in the file of `-o`, by case, and by `setting`: what they hold for besides."""

    def __init__(self, path: str | None, setting: str) -> None:
        """Raises OSError."""
        self._setting = setting
        self._kept = Kept(path)

    def of(self, case: Case) -> Judged | None:
        """What an earlier run said of the case, if one did."""
        if (entry := self._kept.of(case.key(self._setting))) is None:
            return None
        return Judged(case, entry["outcome"], entry["message"])

    def add(self, judged: Judged) -> None:
        """Keep a verdict, before the next is waited for."""
        case = judged.case
        said = {"kind": case.kind, "problem": case.problem.name, "config": case.config.name}
        said |= {"fault": case.fault, "outcome": judged.outcome, "message": judged.message}
        self._kept.add(case.key(self._setting), said)


def setting_of(device: str) -> str:
    """What a verdict holds for besides its case: the code that makes and judges kernels, device, and versions."""
    rooms = (Path(genkern.__file__).parent / name for name in ("gemm", "kernels", "ops", "profiling", "templates"))
    files = [file for room in rooms for file in sorted(room.resolve().rglob("*")) if file.suffix in (".py", ".j2")]
    return f"{device} {sorted(versions().items())} {digest_of([*files, Path(__file__).with_name('judge.py')])}"


def report(judged: Sequence[Judged]) -> str:
    """Markdown: a line per kind of kernels, then what was missed."""
    there = {item.case.kind for item in judged}
    rows = []
    for kind in (each.name for each in kinds_of(FAMILIES) if each.name in there):
        of = [item for item in judged if item.case.kind == kind]
        made = Counter(item.outcome for item in of if item.case.fault)
        whole = [item for item in of if not item.case.fault]
        alarms = sum(item.outcome != "passed" for item in whole)
        found = [made[outcome] for outcome in FOUND]
        rows.append((kind, made.total(), sum(found), *found, len(whole), alarms))
    columns = ("kernels", "mutants", "found", *FOUND, "without a fault", "false alarms")
    lines = [table(columns, rows), ""]
    for item in judged:
        if item.outcome not in (FOUND if item.case.fault else ("passed",)):
            what = item.case.fault or "no fault"
            lines.append(f"{item.case.kind} {item.case.problem.name}: {what}: {item.outcome} {item.message}")
    return "\n".join(lines)


def last_line(cases: Sequence[Case], judged: Sequence[Judged]) -> tuple[str, bool]:
    """The summary, and whether all were judged, all mutants found, and none without a fault refused."""
    made = sum(bool(case.fault) for case in cases)
    found = sum(item.outcome in FOUND for item in judged if item.case.fault)
    alarms = sum(item.outcome != "passed" for item in judged if not item.case.fault)
    good = found == made and not alarms and len(judged) == len(cases) > 0
    return f"found {found} of {made}, false alarms {alarms}", good


def key_lines(judged: Sequence[Judged], on_gpu: bool) -> list[str]:
    """Keys of results/figures.yaml, of what a GPU or Triton's interpreter judged."""
    found = sum(item.outcome in FOUND for item in judged if item.case.fault)
    if not on_gpu:
        return [f"mutants_interpreted: {found}"]
    whole = [item for item in judged if not item.case.fault]
    alarms = sum(item.outcome != "passed" for item in whole)
    made = len(judged) - len(whole)
    return [
        f"mutants_made: {made}",
        f"mutants_found: {found}",
        f"sound_judged: {len(whole)}",
        f"false_alarms: {alarms}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", help="of these families only, with commas")
    parser.add_argument("--faults", default="", help="of these faults only: those with this in their names")
    parser.add_argument("--sizes", type=int, help="sizes for kernels without a fault (default: 40, without a GPU 16)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a CPU)")
    parser.add_argument("--limit_s", type=float, default=float("inf"), help="begin no case after so many seconds")
    parser.add_argument("-o", "--output", help="verdicts as JSON lines; those it has already are not judged again")
    arguments = parser.parse_args()
    devices = detect_devices()
    arch, on_gpu = (devices[0].arch, True) if devices else ("sm_90", False)
    where = devices[0].name if devices else "Triton's interpreter"
    here = [name for name, family in FAMILIES.items() if family.language == "triton" or cute_installed()]
    if left_out := FAMILIES.keys() - here:
        print(f"left out: {', '.join(sorted(left_out))}, which CuTe DSL compiles: it is not installed", flush=True)
    families = arguments.families.split(",") if arguments.families else here
    if unknown := [name for name in families if name not in FAMILIES]:
        parser.error(f"there is no family {unknown[0]!r}: use some of {', '.join(FAMILIES)}")
    kinds = [kind for kind in kinds_of(families) if on_gpu or kind.form.interpreted]
    started_s = time.monotonic()
    cases = [case for case in mutants(kinds, arch, on_gpu) if arguments.faults in case.fault]
    sizes = arguments.sizes if arguments.sizes is not None else 40 if on_gpu else 16
    cases += sound(kinds, arch, sizes, on_gpu)
    try:
        verdicts = Verdicts(arguments.output, setting_of(where))
    except OSError as error:
        parser.error(f"cannot write {arguments.output}: {error.strerror}")
    judged = [known for case in cases if (known := verdicts.of(case)) is not None]
    if judged:
        print(f"{len(judged)} of {len(cases)} are judged in {arguments.output}", flush=True)
    rest = [case for case in cases if verdicts.of(case) is None]
    told_s = started_s
    try:
        for item in judge(rest, arch, on_gpu, arguments.jobs, started_s + arguments.limit_s, _PROGRESS_S):
            if item is not None:
                judged.append(item)
                verdicts.add(item)
            if time.monotonic() >= told_s + _PROGRESS_S:
                told_s = time.monotonic()
                print(
                    f"{told_s - started_s:.0f} s: judged {len(judged)} of {len(cases)}, {last_line(cases, judged)[0]}",
                    flush=True,
                )
    except SupervisorError as error:
        print(f"nothing more can be judged: {error}", file=sys.stderr)
    print(report(judged))
    print("\n".join(key_lines(judged, on_gpu)))
    print(f"on {where}, {time.monotonic() - started_s:.0f} s")
    if len(judged) < len(cases):
        print(f"judged {len(judged)} of {len(cases)}")
    text, good = last_line(cases, judged)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
