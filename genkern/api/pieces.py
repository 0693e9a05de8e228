"""`Pieces`: what a result can be saved, packed and called from: the text of its rows, or a bundle."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from genkern.api.calls import Calls
from genkern.errors import ResultsError
from genkern.file_io import cache_folder, read_text, shown_path, write_whole
from genkern.files.file_kind import kind_of
from genkern.files.gemm_entry import GemmDefaults
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import SUFFIX, Bundle, read_bundle
from genkern.runtime.process.genkern_command import finished

_LOG = logging.getLogger("genkern")
# The kinds of results files that genkern writes.
SUFFIXES = (".yaml", ".csv")


@dataclass(frozen=True, eq=False)
class Pieces:
    """The content of one result, whatever becomes of the file that it was read from.

    kind: suffix of results files of its kind: ".yaml" or ".csv"; ".genkern" for a bundle
    text: its rows as a results file
    bundle: the bundle that it was loaded from, if any
    predicted: whether rows are predicted
    cache_dir: folder of compiled kernels; None: the usual one
    """

    kind: str
    text: str = ""
    bundle: Bundle | None = None
    predicted: bool = False
    cache_dir: str | None = None

    @cached_property
    def calls(self) -> Calls:
        """Calls of its winners."""
        return Calls(self._packed)

    def images(self) -> dict[str, bytes]:
        """Return the binaries of the bundle, by sha256."""
        assert self.bundle is not None
        return {sha256: self.bundle.image(sha256) for sha256 in self.bundle.contents.binaries}

    def pack(self, bundle: str, arguments: Sequence[str]) -> None:
        """Pack the rows into the file `bundle`, with these arguments of `genkern pack`. Raises ResultsError."""
        with tempfile.TemporaryDirectory(prefix="genkern-") as folder:
            results = Path(folder) / f"results{self.kind}"
            write_whole(str(results), self.text)
            log = Path(folder) / "pack.log"
            if finished(["pack", str(results), "-o", bundle, *arguments], log):
                _LOG.warning("%s: some winners are missing or wrong:\n%s", bundle, log.read_text(errors="replace"))

    def _packed(self) -> Bundle:
        """Return a bundle of the rows, to call. It has no proofs, which `TuningResult.pack` makes."""
        if self.bundle is not None:
            return self.bundle
        with tempfile.TemporaryDirectory(prefix="genkern-") as folder:
            bundle = str(Path(folder) / f"winners{SUFFIX}")
            cache = str(cache_folder(self.cache_dir).absolute())
            self.pack(bundle, ["--no_proofs", "--cache_dir", cache, *["--predicted"] * self.predicted])
            return read_bundle(bundle)


def kind_suffix(path: str) -> str:
    """Return the suffix of results files that are of the same kind as `path`."""
    return next((suffix for suffix in SUFFIXES if kind_of(f"x{suffix}") is kind_of(path)), SUFFIXES[0])


def rows_and_text(path: str, defaults: GemmDefaults, wanted: Collection[int] | None = None) -> tuple[list[Result], str]:
    """Return the rows of a results file, and their text as a results file of the same kind.

    wanted: numbers of the lines at which the rows begin; None: all rows

    Raises ResultsError if it is not a results file.
    """
    text, where, kind = read_text(path, ResultsError), shown_path(path), kind_of(path)
    if not text.strip():
        return [], ""
    rows = list(kind.read_rows(text, where, defaults))
    head, texts = kind.split(text if text.endswith("\n") else f"{text}\n", where, [row.line for row in rows])
    kept = [place for place, row in enumerate(rows) if wanted is None or row.line in wanted]
    return [rows[place] for place in kept], head + "".join(texts[place] for place in kept)
