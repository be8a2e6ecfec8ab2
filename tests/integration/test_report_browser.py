"""The page in a real browser: no error on its console, every figure drawn, every tab reachable, nothing fetched.

Needs Chromium and chromedriver (tests/support/install_chromium.sh installs them); the driver is spoken to over HTTP.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rattle.report import build_page
from support import run_folders as made

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="no Chromium and chromedriver: tests/support/install_chromium.sh"
    ),
]
ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
]
HARMLESS = ("GPU stall due to ReadPixels", "willReadFrequently", "GroupMarkerNotSet")  # about speed, by the driver


UNDRAWN = """
return [...document.querySelectorAll('[data-figure]')]
  .filter((e) => e.offsetParent !== null)
  .filter((e) => !e.querySelector('gl' in e.dataset ? 'canvas' : '.main-svg .trace, .main-svg .hm, .main-svg image'))
  .map((e) => e.id)
"""


class Browser:
    """A WebDriver session."""

    def __init__(self, port: int, profile: Path) -> None:
        self.address = f"http://127.0.0.1:{port}"
        options = {"binary": CHROMIUM, "args": [*ARGUMENTS, f"--user-data-dir={profile}"]}
        logs = {"browser": "ALL", "performance": "ALL"}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
        self.session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def post(self, path: str, body: Any) -> Any:
        return self.call("POST", f"/session/{self.session}{path}", body)

    def open(self, page: Path, query: str = "") -> None:
        self.post("/url", {"url": page.as_uri() + query})
        self.until("return document.documentElement.dataset.ready === 'yes'")

    def run(self, script: str, *args: Any) -> Any:
        return self.post("/execute/sync", {"script": script, "args": list(args)})

    def until(self, script: str, *args: Any, seconds: float = 60) -> None:
        begun = time.monotonic()
        while not self.run(script, *args):
            assert time.monotonic() - begun < seconds, f"still not true: {script}"
            time.sleep(0.2)

    def until_drawn(self) -> None:
        self.until(f"return !(() => {{ {UNDRAWN} }})().length")

    def drawn(self) -> set[str]:
        return set(self.run("return [...document.querySelectorAll('[data-drawn]')].map((e) => e.id)"))

    def size(self, width: int) -> None:
        self.post("/window/rect", {"width": width, "height": 900})

    def console_messages(self) -> list[str]:
        lines = [entry["message"] for entry in self.post("/se/log", {"type": "browser"})]
        return [line for line in lines if not any(words in line for words in HARMLESS)]

    def requests(self) -> list[str]:
        messages = [json.loads(entry["message"])["message"] for entry in self.post("/se/log", {"type": "performance"})]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen([str(DRIVER), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        session = Browser(port, tmp_path_factory.mktemp("profile"))
        yield session
        session.call("DELETE", f"/session/{session.session}")
    finally:
        driver.terminate()
        driver.wait(timeout=20)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    first = made.whole(root / "a", right=0.4, steepness=2.0)
    second = made.whole(root / "b", right=0.7, method="TRADES + 1st + 2nd")
    return build_page([first, second], root / "page.html")


def test_every_figure_is_drawn_in_every_tab_without_an_error_or_a_request(browser: Browser, page: Path) -> None:
    browser.requests()
    browser.open(page)
    browser.until_drawn()
    tabs = browser.run("return [...document.querySelectorAll('[role=tab]')].map((tab) => tab.id)")
    drawn = browser.drawn()
    for tab in tabs:
        browser.run("document.getElementById(arguments[0]).click()", tab)
        shown = "const tab = document.getElementById(arguments[0]);"
        shown += "return !document.getElementById(tab.getAttribute('aria-controls')).hidden"
        assert browser.run(shown, tab)
        browser.until_drawn()
        drawn |= browser.drawn()
    assert drawn == set(browser.run("return [...document.querySelectorAll('[data-figure]')].map((e) => e.id)"))
    assert len(tabs) >= 8
    assert browser.console_messages() == []
    for url in browser.requests():
        assert url.startswith(("file:", "data:", "blob:", "about:", "chrome:"))


def test_arrow_keys_walk_through_the_tabs_and_buttons_turn_the_surfaces(browser: Browser, page: Path) -> None:
    browser.open(page)
    press = """
    const tab = document.getElementById('examples-tab-0');
    tab.focus();
    tab.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
    return [document.activeElement.id, document.getElementById('examples-panel-0').hidden]
    """
    assert browser.run(press) == ["examples-tab-1", True]
    browser.until("return document.querySelectorAll('[data-gl][data-linked]').length === 2")
    eyes = "return [...document.querySelectorAll('[data-gl][data-drawn]')].map((e) => e._fullLayout.scene.camera.eye.x)"
    before = browser.run(eyes)
    browser.run("document.querySelector('[data-turn=left]').click()")
    browser.until(f"const now = (() => {{ {eyes} }})(); return Math.abs(now[0] - arguments[0]) > 0.05", before[0])
    after = browser.run(eyes)
    assert after[0] == pytest.approx(after[1])
    assert browser.console_messages() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_ground_and_the_theme_button_changes_it(
    browser: Browser, page: Path, theme: str
) -> None:
    browser.open(page, f"?theme={theme}")
    ground = "return getComputedStyle(document.body).backgroundColor"
    before = browser.run(ground)
    ink = browser.run("return getComputedStyle(document.querySelector('.note')).color")
    low, high = sorted((luminance(ink), luminance(before)))
    assert (high + 0.05) / (low + 0.05) >= 4.5
    browser.run("document.getElementById('theme').click()")
    assert browser.run(ground) != before
    browser.run("localStorage.clear()")
    assert browser.console_messages() == []


def luminance(colour: str) -> float:
    """WCAG's, of a colour such as rgb(1, 2, 3)."""
    total = 0.0
    for value, weight in zip(colour[4:-1].split(","), (0.2126, 0.7152, 0.0722), strict=True):
        v = int(value) / 255
        total += weight * (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4)
    return total


