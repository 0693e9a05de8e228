"""Templates as jinja2 loads them, genkern's and those of formats outside it, and what it compiles them to."""

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
# What the code is besides made of and for.
_MADE_FOR = f"{jinja2.__version__} {sys.version} {_WHITESPACE}"


@lru_cache(maxsize=4)
def environment_of(outside: tuple[tuple[str, Path], ...]) -> jinja2.Environment:
    """genkern's templates; those of other formats lie in their folders, by the formats' names."""
    others = {name: jinja2.FileSystemLoader(folder) for name, folder in outside}
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader("genkern.templates", ""), jinja2.PrefixLoader(others)]),
        undefined=jinja2.StrictUndefined,
        bytecode_cache=_Compiled(),
        # Nobody changes them under a process that runs, and each module asks for thirty.
        auto_reload=False,
        **_WHITESPACE,
    )


class _Compiled(jinja2.BytecodeCache):
    """Python's way with its own modules: in __pycache__ beside the template, and not where Python would write none.

    jinja2 takes longer to make code of the templates of one module than to render it, and each process began with that.
    The code lies with the templates and not with the binaries, whose folder people share who do not run each other's
    programs. A file that is damaged, or of another text, is as if it were not there.
    """

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """The file."""
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
    """The code behind a digest of it and of all that it was made of."""
    return hashlib.sha256(f"{_MADE_FOR} {bucket.checksum} ".encode() + code).digest() + code
