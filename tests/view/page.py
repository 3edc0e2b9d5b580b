"""What the tests of all pages share: checks that are counted, and a page in the browser with what must hold for every
one of them: no error, nothing logged, nothing requested but the file itself."""

import argparse
import json
import os
from urllib.parse import unquote

from chromium import Chromium

failures = []
passed = 0


def check(ok, what):
    global passed
    if ok:
        passed += 1
    else:
        failures.append(what)
        print(f"FAILED: {what}", flush=True)


# The smallest contrast between the elements of a list of selectors and the page, or their own background (WCAG 2.1).
CONTRAST = """((selectors) => {
  const luminance = (text) => {
    const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = text.match(/[\\d.]+/g).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const opaque = (colour) => !/, 0\\)$/.test(colour);
  const paper = (e) => { const colour = getComputedStyle(e).backgroundColor;
    return opaque(colour) || e === document.documentElement ? luminance(colour) : paper(e.parentElement); };
  const inks = selectors.map((q) => document.querySelector(q)).filter((e) => e);
  return Math.min(...inks.map((e) => [luminance(getComputedStyle(e).color), paper(e)]).map(([ink, ground]) =>
    (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05))); })"""


class Page:
    """`ready`: a JavaScript expression that is true once the page has started."""

    def __init__(self, browser, path, name, ready):
        self.browser, self.path, self.name = browser, path, name
        browser.open(path)
        browser.wait_until(f"document.readyState === 'complete' && Boolean({ready})")
        browser.settle()

    def choose(self, selector, value, event="change"):
        self.browser.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)};"
            f" e.dispatchEvent(new Event({json.dumps(event)})); }})()"
        )

    def contrast(self, *selectors):
        return self.browser.evaluate(f"{CONTRAST}({json.dumps(selectors)})")

    def pdf(self, path):
        self.browser.pdf(path)
        with open(path, "rb") as file:
            content = file.read()
        check(content.startswith(b"%PDF") and len(content) > 20000, f"{self.name}: the page prints")

    # What must hold for every page, whatever was done to it.
    def finish(self):
        self.browser.settle()
        for event in self.browser.events:
            method, params = event["method"], event.get("params", {})
            if method == "Runtime.exceptionThrown":
                check(
                    False,
                    f"{self.name}: exception {params['exceptionDetails'].get('exception', {}).get('description')}",
                )
            elif method == "Runtime.consoleAPICalled":
                check(False, f"{self.name}: console.{params['type']} {params['args']}")
            elif method == "Log.entryAdded":
                check(False, f"{self.name}: log {params['entry']['text']}")
            elif method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                check(
                    unquote(url) == "file://" + os.path.abspath(self.path) or url.startswith("data:"),
                    f"{self.name}: request of {url[:120]}",
                )
        check(
            self.browser.evaluate(
                "performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length"
            )
            == 0,
            f"{self.name}: resources were loaded",
        )
        self.browser.events.clear()


def run_in_browser(names, use):
    """Reads --browser, --out, --images and an option for each name, then runs use(browser, options). The exit code."""
    parser = argparse.ArgumentParser()
    for name in ("browser", "out", *names):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--images", default="", help="also write the pictures of the documentation there")
    options = parser.parse_args()
    if not os.access(options.browser, os.X_OK):
        print(
            f"FAILED: no Chromium ({options.browser or 'not found'}): install the package chromium, configure again",
            flush=True,
        )
        return 1
    os.makedirs(options.out, exist_ok=True)
    browser = Chromium(options.browser)
    try:
        browser.colour_scheme("light")
        use(browser, options)
    finally:
        browser.close()
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures else 0
