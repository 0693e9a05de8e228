"""The Jinja environment of genkern's templates and those of users' formats, with a cache of compiled templates."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import marshal
import os
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.bccache import Bucket

_WHITESPACE: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
# Versions and settings that the compiled code depends on besides the template.
_MADE_FOR = f"{jinja2.__version__} {sys.version} {_WHITESPACE}"


@lru_cache(maxsize=4)
def environment_of(outside: tuple[tuple[str, Path], ...]) -> jinja2.Environment:
    """Return the environment for genkern's templates; templates of users' formats have the format's name as prefix."""
    others = {name: jinja2.FileSystemLoader(folder) for name, folder in outside}
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader("genkern.templates", ""), jinja2.PrefixLoader(others)]),
        undefined=jinja2.StrictUndefined,
        bytecode_cache=_Compiled(),
        # Templates do not change while a process runs, and each module uses about thirty.
        auto_reload=False,
        **_WHITESPACE,
    )


class _Compiled(jinja2.BytecodeCache):
    """Caches compiled templates in __pycache__ beside the template, unless Python is told to write no bytecode.

    Compiling the templates of a module takes longer than rendering it, and otherwise every process would do it. The
    code lies beside the templates instead of in the folder of binaries, since users may share that folder without
    trusting each other's code. A file that is damaged or belongs to another text is ignored.
    """

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """Return the path of the cache file."""
        return importlib.util.cache_from_source(filename or name)

    def load_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(OSError):
            data = Path(bucket.key).read_bytes()
            code = data[hashlib.sha256().digest_size :]
            if data == _sealed(bucket, code):
                bucket.code = marshal.loads(code)

    def dump_bytecode(self, bucket: Bucket) -> None:
        if sys.dont_write_bytecode:
            return
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(bucket.key), exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(bucket.key))
            try:
                with open(descriptor, "wb") as file:
                    file.write(_sealed(bucket, marshal.dumps(bucket.code)))
                os.replace(temporary, bucket.key)
            except BaseException:
                os.unlink(temporary)
                raise


def _sealed(bucket: Bucket, code: bytes) -> bytes:
    """Return the code after a digest of the code and everything it depends on."""
    return hashlib.sha256(f"{_MADE_FOR} {bucket.checksum} ".encode() + code).digest() + code
