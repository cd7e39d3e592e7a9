"""The report in a real browser: `make test-browser`.

Not part of the ordinary suite, whose machines need no browser; what can be checked without one is
in tests/export/test_report.py. Here a missing browser is a failure that says what to install.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from devtools import Page, find_browser

from export.report import write_report
from serving import read_bundle

pytestmark = pytest.mark.browser

PHONE, DESK = (360, 800), (1280, 900)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    binary = find_browser()
    assert binary is not None, (
        "no Chromium found; install one (on Debian: apt-get install chromium) or name it in "
        "BROWSER_BINARY"
    )
    with Page(binary, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(graph_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(read_bundle(graph_bundle), tmp_path_factory.mktemp("report") / "page.html")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_it_opens_from_a_file_asks_for_nothing_and_fits(
    page: Page, report: Path, size: tuple[int, int], dark: bool
) -> None:
    page.show(report, width=size[0], height=size[1], dark=dark)
    assert page.requests() == [report.as_uri()]
    assert page.complaints() == []
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    # No text sticks out of its box, except in boxes that scroll.
    sticking_out = page.evaluate(
        """[...document.querySelectorAll("main *")].filter(e => !e.closest(".scroll, svg, nav")
           && e.getBoundingClientRect().right > innerWidth + 1)
           .map(e => e.outerHTML.slice(0, 80))"""
    )
    assert sticking_out == []


def test_wide_tables_and_drawings_scroll_in_their_own_box(page: Page, report: Path) -> None:
    page.show(report, width=PHONE[0], height=PHONE[1], dark=False)
    wider = page.evaluate(
        """[...document.querySelectorAll(".scroll")].filter(b => b.offsetParent
           && b.scrollWidth > b.clientWidth + 1).length"""
    )
    assert wider >= 3
    assert page.evaluate(
        """[...document.querySelectorAll(".scroll")].every(b =>
           getComputedStyle(b).overflowX === "auto" && b.tabIndex === 0)"""
    )


def test_colours_follow_the_scheme_also_in_the_drawing(page: Page, report: Path) -> None:
    seen = {}
    for dark in (False, True):
        page.show(report, width=DESK[0], height=DESK[1], dark=dark)
        seen[dark] = page.evaluate(
            """[getComputedStyle(document.body).backgroundColor,
                getComputedStyle(document.querySelector(".node rect")).fill,
                getComputedStyle(document.querySelector(".node .name")).fill]"""
        )
    assert all(light != dark for light, dark in zip(seen[False], seen[True], strict=True))


def test_pointing_at_a_population_shows_its_size_and_its_connections(
    page: Page, report: Path
) -> None:
    page.show(report, width=DESK[0], height=DESK[1], dark=False)
    assert page.evaluate("document.querySelector('.pointed').textContent.trim()") == ""
    page.evaluate(
        "document.querySelector('#graph0 .node').dispatchEvent(new MouseEvent('mouseenter'))"
    )
    said = page.evaluate("document.querySelector('.pointed').textContent")
    assert "units" in said and "connections in" in said
    lit = page.evaluate("document.querySelectorAll('#graph0 .edge.lit').length")
    all_edges = page.evaluate("document.querySelectorAll('#graph0 .edge').length")
    assert 0 < lit < all_edges


def test_a_tap_keeps_a_population_shown_and_the_next_lets_go(page: Page, report: Path) -> None:
    page.show(report, width=PHONE[0], height=PHONE[1], dark=True)
    tap = "document.querySelector('#graph0 .node').dispatchEvent(new MouseEvent('click'))"
    pointing = "document.querySelector('#graph0').classList.contains('pointing')"
    page.evaluate(tap)
    assert page.evaluate(pointing) is True
    page.evaluate(tap)
    assert page.evaluate(pointing) is False


def test_labels_do_not_cover_boxes_and_texts_stay_inside(page: Page, report: Path) -> None:
    page.show(report, width=DESK[0], height=DESK[1], dark=False)
    wide = page.evaluate(
        """[...document.querySelectorAll("svg.graph .node")].filter(node => {
             const box = node.querySelector("rect").getBoundingClientRect();
             return [...node.querySelectorAll("text")].some(text => {
               const own = text.getBoundingClientRect();
               return own.left < box.left || own.right > box.right;
             });
           }).map(node => node.textContent)"""
    )
    assert wide == []
