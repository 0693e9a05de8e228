"""The list of public reports names tests that exist."""

from __future__ import annotations

from benchmarks.checking.reports import PAGE, ROOT, named_tests


def test_each_report_has_a_test() -> None:
    """Every line names a function of a test file; at least twenty are of 2026."""
    page = PAGE.read_text(encoding="utf-8")
    reports = named_tests(page)
    assert len(reports) == sum(line.startswith("| ") for line in page.splitlines()) - page.count("| source |")
    assert page.count("| 2026-") >= 20
    for report, tests in reports.items():
        assert tests, report
        for path, _, name in (test.partition("::") for test in tests):
            assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), report