@pytest.fixture(scope="module")
def fifty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fifty")
    runs = [
        made.whole(root / f"{eta}-{seed}", seed=seed, right=0.4 + eta, objective={"kind": "Trades", "eta": eta})
        for eta in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
        for seed in range(5)
    ]
    return build_page(runs, root / "page.html")


def test_a_page_of_fifty_runs_draws_what_its_boxes_choose(browser: Browser, fifty: Path) -> None:
    browser.open(fifty)
    browser.until_drawn()
    choose = """
    const box = document.getElementById(arguments[0]);
    box.selectedIndex = arguments[1];
    box.dispatchEvent(new Event('change'));
    const panel = document.getElementById(`${box.dataset.panels}-panel-${arguments[1]}`);
    return [panel.hidden, panel.parentElement.querySelectorAll('.panel:not([hidden])').length]
    """
    for name, place in (("terms", 49), ("examples", 11), ("classes", 11), ("settings", 49)):
        assert browser.run(choose, f"{name}-choice", place) == [False, 1]
        browser.until_drawn()
    assert browser.console_messages() == []


def test_four_runs_show_their_last_column_at_1300_pixels(browser: Browser, tmp_path: Path) -> None:
    runs = []
    for number, method in enumerate(("TRADES", "TRADES + 1st + 2nd", "TRADES-AWP", "TRADES-AWP + 1st + 2nd")):
        runs.append(made.whole(tmp_path / f"run{number}", right=0.4 + 0.1 * number, method=method))
    browser.size(1300)
    browser.open(build_page(runs, tmp_path / "page.html"))
    hidden = "[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth).length"
    assert browser.run(f"return {hidden}") == 0


@pytest.mark.parametrize("width", [500, 1400])
def test_nothing_is_wider_than_the_screen(browser: Browser, page: Path, fifty: Path, width: int) -> None:
    browser.size(width)
    browser.open(page)
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    browser.open(fifty)
    browser.run("for (const part of document.querySelectorAll('details')) part.open = true")
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    legend = "return [...document.querySelectorAll('.plot')].filter((e) => e.offsetParent).every((e) => "
    legend += (
        "{ const l = e.querySelector('.legend'); return !l || l.getBoundingClientRect().height < e.clientHeight / 3 })"
    )
    assert browser.run(legend)
    browser.size(1280)


def test_html_in_names_runs_nothing(browser: Browser, tmp_path: Path) -> None:
    hostile = '</script><script>window.fell = 1</script><img src=x onerror="window.fell = 2">'
    folder = made.whole(tmp_path / "run", name=hostile, objective={"kind": hostile})
    made.gallery(folder, classes=(hostile, "<a href='javascript:window.fell=3'>x</a>", "c"))
    browser.open(build_page([folder]))
    browser.until_drawn()
    assert browser.run("return window.fell === undefined")
    assert browser.run("return document.querySelectorAll('.plot a[href]').length") == 0
    assert browser.console_messages() == []


def test_a_page_with_nothing_but_a_recipe_opens_without_an_error(browser: Browser, tmp_path: Path) -> None:
    browser.open(build_page([made.recipe(tmp_path / "bare")]))
    assert browser.console_messages() == []
