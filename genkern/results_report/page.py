"""The report as one HTML page, which holds its data, its charts' library and its programs, and loads nothing."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from functools import lru_cache
from pathlib import Path

from genkern.results_report.charts import PALETTE, all_charts, roof_rows
from genkern.results_report.record import Record, plain

_FOLDER = Path(__file__).resolve().parent
_VEGA = _FOLDER / "vega"
_LEVEL = 9
_PLACE = re.compile(r"\{\{([A-Z_]+)\}\}")


def page(record: Record) -> str:
    """Return the page. Everything from files is in the compressed data, so that no text of a file becomes markup."""
    data = {**plain(record), **roof_rows(record), "charts": all_charts(record), "palette": PALETTE}
    parts = {
        "TITLE": html.escape(record.title),
        "STYLE": _text("page.css"),
        "PROGRAM": _text("page.js"),
        "DATA": _packed(json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()),
        "VEGA": _library("vega.min.js"),
        "VEGA_LITE": _library("vega-lite.min.js"),
        "LICENCES": _library("LICENCES.txt"),
    }
    # One pass, so that a title with {{DATA}} stays a title.
    return _PLACE.sub(lambda found: parts[found[1]], _text("page.html"))


def _packed(data: bytes) -> str:
    # Without the time of the compression, equal data give equal pages.
    return base64.b64encode(gzip.compress(data, _LEVEL, mtime=0)).decode()


@lru_cache(maxsize=8)
def _library(name: str) -> str:
    return _packed((_VEGA / name).read_bytes())


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
