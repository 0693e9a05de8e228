"""What becomes of damaged bundles, journals and results files: refused in one line, or as if nothing had happened.

    python -m benchmarks.checking.damaged_files [--bundles 2000] [--journals 1000] [--results 500] [--seed 1]

Half of the bundles have other bytes; of the others the manifest says something else under a whole seal. Three of four
journals have other bytes or lines, the others values of other types in lines that are whole; each is shown by
`genkern status`, and the same command goes on from it. Results files, in YAML and in CSV, are what a run is to add to.
Everything runs in this process, with times that are predicted, so that no GPU is needed.

What must not be: a traceback, more than one line, results other than those of the undisturbed run, a bundle that is
taken for whole, seconds or gigabytes for a small file. The table says what became of them; the status is 1 if any of
that was so. A result in text that has become another plausible one is `taken`: nothing in it could tell.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import random
import resource
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.checking.damage import changed_bytes, changed_lines, changed_value
from benchmarks.common.figures import table
from genkern.__main__ import main as genkern
from genkern.errors import GenkernError, ResultsError
from genkern.files.file_kind import read_results
from genkern.journal.journal_line import chained_line, checksums, entry_of, journal_line
from genkern.packing.rows import rows_of
from genkern.runtime.bundles import bundle as bundles
from genkern.runtime.bundles.bundle import Bundle, parse_bundle, read_bundle, write_bundle
from genkern.runtime.bundles.drift import drift_text
from genkern.runtime.bundles.records import to_data

SPACE = """
archs: [gfx942]
ops: [a16w16]
families:
  - {family: tiled, BLOCK_SIZE_M: [16, 32], BLOCK_SIZE_N: [16, 32], BLOCK_SIZE_K: [64], GROUP_SIZE_M: [1, 2],
     SPLIT_K: [1], num_warps: [4], num_stages: [2], waves_per_eu: [0], matrix_instr_nonkdim: [16], kpack: [1],
     schedule_hint: [none]}
rules: [group_m_redundant]
"""
ROWS = (16, 33, 64)
SIZES = "- {'M': 16, 'N': 128, 'K': 256}\n- {'M': 33, 'N': 64, 'K': 4097}\n- {'M': 64, 'N': 128, 'K': 256}\n"
# Of one file, of a few KB.
MOST_S, MOST_MIB = 10.0, 1024
BAD = ("raised", "many lines", "wrong", "slow")


@dataclass
class Tally:
    """What became of files, by kind of file; `bad` are the first that must not be, in words."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)

    def add(self, kind: str, became: str, what: str) -> None:
        self.counts.setdefault(kind, Counter())[became] += 1
        if became in BAD:
            self.bad.append(f"{kind}: {became}: {what}")


@dataclass(frozen=True)
class Ran:
    """How the command ended in this process."""

    status: int
    out: str
    err: str

    @property
    def refused(self) -> bool:
        return self.status == 2 and self.err.count("\n") == 1


