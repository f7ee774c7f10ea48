from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tespec.cli.report import main
from tespec.comparison.records import Record, write_record

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.by import By  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
)
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    started.set_window_size(1280, 1000)
    yield started
    started.quit()


def opened(browser: Any, results: Path, *options: str) -> Any:
    main(["--results", str(results), *options])
    browser.get(f"file://{results / 'report.html'}")
    return browser


def column(browser: Any, key: str) -> tuple[Any, list[float | None]]:
    """A header of the segmentation table that has this text, and the numbers below it as they stand."""
    table = browser.find_element(By.CSS_SELECTOR, "#segmentation table")
    heads = table.find_elements(By.CSS_SELECTOR, "th[data-column]")
    (head, *_) = [each for each in heads if each.text.startswith(key)]
    index = int(head.get_attribute("data-column"))
    rows = table.find_elements(By.CSS_SELECTOR, "tbody tr:not(.heading)")
    values = [row.find_elements(By.TAG_NAME, "td")[index].get_attribute("data-value") for row in rows]
    return head, [None if value is None else float(value) for value in values]


def test_a_click_sorts_and_a_third_one_puts_back(browser: Any, results: Path, make) -> None:
    write_record(make("mine"), results / "runs")
    opened(browser, results)
    head, before = column(browser, "mIoU")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", head)
    assert before != sorted(before, key=lambda value: -(value or 0))
    head.click()
    _, once = column(browser, "mIoU")
    numbers = [value for value in once if value is not None]
    assert numbers == sorted(numbers, reverse=True)
    assert once == [*numbers, *[None] * (len(once) - len(numbers))]
    assert head.get_attribute("aria-sort") == "descending"
    head.click()
    _, twice = column(browser, "mIoU")
    rising = [value for value in twice if value is not None]
    assert rising == sorted(rising)
    head.click()
    assert column(browser, "mIoU")[1] == before
    headings = browser.find_elements(By.CSS_SELECTOR, "#segmentation tr.heading")
    assert [each.text for each in headings] == ["Methods added here"]


def test_tables_whose_headings_are_units_are_sorted_group_by_group(browser: Any, tmp_path: Path) -> None:
    opened(browser, tmp_path)
    xpath = "//h3[starts-with(., 'Training and inference time')]/following-sibling::div[1]/table"
    table = browser.find_element(By.XPATH, xpath)
    (head,) = [each for each in table.find_elements(By.CSS_SELECTOR, "th[data-column]") if each.text.startswith("Gen1")]

    def shown() -> list[str]:
        index = int(head.get_attribute("data-column"))
        cells = [row.find_elements(By.TAG_NAME, "td") for row in table.find_elements(By.CSS_SELECTOR, "tbody tr")]
        return [each[index if len(each) > 1 else 0].text.partition(" (")[0] for each in cells]

    hours, units = ["104.3", "138.9"], ["18.7", "20.4"]
    orders = []
    for _ in range(3):
        browser.execute_script("arguments[0].click()", head)
        orders.append(shown())
    rising = ["Training time", *hours, "Inference time on 1× RTX6000", *units]
    falling = ["Training time", *hours[::-1], "Inference time on 1× RTX6000", *units[::-1]]
    assert orders == [rising, falling, rising]


def test_on_paper_no_table_is_wider_than_the_page(browser: Any, results: Path) -> None:
    opened(browser, results)
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    widths = "return [...document.querySelectorAll('.wide > table')].map((each) => each.getBoundingClientRect().width)"
    assert max(browser.execute_script(widths)) <= 1240
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script("return document.querySelectorAll('table[style*=zoom]').length") == 0


def test_a_number_leads_to_its_run(browser: Any, results: Path) -> None:
    opened(browser, results)
    link = browser.find_element(By.CSS_SELECTOR, "#segmentation td a")
    browser.execute_script("arguments[0].click()", link)
    entry = browser.find_element(By.CSS_SELECTOR, "details:target")
    assert entry.get_attribute("open") is not None
    assert "python benchmarks/run.py --method" in entry.text


def test_a_run_of_any_name_is_found(browser: Any, tmp_path: Path, make) -> None:
    record = make()
    record["name"] = "100 %zz \"<b>'&"
    write_record(record, tmp_path / "runs")
    opened(browser, tmp_path)
    link = browser.find_element(By.CSS_SELECTOR, "#segmentation td a")
    browser.execute_script("arguments[0].click()", link)
    assert browser.find_element(By.CSS_SELECTOR, "details:target").get_attribute("open") is not None
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def test_the_page_shows_something_and_fits_a_phone(browser: Any, results: Path) -> None:
    opened(browser, results)
    for width in (1280, 390):
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        picture = np.asarray(Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("L"))
        assert 10 < picture.std() < 120
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def test_a_strangers_record_runs_nothing(browser: Any, results: Path, hostile: Record) -> None:
    write_record(hostile, results / "runs")
    opened(browser, results)
    assert browser.title == "Pre-training for event cameras, compared"
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def test_a_methods_name_stays_when_its_table_is_moved_sideways(browser: Any, results: Path, make) -> None:
    write_record(make("mine"), results / "runs")
    opened(browser, results)
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    )
    places = """
        const frame = document.querySelector("#segmentation .wide");
        frame.scrollLeft = arguments[0];
        const left = (each) => Math.round(each.getBoundingClientRect().left);
        const shown = ["tr:not(.heading) td", ".heading span"].map((each) => left(frame.querySelector(each)));
        return [frame.scrollLeft, ...shown];
    """
    _, *before = browser.execute_script(places, 0)
    moved, *after = browser.execute_script(places, 200)
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert moved == 200
    assert all(abs(one - two) <= 2 for one, two in zip(before, after, strict=True))
    assert wide == 390
