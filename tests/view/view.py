#!/usr/bin/env python3
"""Opens the pages of `limpid mem view` in a real Chromium and uses them as a person would: pointer, wheel, keys,
themes, print. Fails when the page logs an error, when anything but the file itself is requested, or when there is no
Chromium.
  view.py --browser=chromium --limpid=build/limpid --traces=build/tests/make_view_traces --out=DIR
          [--images=docs/images]
"""

import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from page import Page, check, run_in_browser  # noqa: E402

CTRL, SHIFT = 2, 8


class ViewPage(Page):
    """One page made by the command and opened in the browser."""

    def __init__(self, browser, options, name, *arguments, code=0):
        path = os.path.join(options.out, name + ".html")
        done = subprocess.run(
            [options.limpid, "mem", "view", *arguments, "-o", path, "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != code:
            raise RuntimeError(f"limpid mem view {' '.join(arguments)}: code {done.returncode}: {done.stderr}")
        self.made = json.loads(done.stdout.splitlines()[-1])
        super().__init__(browser, path, name, "window.limpidView && window.limpidView.ready")

    def state(self):
        return self.browser.evaluate("limpidView.state()")

    def settled(self):
        self.browser.settle()
        return self.state()


def centre(state, column=0):
    plot = state["columns"][column]["plot"]
    return plot["x"] + plot["w"] * 0.5, plot["y"] + plot["h"] * 0.5


def map_box(browser, column=0):
    return browser.evaluate(
        f"(() => {{ const b = document.querySelectorAll('.map canvas + canvas')[{column}].getBoundingClientRect();"
        " return { x: b.left, y: b.top, w: b.width, h: b.height }; })()"
    )


def span(state):
    return state["view"]["t1"] - state["view"]["t0"]


def height(state):
    return state["view"]["y1"] - state["view"]["y0"]


def use_the_map(page):
    browser, s = page.browser, page.state()
    run, made = s["columns"][0], page.made["runs"][0]
    check(
        run["events"] == made["events"] and run["rectangles"] == made["rectangles"],
        "the page has the command's events and rectangles",
    )
    check(run["peak"]["live"] == made["peak_live_bytes"], "peak live is the replay's")
    check(
        run["peakFound"] == {"t": run["peakEvent"], "live": run["peak"]["live"]},
        "the curves peak where and as high as the ledger does",
    )
    rows = run["peak"]
    check(
        rows["reserved"]
        == sum(rows[k] for k in ("live", "rounding", "slack", "pending", "free_in_used", "free_whole")),
        "the ledger at the peak balances",
    )
    check(s["instant"] == run["peakEvent"], "the page begins at the peak")
    check(browser.evaluate("document.title") == "lenet-bn: six steps and an evaluation", "the title")
    at = run["instant"]
    check(
        (at["live"], at["reserved"], at["allocated"])
        == (rows["live"], rows["reserved"], rows["live"] + rows["rounding"] + rows["slack"]),
        "the sums of the rectangles at the peak are the ledger's",
    )
    check(at["roles"] == rows["roles"], "and so are those of each role")

    # Hover.
    mark = browser.evaluate("limpidView.landmark()")
    browser.move(mark["x"], mark["y"])
    hover = page.settled()["hover"]
    check(hover is not None and hover["title"] == mark["label"], f"the tooltip names the block: {hover}")
    check(hover is not None and f"({mark['bytes']:,} B)" in hover["size"], "the tooltip has the exact bytes")
    check(
        hover is not None and all(hover.get(k) for k in ("role", "life", "allocated in", "where", "address")),
        "the tooltip is complete",
    )
    check(
        browser.evaluate("document.querySelector('#tooltip strong').textContent") == mark["label"],
        "the label is in the tooltip",
    )
    check(
        browser.evaluate(
            "!document.getElementById('tooltip').hidden && document.getElementById('tooltip').offsetHeight > 40"
        ),
        "the tooltip is on the screen",
    )
    browser.move(5, 5)
    check(page.settled()["hover"] is None, "the tooltip goes when the pointer leaves")

    # Wheel: the instant under the pointer stays there.
    box, (cx, cy) = map_box(browser), centre(s)
    x, y = box["x"] + cx * 0.7, box["y"] + cy
    under = lambda state: state["view"]["t0"] + (x - box["x"] - run["plot"]["x"]) / run["plot"]["w"] * span(state)
    before = under(s)
    for _ in range(4):
        browser.wheel(x, y, -120)
    zoomed = page.settled()
    check(span(zoomed) < 0.5 * span(s), "the wheel zooms in")
    check(abs(under(zoomed) - before) < 0.01 * span(s), "the zoom keeps what is under the pointer")
    check(abs(height(zoomed) - height(s)) < 1, "the wheel leaves the addresses alone")
    browser.drag(x, y, x + 150, y)
    dragged = page.settled()
    expected = zoomed["view"]["t0"] - 150 / run["plot"]["w"] * span(zoomed)
    check(abs(dragged["view"]["t0"] - max(0, expected)) < 0.02 * span(zoomed), "a drag moves the picture")
    check(dragged["instant"] == zoomed["instant"], "a drag does not choose an instant")
    browser.wheel(x, y, -240, CTRL)
    check(height(page.settled()) < 0.9 * height(s), "Ctrl and the wheel zoom in address")
    browser.key("0")
    check(span(page.settled()) == span(s), "0 shows everything")
    browser.drag(box["x"] + cx, box["y"] + cy, box["x"] + cx + 200, box["y"] + cy + 100, SHIFT)
    boxed = page.settled()
    check(
        abs(span(boxed) - span(s) * 200 / run["plot"]["w"]) < 0.02 * span(s) and height(boxed) < 0.5 * height(s),
        "Shift and a drag zoom into a box",
    )
    browser.key("0")

    # The instant.
    browser.click(box["x"] + cx, box["y"] + cy)
    s = page.settled()
    check(abs(s["instant"] - s["events"] / 2) <= s["events"] * 0.01, f"a click chooses the instant: {s['instant']}")
    browser.key("ArrowRight")
    browser.key("ArrowRight")
    browser.key("ArrowLeft")
    check(page.settled()["instant"] == s["instant"] + 1, "the arrows move the instant")
    page.choose("select[aria-label='Holders by']", "role")
    run = page.settled()["columns"][0]
    check(sum(h["bytes"] for h in run["holders"]) == run["instant"]["live"], "holders by role sum to the live bytes")
    step = run["event"]
    browser.key("ArrowRight", CTRL)
    check(
        page.settled()["columns"][0]["event"].split("step ")[1] != step.split("step ")[1],
        "Ctrl and an arrow go to the next step",
    )
    browser.key("Home")
    check(page.settled()["instant"] == 0, "Home")
    browser.key("End")
    check(page.settled()["instant"] == s["events"] - 1, "End")
    browser.key("p")
    s = page.settled()
    check(s["instant"] == s["columns"][0]["peakEvent"], "P goes to the peak")
    browser.key("+")
    browser.key("+")
    closer = page.settled()
    check(span(closer) < 0.6 * span(s), "+ zooms in")
    browser.key("ArrowRight", SHIFT)
    check(page.settled()["view"]["t0"] > closer["view"]["t0"], "Shift and an arrow move the picture")
    browser.key("-")
    browser.key("0")
    page.settled()
    reached = browser.evaluate(
        """(() => { const all = [...document.querySelectorAll('button, select, input, [tabindex]')];
      return all.every(e => e.disabled || e.tabIndex >= 0) && all.some(e => e.tagName === 'CANVAS'); })()"""
    )
    check(reached, "everything can be reached by Tab")


def use_colours_and_themes(page, options):
    browser = page.browser
    picture = "document.querySelector('.map canvas').toDataURL()"
    seen = {}
    for colour in ("role", "layer", "size", "age"):
        page.choose("#colour", colour)
        s = page.settled()
        seen[browser.evaluate(picture)] = s["columns"][0]["legend"]
        check(s["colour"] == colour and len(s["columns"][0]["legend"]) > 1, f"colour by {colour} has a legend")
    check(len(seen) == 4, "the four ways of colouring differ")
    page.choose("#colour", "role")
    plain = (page.settled(), browser.evaluate(picture))[1]
    page.choose("#find", "conv", "input")
    page.settled()
    check(browser.evaluate(picture) != plain, "a search dims the rest")
    page.choose("#find", "", "input")

    pictures = set()
    for scheme in ("dark", "light"):
        browser.colour_scheme(scheme)
        check(page.settled()["theme"] == scheme, f"the page follows the system to {scheme}")
        pictures.add(browser.evaluate(picture))
        contrast = page.contrast("body", "#status", "h3", "th", "dt", "td", "button")
        check(contrast >= 4.5, f"text is readable in {scheme}: contrast {contrast:.1f}")
        browser.screenshot(os.path.join(options.out, f"{page.name}_{scheme}.png"))
        if options.images:
            mark = browser.evaluate("limpidView.landmark(0, 'relu2')")
            browser.move(mark["x"], mark["y"])
            browser.settle()
            browser.screenshot(os.path.join(options.images, f"mem_view_{scheme}.png"))
            browser.move(5, 5)
    check(len(pictures) == 2, "the map has the theme's colours")
    page.choose("#theme", "dark")
    check(page.settled()["theme"] == "dark", "the switch overrides the system")
    page.pdf(os.path.join(options.out, "print.pdf"))
    check(page.settled()["theme"] == "dark", "the theme comes back after printing")
    browser.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    check(page.settled()["theme"] == "light", "paper is light")
    check(
        browser.evaluate(
            "document.querySelectorAll('.sheet').length === 1 && document.querySelector('.sheet').naturalWidth > 500"
        ),
        "the map is an image on paper",
    )
    browser.evaluate("window.dispatchEvent(new Event('afterprint'))")
    check(browser.evaluate("document.querySelectorAll('.sheet').length") == 0, "the image goes after printing")
    page.choose("#theme", "")


def use_two(page):
    s = page.state()
    check([c["policy"] for c in s["columns"]] == ["native", "expandable"], "two policies stand side by side")
    check(s["columns"][0]["events"] == s["columns"][1]["events"], "both have the same events")
    check(s["columns"][0]["peak"]["live"] == s["columns"][1]["peak"]["live"], "both have the same live bytes")
    boxes = [map_box(page.browser, c) for c in (0, 1)]
    check(
        abs(boxes[0]["y"] - boxes[1]["y"]) < 2 and boxes[1]["x"] >= boxes[0]["x"] + boxes[0]["w"],
        "the columns are side by side",
    )
    page.browser.wheel(boxes[1]["x"] + 300, boxes[1]["y"] + 200, -240)
    check(span(page.settled()) < span(s), "one view for both")
    mark = page.browser.evaluate("limpidView.landmark(1)")
    page.browser.move(mark["x"], mark["y"])
    hover = page.settled()["hover"]
    check(hover is not None and hover["title"] == mark["label"], "blocks of the second column have tooltips")


def use_names(page):
    s = page.state()
    names = {h["name"] for h in s["columns"][0]["holders"]}
    check(
        "</script><script>alert(1)</script>" in names and "renamed <b>weight</b>" in names,
        f"names come out as text: {names}",
    )
    check(page.browser.evaluate("document.scripts.length") == 3, "no name became a script")
    check(page.browser.evaluate("document.querySelectorAll('#runs b').length") == 0, "no name became markup")


def use_failure(page):
    s = page.state()
    check(not page.made["runs"][0]["completed"], "the run ends out of memory")
    page.browser.key("Home")
    page.browser.key("o")
    s = page.settled()
    check("failed" in s["columns"][0]["event"], f"O goes to the failed request: {s['columns'][0]['event']}")


MEASURE = """(async () => {
  const canvas = document.querySelector(".map canvas + canvas"), box = canvas.getBoundingClientRect(), out = {};
  const frame = () => new Promise(requestAnimationFrame);
  const wheel = (deltaY, deltaX, ctrlKey) => canvas.dispatchEvent(new WheelEvent("wheel", { deltaY, deltaX, ctrlKey,
    clientX: box.left + box.width * 0.6, clientY: box.top + 200, bubbles: true, cancelable: true }));
  const run = async (name, count, act) => {
    await new Promise((done) => setTimeout(done, 400));
    const mark = limpidView.frames.length, start = await frame();
    for (let i = 0; i < count; i++) {
      act(i);
      await frame();
    }
    const interval = (await frame() - start) / (count + 1), frames = limpidView.frames.slice(mark), paths = {};
    const ms = frames.map((f) => f.ms).sort((a, b) => a - b);
    for (const f of frames) paths[f.path] = (paths[f.path] || 0) + 1;
    const mean = ms.reduce((a, b) => a + b, 0) / ms.length, p95 = ms[Math.floor(ms.length * 0.95)];
    out[name] = { fps: 1000 / interval, mean, p95, paths };
  };
  await run("zoom in", 60, () => wheel(-60, 0, false));
  await run("pan, near", 60, () => wheel(0, 40, false));
  await run("zoom out", 60, () => wheel(60, 0, false));
  await run("pan, far", 60, (i) => wheel(0, i < 30 ? 5 : -5, false));
  await run("address zoom", 40, (i) => wheel(i < 20 ? -60 : 60, 0, true));
  await run("hover", 60, (i) => canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + 100 + i * 15,
    clientY: box.top + 60 + i * 4, bubbles: true })));
  return out;
})()"""


def measure(page):
    s = page.state()
    check(s["events"] == 1000000, "a million events")
    check(s["columns"][0]["path"] == "overview", "the whole is drawn from the picture made once")
    result = page.browser.evaluate(MEASURE)
    rectangles = s["columns"][0]["rectangles"]
    print(f"{s['events']:,} events, {rectangles:,} rectangles, page {os.path.getsize(page.path):,} bytes")
    for name, r in result.items():
        drawing = f"drawing {r['mean']:5.1f} ms a frame (95 %: {r['p95']:.1f} ms)"
        print(f"  {name:13} {r['fps']:5.1f} frames/s, {drawing}  {r['paths']}")
    check(result["zoom in"]["paths"].get("blocks", 0) > 0, "close views are drawn from the blocks")
    check(span(page.settled()) <= s["events"], "the view is sane after all that")


def use(browser, options):
    subprocess.run([options.traces, options.out], check=True)
    trace = lambda name: os.path.join(options.out, name + ".trace")
    with open(trace("empty"), "w", encoding="utf-8") as file:
        file.write('{"format": "limpid-trace/1"}\n{"e": "end", "records": 0}\n')

    page = ViewPage(browser, options, "train", trace("train"), "--title", "lenet-bn: six steps and an evaluation")
    use_colours_and_themes(page, options)
    use_the_map(page)
    page.finish()
    page = ViewPage(browser, options, "two", trace("train"), "--policy", "native,expandable")
    if options.images:
        browser.screenshot(os.path.join(options.images, "mem_view_policies.png"))
    use_two(page)
    page.finish()
    page = ViewPage(browser, options, "two_traces", trace("train"), trace("names"), "--capacity", "none")
    check(len(page.state()["columns"]) == 2, "two traces stand side by side")
    page.finish()
    page = ViewPage(browser, options, "names", trace("names"))
    use_names(page)
    page.finish()
    page = ViewPage(browser, options, "failure", trace("train"), "--capacity", "64MiB", code=3)
    use_failure(page)
    page.finish()
    page = ViewPage(browser, options, "empty", trace("empty"))
    check(page.state()["columns"][0]["events"] == 0, "an empty trace has a page")
    for key in ("ArrowRight", "p", "o", "0", "+"):
        browser.key(key)
    page.finish()
    page = ViewPage(browser, options, "million", trace("million"))
    measure(page)
    page.finish()


if __name__ == "__main__":
    sys.exit(run_in_browser(("limpid", "traces"), use))