def run(*argv: object) -> Ran:
    """The command, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = genkern(list(map(str, argv)))
    return Ran(status, out.getvalue(), err.getvalue())


def judged(judge: Callable[[], str]) -> tuple[str, str]:
    """What became of a file, and why where that must not be."""
    started_s, before_kib = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        became = judge()
    except GenkernError as error:
        became = "refused" if "\n" not in str(error) and str(error).isprintable() else "many lines"
        said = str(error)
    except Exception as error:
        return "raised", repr(error)[:300]
    else:
        said = ""
    taken_s = time.process_time() - started_s
    mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) >> 10
    if taken_s > MOST_S or mib > MOST_MIB:
        return "slow", f"{taken_s:.1f} s, {mib} MiB more"
    return became, said


def of_bundle(data: bytes, whole: Bundle) -> str:
    """Raises ResultsError where the bytes are refused."""
    found = parse_bundle(data, "damaged.genkern")
    images = {sha256: found.image(sha256) for sha256 in found.contents.binaries}
    same = found.contents == whole.contents and images == {sha256: whole.image(sha256) for sha256 in images}
    return "same" if same else "wrong"


def of_resealed(data: bytes) -> str:
    """What a dispatcher asks of each plan, as far as a machine without a GPU goes. Raises GenkernError."""
    found = parse_bundle(data, "resealed.genkern")
    proved, of = found.contents.proofs
    said, _ = drift_text(found.winners, {"driver": "1", "cublaslt": "1", "triton": "1", "genkern": "1"})
    if not 0 <= proved <= of or not said.isprintable():
        return "wrong"
    for winner in found.winners:
        for call in winner.calls:
            if call.proved and not call.least_m <= call.proved[0] <= call.proved[-1] <= call.most_m:
                return "wrong"
            known = {"M": winner.problem.M, "units": winner.compute_units}
            with contextlib.suppress(GenkernError):
                call.plan.workspace_elements(known)
                for launch in call.plan.launches:
                    launch.programs(known)
    return "read"


def marked(path: Path) -> bytes:
    """The bundle at `path` as if its calls had been proved, so that such marks are damaged too."""
    bundle = read_bundle(str(path))
    winners = tuple(
        winner.with_calls(
            tuple(replace(call, proved=tuple(sorted({call.least_m, call.most_m}))) for call in winner.calls)
        )
        for winner in bundle.winners
    )
    images = {name: bundle.image(name) for name in bundle.contents.binaries}
    write_bundle(str(path), replace(bundle.contents, winners=winners), images)
    return path.read_bytes()


def resealed(bundle: Bundle, rng: random.Random) -> bytes:
    """The bundle with another manifest, which is whole."""
    manifest = json.loads(json.dumps({"schema": bundles.SCHEMA, "genkern": "9.9", **to_data(bundle.contents)}))
    for _ in range(rng.randint(1, 3)):
        manifest = changed_value(manifest, rng)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr(zipfile.ZipInfo("manifest.json"), json.dumps(manifest).encode(), zipfile.ZIP_LZMA)
        for sha256 in bundle.contents.binaries:
            archive.writestr(zipfile.ZipInfo(sha256), bundle.image(sha256), zipfile.ZIP_STORED)
        archive.comment = b"-" * bundles._SEAL_BYTES
    body = target.getvalue()[: -bundles._SEAL_BYTES]
    return body + b"genkern sha256=" + hashlib.sha256(body).hexdigest().encode()


def judge_bundles(bundle: Bundle, whole: bytes, count: int, rng: random.Random, tally: Tally) -> None:
    """Damage the file so often, and its manifest."""
    for number in range(count):
        if number % 2:
            data = resealed(bundle, rng)
            tally.add("bundles resealed", *judged(lambda data=data: of_resealed(data)))  # type: ignore[misc]
        else:
            name, data = changed_bytes(whole, rng)
            became, said = judged(lambda data=data: of_bundle(data, bundle))  # type: ignore[misc]
            tally.add("bundles", became, f"{name}: {said}")


@dataclass(frozen=True)
class Undisturbed:
    """A run in `folder` by `command`, whose -o is still to be said: the bytes of its results, and of its journal."""

    folder: Path
    command: tuple[object, ...]
    results: Mapping[str, bytes]
    journal: bytes


def undisturbed(folder: Path, cache: Path) -> Undisturbed:
    """The run, whose kernels are in the cache then."""
    (folder / "space.yaml").write_text(SPACE)
    (folder / "sizes.yaml").write_text(SIZES)
    command = ("-i", folder / "sizes.yaml", "--arch", "gfx942", "--profiler", "predict", "--compile", "--jobs", 1)
    command += ("--space", folder / "space.yaml", "--cache_dir", cache)
    results = {}
    for kind in ("yaml", "csv"):
        ran = run(*command, "-o", folder / f"whole.{kind}")
        if ran.status:
            raise ResultsError(f"the undisturbed run ended with {ran.status}: {ran.err}")
        results[kind] = (folder / f"whole.{kind}").read_bytes()
    return Undisturbed(folder, command, results, (folder / "whole.yaml.journal.previous").read_bytes())


def of_journal(data: bytes, whole: Undisturbed) -> str:
    """The journal is shown, and gone on from. Raises ResultsError with what was said otherwise."""
    results = whole.folder / "r.yaml"
    journal = results.with_name("r.yaml.journal")
    for path in (results, journal.with_name(f"{journal.name}.previous")):
        path.unlink(missing_ok=True)
    journal.write_bytes(data)
    shown = run("status", results)
    # Status 1: the run is not going on, and sizes are left.
    if not shown.refused and (shown.status not in (0, 1) or shown.err or "\x1b" in shown.out):
        return "raised" if shown.status == 3 else "many lines"
    ran = run(*whole.command, "-o", results)
    if ran.refused:
        return "refused"
    if ran.status == 3:
        raise RuntimeError(ran.err[-300:])
    return "same" if ran.status == 0 and results.read_bytes() == whole.results["yaml"] else "wrong"


def retyped(data: bytes, rng: random.Random) -> bytes:
    """The journal with a value of another type in one of its lines, which are whole."""
    lines = [entry_of(line) for line in data.splitlines()]
    chosen = rng.randrange(len(lines))
    made, checksum = [], 0
    for number, entry in enumerate(lines):
        value = changed_value({"": entry["value"]}, rng).get("") if number == chosen else entry["value"]
        line = chained_line(journal_line(entry["fact"], value, entry.get("problem"))[:-1], checksum)
        _, checksum = checksums(line)
        made.append(line + b"\n")
    return b"".join(made)


def judge_journals(whole: Undisturbed, count: int, rng: random.Random, tally: Tally) -> None:
    """Damage the journal so often. Values of other types may be believed, which is no more than `read`."""
    for number in range(count):
        if number % 4 == 3:
            data = retyped(whole.journal, rng)
            became, said = judged(lambda data=data: of_journal(data, whole))  # type: ignore[misc]
            tally.add("journals retyped", "read" if became == "wrong" else became, said)
        else:
            name, data = changed_lines(whole.journal, rng)
            became, said = judged(lambda data=data: of_journal(data, whole))  # type: ignore[misc]
            tally.add("journals", became, f"{name}: {said}")


def of_results(data: bytes, kind: str, whole: Undisturbed) -> str:
    """The file is added to, and what can be packed of it is listed. Raises GenkernError."""
    results = whole.folder / f"d.{kind}"
    for path in whole.folder.glob(f"{results.name}*"):
        path.unlink()
    results.write_bytes(data)
    ran = run(*whole.command, "-o", results)
    if ran.refused:
        return "refused"
    if ran.status == 3:
        raise RuntimeError(ran.err[-300:])
    if ran.status or ran.err:
        return "many lines"
    after = results.read_bytes()
    rows = read_results(str(results))
    rows_of(rows, "gfx942", True)
    if not {row.problem.M for row in rows} >= set(ROWS):
        return "wrong"
    kept = set(data.splitlines()) & set(whole.results[kind].splitlines()) <= set(after.splitlines())
    if not kept:
        return "wrong"
    return "same" if after == whole.results[kind] else "taken"


def judge_results(whole: Undisturbed, count: int, rng: random.Random, tally: Tally) -> None:
    """Damage the results so often, in either kind of file."""
    for number in range(count):
        kind = ("yaml", "csv")[number % 2]
        name, data = changed_lines(whole.results[kind], rng)
        became, said = judged(lambda data=data, kind=kind: of_results(data, kind, whole))  # type: ignore[misc]
        tally.add(f"results in {kind}", became, f"{name}: {said}")


def lines_of(tally: Tally) -> Iterator[str]:
    """What is printed at the end."""
    columns = ("same", "refused", "read", "taken", *BAD)
    rows = [
        [kind, sum(counts.values()), *(counts[column] for column in columns)] for kind, counts in tally.counts.items()
    ]
    yield table(["", "files", *columns], rows)
    yield from tally.bad[:20]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for kind, count in (("bundles", 2000), ("journals", 1000), ("results", 500)):
        parser.add_argument(
            f"--{kind}", type=int, default=count, metavar="N", help=f"damaged {kind} (default: {count})"
        )
    parser.add_argument("--seed", type=int, default=1, help="of what is damaged how (default: 1)")
    parser.add_argument("--cache_dir", metavar="DIR", help="compiled kernels (default: a new folder)")
    options = parser.parse_args(argv)
    rng, tally = random.Random(options.seed), Tally()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = undisturbed(folder, Path(options.cache_dir or folder / "cache"))
        packed = run("pack", folder / "whole.yaml", "--predicted", "-o", folder / "b.genkern", *whole.command[-2:])
        if packed.status:
            raise ResultsError(f"the results cannot be packed: {packed.err}")
        data = marked(folder / "b.genkern")
        judge_bundles(parse_bundle(data, "b.genkern"), data, options.bundles, rng, tally)
        judge_journals(whole, options.journals, rng, tally)
        judge_results(whole, options.results, rng, tally)
    for line in lines_of(tally):
        print(line)
    return 1 if tally.bad else 0


if __name__ == "__main__":
    sys.exit(main())
