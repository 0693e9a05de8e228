"""`WorkFolder`: the folder that `genkern compile` writes and `genkern measure` reads: sizes, kernels and a manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from genkern.compile.kernels_file import MadeFor
from genkern.errors import InputError
from genkern.file_io import open_regular, read_text, shown_path, write_whole
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.gpus import known_archs
from genkern.gemm.problem import GemmProblem
from genkern.journal.header import generator

_SCHEMA = 1
MANIFEST = "manifest.json"
_BLOCK = 2**20


@dataclass(frozen=True)
class Manifest:
    """The description of a folder.

    arch: architecture of the kernels
    made_for: the target and the compiler, on which the kernels' cache keys depend
    generator: digest of the code that generates kernels and launch plans
    space: name of a shipped space, or of a file in the folder; "" for the default space
    libraries: the value for --libtype
    search: which kernels were compiled
    files: sha256 of each file, by name
    """

    arch: str
    made_for: MadeFor
    generator: str
    space: str
    libraries: str
    search: str
    files: dict[str, str]


@dataclass(frozen=True)
class WorkFolder:
    """The files of a folder, by its path."""

    path: Path

    @property
    def manifest_path(self) -> Path:
        return self.path / MANIFEST

    @property
    def sizes(self) -> Path:
        return self.path / "sizes.yaml"

    @property
    def kernels(self) -> Path:
        return self.path / "compiled.kernels"

    @property
    def own_space(self) -> Path:
        return self.path / "space.yaml"

    @property
    def results(self) -> Path:
        """The folder of measured results; its files are not in the manifest."""
        return self.path / "results"

    def results_of(self, shard: str | None) -> Path:
        """Return the path of the results of a shard, such as 2/4; None: all sizes."""
        return self.results / (f"results_{shard.replace('/', '_of_')}.yaml" if shard else "results.yaml")

    def finish(
        self, problems: Sequence[GemmProblem], arch: str, made_for: MadeFor, space: str, libraries: str, search: str
    ) -> None:
        """Write the size list, and last the manifest, without which a folder is incomplete. Raises OutputError."""
        write_whole(str(self.sizes), "".join(map(size_line, problems)))
        own = [self.own_space] if space == self.own_space.name else []
        files = {path.name: _sha256(path) for path in (self.sizes, self.kernels, *own)}
        manifest = {"schema": _SCHEMA, **asdict(Manifest(arch, made_for, generator(), space, libraries, search, files))}
        write_whole(str(self.manifest_path), json.dumps({**manifest, "seal": _seal(manifest)}, indent=1) + "\n")

    def manifest(self) -> Manifest:
        """Return the folder's manifest, after comparing all files with their checksums.

        Raises InputError if there is no manifest, or a file is missing, damaged or replaced.
        """
        where = shown_path(str(self.path))
        if not self.manifest_path.is_file():
            raise InputError(f"{where}: there is no {MANIFEST}; name a folder that `genkern compile` has written")
        manifest = _parsed(read_text(str(self.manifest_path)), f"{where}/{MANIFEST}")
        for name, digest in manifest.files.items():
            try:
                found = _sha256(self.path / name)
            except OSError as error:
                raise InputError(f"{where}/{name}: {error.strerror}; the folder is incomplete: copy it again") from None
            if found != digest:
                raise InputError(
                    f"{where}/{name} has changed since it was compiled: copy the folder again, or compile again"
                )
        return manifest

    def mismatch(self, manifest: Manifest, here: MadeFor) -> str:
        """Return why this process would not find kernels of the folder; "" if it would."""
        if manifest.generator != generator():
            return "it was compiled by another version of genkern"
        return manifest.made_for.mismatch(here)


def _parsed(text: str, where: str) -> Manifest:
    damaged = InputError(f"{where} is damaged: copy the folder again, or compile again")
    try:
        said: dict[str, Any] = json.loads(text)
        seal = said.pop("seal")
        if seal != _seal(said):
            raise damaged
        if (schema := said.pop("schema")) != _SCHEMA:
            raise InputError(f"{where} is of another version of genkern (schema {schema!r:.20})")
        made_for = MadeFor(**{name: str(value) for name, value in said.pop("made_for").items()})
        files = {str(name): str(digest) for name, digest in said.pop("files").items()}
        words = {name: str(value) for name, value in said.items()}
        manifest = Manifest(made_for=made_for, files=files, **words)
    except InputError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise damaged from None
    named = {"sizes.yaml", "compiled.kernels"} | ({"space.yaml"} if manifest.space == "space.yaml" else set())
    if files.keys() != named or manifest.arch not in known_archs():
        raise damaged
    return manifest


def _seal(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", opener=open_regular) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
