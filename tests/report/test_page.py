"""The HTML report in headless Chromium: every section is reached, links work, nothing is logged, nothing is fetched."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.bench.models import build
from braze.report.html import SECTIONS

BROWSER = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


def talks(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x) @ x.t()
    print("</script><script>document.title = 'broken out'</script>")
    return y.softmax(-1) * 2


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("no Chromium here")
    with api.sync_playwright() as p:
        chrome = p.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chrome
        chrome.close()


def opened(browser: Any, path: Path, **options: Any) -> tuple[Any, list[str]]:
    page = browser.new_page(**options)
    said: list[str] = []
    page.on("console", lambda m: said.append(m.text))
    page.on("pageerror", lambda e: said.append(str(e)))
    page.on("request", lambda r: said.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
    page.goto(path.as_uri())
    return page, said


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    e = braze.explain(talks, measure=True, quiet=True)(torch.randn(16, 16))
    return e.html(tmp_path_factory.mktemp("page") / "report.html")


def test_the_page_is_self_contained(report: Path) -> None:
    text = report.read_text()
    assert not re.search(r"""(src|href)=["']?(https?:)?//|@import|url\((?!data:)""", text)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_click_through(browser: Any, report: Path, scheme: str, width: int) -> None:
    page, said = opened(browser, report, viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert page.title() == "braze: talks"
    assert "2 graphs, 1 break" in page.inner_text("#verdict")
    for section, _ in SECTIONS:
        page.click(f"nav a[href='#{section}']")
        assert page.is_visible(f"#{section}")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    # search in a graph
    page.select_option("#level", index=1)
    page.fill("#find", "aten")
    assert re.fullmatch(r"1 of \d+", page.inner_text("#found"))
    page.click("#next")
    page.fill("#find", "no such thing")
    assert page.inner_text("#found") == "not found"
    # a kernel's code, and back to the user's line
    page.click("#steps tbody tr:has-text('k_') td a >> nth=0")
    assert "kernels" in page.eval_on_selector("#level", "e => e.selectedOptions[0].text")
    assert page.inner_text("#found").startswith("1 of") and page.is_visible("#mark")
    page.click("#steps tbody tr >> nth=0 >> td:last-child a >> nth=0")
    assert page.locator(".line.flash").count() == 1
    # a line's kernels
    page.click(".line.link >> nth=0")
    assert "steps" in page.inner_text("#count") and page.input_value("#filter").startswith("/")
    page.click("th[data-key='mb']")
    assert page.locator("th.sorted").inner_text() == "MB"
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert said == []
    page.close()


def test_bert_opens_quickly(browser: Any, tmp_path: Path) -> None:
    case = build("bert", "small", 1)
    path = braze.explain(case.model, backward=True, quiet=True)(*case.inputs).html(tmp_path / "bert.html")
    start = time.perf_counter()
    page, said = opened(browser, path)
    page.click("nav a[href='#kernels']")
    assert page.locator("#steps tbody tr").count() > 100
    assert time.perf_counter() - start < 2.0 * 3  # the promise is 2 s; the machine may be busy
    assert said == []


def test_an_empty_report_shows(browser: Any, tmp_path: Path) -> None:
    path = braze.explain(lambda: 3, quiet=True)().html(tmp_path / "empty.html")
    page, said = opened(browser, path)
    assert "Nothing was captured" in page.inner_text("#verdict") and said == []
