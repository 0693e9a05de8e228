"""The HTML page in a headless Chromium: it opens without a complaint, filters work, and names do no harm."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_reports import HOSTILE, hostile_row, journal, predicted, problems, results, winner
from recorded_runs import FIT

from benchmarks.common.browser import OpenPage, browser, browser_or_reason, drawn_whole, opened
from genkern.files.file_kind import read_results
from genkern.results_report import vega, write

_EXECUTABLE, _REASON = browser_or_reason()
# Vega's marks of data, beside those of legends.
POINTS = "mark-symbol.role-mark"
CHARTS = ("speed", "roofline", "changes", "candidates", "parameter", "tiles", "loop", "timeline", "certainty")
in_browser = pytest.mark.skipif(not _EXECUTABLE, reason=_REASON or "found")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six sizes with a journal, against older results: one predicted, one without a library, one of another family."""
    folder = tmp_path_factory.mktemp("report")
    sizes = problems()
    new = [winner(problem, 10.0 + place) for place, problem in enumerate(sizes)]
    new[4], new[5] = predicted(sizes[4], 14.0), winner(sizes[5], 15.0, None)
    old = [winner(problem, 10.0, config=FIT[0]) for problem in sizes[:4]]
    path = results(folder / "r.yaml", new)
    journal(path)
    write(path, folder / "report.html", results(folder / "old.yaml", old))
    return folder / "report.html"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture
def page(chromium: Any, report: Path) -> Iterator[OpenPage]:
    with opened(chromium, report, 1400) as found:
        yield found
    assert found.complaints == []


def shown(page: Any) -> list[str]:
    """The sizes in the table."""
    return [str(text) for text in page.locator("#table tbody a").all_inner_texts()]


def count(page: Any, shown_of: str) -> None:
    page.wait_for_function(f"document.getElementById('count').textContent.startsWith('{shown_of}')")


def chosen(page: Any, size: str) -> None:
    page.wait_for_function(f"document.querySelector('#detail h2').textContent.includes('{size}')")


def marks(page: Any, chart: str) -> int:
    return int(page.locator(f"#{chart} .{POINTS} path").count())


@in_browser
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, True)])
def test_the_page_opens_without_a_complaint(chromium: Any, report: Path, width: int, dark: bool) -> None:
    """No error, no request, nothing wider than the window, and every chart has marks."""
    with opened(chromium, report, width, dark=dark) as found:
        drawn_whole(found.page)
        assert found.complaints == []
        assert found.page.evaluate("document.documentElement.scrollWidth") <= width
        for chart in (
            "speed",
            "roofline",
            "changes",
            "candidates",
            "parameter",
            "tiles",
            "loop",
            "timeline",
            "certainty",
        ):
            assert found.page.locator(f"#{chart}_chart svg path").count() > 3, chart


@in_browser
def test_search_and_filters_change_the_table_and_the_charts(page: OpenPage) -> None:
    of = page.page
    assert shown(of) == [problem.size for problem in problems()]
    drawn_whole(of)
    assert marks(of, "roofline_chart") == 6
    of.fill("#search", "6144")
    count(of, "3 of")
    assert shown(of) == [problem.size for problem in problems() if problem.N == 6144]
    of.wait_for_function("document.querySelectorAll('#roofline_chart .mark-symbol.role-mark path').length === 3")
    of.fill("#m_from", "40")
    count(of, "2 of")
    of.click("button[type=reset]")
    count(of, "6 of")
    of.select_option("#verdict", "slower")
    count(of, "3 of")
    of.fill("#search", "no such size")
    count(of, "0 of")
    assert shown(of) == []


@in_browser
def test_columns_sort(page: OpenPage) -> None:
    page.page.click("#table th:has-text('Time')")
    times = [float(text.split()[0]) for text in page.page.locator("#table tbody td:nth-child(2)").all_inner_texts()]
    assert times == sorted(times, reverse=True)


@in_browser
def test_a_link_leads_to_its_size(chromium: Any, report: Path) -> None:
    """In the address, from the table, and from a point of a chart."""
    with opened(chromium, report, 1400, fragment=f"#{problems()[2].size}") as found:
        heading = found.page.locator("#detail h2")
        assert problems()[2].size in heading.inner_text()
        found.page.click("#table tbody tr:nth-child(2) a")
        found.page.wait_for_function(
            f"document.querySelector('#detail h2').textContent.includes('{problems()[1].size}')"
        )
        assert found.page.evaluate("location.hash") == f"#{problems()[1].size}"
        found.page.evaluate("scrollTo(0, 0)")
        found.page.locator(f"#speed_chart .{POINTS} path").first.click()
        found.page.wait_for_function(
            f"document.querySelector('#detail h2').textContent.includes('{problems()[0].size}')"
        )
        assert found.complaints == []


