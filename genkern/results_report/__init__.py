"""Reports of results files: one HTML page without network access, Markdown for a pull request, or a picture.

    from genkern.results_report import write

    write("results.yaml", "report.html")
    write("results.yaml", "report.md", old="results_of_last_week.yaml")

`genkern report` is the same on the command line. A report is made in two steps: `collect` gathers the facts of results
files, journals, candidates and generated kernels in one record of plain values (`Record`), and a writer for each format
shows that record. The package is not named genkern.report, since that is the public function about a model's layers.
"""

from __future__ import annotations

from genkern.results_report.collecting import collect
from genkern.results_report.record import Record
from genkern.results_report.writing import FORMATS, write, write_record

__all__ = ["FORMATS", "Record", "collect", "write", "write_record"]