@in_browser
def test_a_size_shows_its_source_and_what_it_beat(page: OpenPage) -> None:
    text = page.page.locator("#detail").inner_text()
    assert "12 of 64 (19 %)" in text
    assert "Runner-up" in text
    assert "BLOCK_SIZE_M" in page.page.locator("#detail .source .removed").first.inner_text()
    page.page.click("#detail button:text-is('Winner')")
    assert "def matmul" in page.page.locator("#detail .source").inner_text()


@in_browser
def test_predictions_are_marked_wherever_they_stand(page: OpenPage) -> None:
    size = problems()[4].size
    row = page.page.locator(f"#table tr[data-id='{size}']").inner_text()
    assert "predicted" in row
    page.page.evaluate(f"location.hash = '{size}'")
    chosen(page.page, size)
    assert "predicted" in page.page.locator("#detail h2").inner_text()
    drawn_whole(page.page)
    assert marks(page.page, "speed_chart") == 4
    assert page.page.locator("#roofline_chart").get_by_text("predicted", exact=True).count() == 1


@in_browser
def test_what_is_shown_can_be_saved(page: OpenPage) -> None:
    of = page.page
    of.fill("#search", "6144")
    count(of, "3 of")
    found = {}
    for button in ("sizes_csv", "all_json", "candidates_csv"):
        with of.expect_download() as download:
            of.click(f"#{button}")
        found[button] = Path(download.value.path()).read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(found["sizes_csv"])))
    assert [row["label"] for row in rows] == [problem.size for problem in problems() if problem.N == 6144]
    assert rows[0]["timed"] == "measured"
    assert len(json.loads(found["all_json"])["sizes"]) == 6
    assert len(list(csv.DictReader(io.StringIO(found["candidates_csv"])))) == 16


@in_browser
def test_a_saved_name_is_no_formula(chromium: Any, tmp_path: Path) -> None:
    row = replace(hostile_row(), kernel_name="=cmd|' /C calc'!A0")
    write([row], tmp_path / "report.html")
    with opened(chromium, tmp_path / "report.html", 1400) as found:
        with found.page.expect_download() as download:
            found.page.click("#sizes_csv")
        (saved,) = csv.DictReader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8")))
        assert saved["config"] == "'" + row.kernel_name
        assert found.page.locator("#table td.name").inner_text() == row.kernel_name


@in_browser
def test_names_in_files_do_no_harm(chromium: Any, tmp_path: Path) -> None:
    """A kernel, a device, a version and a title that would close the script are shown as they are."""
    rows = [*read_results(str(results(tmp_path / "r.yaml"))), hostile_row()]
    write(rows, tmp_path / "report.html", [hostile_row()], title=HOSTILE)
    with opened(chromium, tmp_path / "report.html", 1400) as found:
        drawn_whole(found.page)
        assert found.complaints == []
        assert found.page.title() == HOSTILE
        assert found.page.locator("img").count() == 0
        assert "</script><img" in found.page.locator("#table").inner_text()


def test_names_in_files_are_not_in_the_page_as_they_stand(tmp_path: Path) -> None:
    """Whatever reads the page: no text of a file is among its markup."""
    write([hostile_row()], tmp_path / "report.html", title=HOSTILE)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<img" not in text
    assert text.count("</script>") == text.count("<script")


def test_the_licences_are_of_the_library_in_the_page() -> None:
    """Each release is named by the licences, and by the library itself."""
    folder = Path(vega.__file__).parent
    licences = (folder / "LICENCES.txt").read_text(encoding="utf-8")
    for name in ("vega", "vega-lite"):
        (release,) = re.findall(rf"(?m)(?:^|, ){name} ([0-9.]+) \(BSD-3-Clause\)", licences)
        assert f'"{release}"' in (folder / f"{name}.min.js").read_text(encoding="utf-8")
    assert "d3-scale" in licences


@pytest.mark.parametrize("sizes", [1, 6])
def test_a_page_of_few_sizes_is_small(sizes: int, tmp_path: Path) -> None:
    """The library and the program take half a megabyte."""
    write(results(tmp_path / "r.yaml", [winner(each, 10.0) for each in problems(sizes)]), tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 500_000


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    """Its policy forbids it, and it names no address outside the licences' own texts."""
    write(results(tmp_path / "r.yaml"), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "")
