#!/usr/bin/env python3
"""Makes runs with `limpid train`, opens their reports in a real Chromium and uses them as a person would: pointer, keys,
themes, paper. Fails when a page logs an error, when anything but the file itself is requested, when a figure on it is
not that of the run's logs, or when there is no Chromium.
  report.py --browser=chromium --limpid=build/limpid --out=DIR [--images=docs/images]
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from page import Page, check, run_in_browser  # noqa: E402

SMALL = (
    "--data synthetic --input 3x12x12 --classes 4 --seed 3 --threads 1 --workers 1 --trace off --quiet"
)


class Run:
    """A run folder made by the command, and its logs."""

    def __init__(self, options, name, arguments):
        self.limpid, self.folder = options.limpid, os.path.join(options.out, name)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.command = [self.limpid, "train", *arguments.split(), "--out", self.folder]

    def train(self):
        subprocess.run(self.command, check=True, stdout=subprocess.DEVNULL)
        return self

    def kill_after(self, steps):
        """The process is killed once it has logged so many steps."""
        with subprocess.Popen(self.command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and len(self.lines("steps")) < steps:
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
        check(process.returncode == -signal.SIGKILL, "the run was killed before its end")

    def resume(self):
        subprocess.run([self.limpid, "train", "--resume", "--out", self.folder, "--quiet"], check=True, stdout=subprocess.DEVNULL)

    def report(self):
        path = os.path.join(self.folder, "report.html")
        done = subprocess.run([self.limpid, "report", self.folder, "--json"], check=True, capture_output=True, text=True)
        made = json.loads(done.stdout.splitlines()[-1])
        check(made == {"out": path, "bytes": os.path.getsize(path)}, f"{self.folder}: the command says what it wrote")
        return path

    def lines(self, log):
        try:
            with open(os.path.join(self.folder, log + ".jsonl"), encoding="utf-8") as file:
                return [line for line in file.read().split("\n") if line]
        except FileNotFoundError:
            return []

    def records(self, log):
        return [json.loads(line) for line in self.lines(log)]

    def ledger(self, kind):
        return [r for r in self.records("ledger") if r["kind"] == kind]


class Report(Page):
    def __init__(self, browser, run, path=None):
        super().__init__(browser, path or run.report(), os.path.basename(run.folder), "window.limpidReport")
        self.run = run
        self.charts = {chart["id"]: chart for chart in self.state()["charts"]}

    def state(self):
        return self.browser.evaluate("limpidReport()")

    def text(self, selector):
        return self.browser.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def box(self, selector):
        return self.browser.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return { x: b.left, y: b.top, w: b.width, h: b.height }; })()"
        )

    def click(self, selector):
        box = self.box(selector)
        self.browser.click(box["x"] + box["w"] / 2, box["y"] + box["h"] / 2)
        self.browser.settle()

    def rows(self, chart):
        """Opens the table under a chart and reads its body."""
        self.browser.evaluate(f"document.querySelector('#chart-{chart}').closest('figure').querySelector('details').open = true")
        self.browser.settle()
        return self.browser.evaluate(
            f"[...document.querySelector('#chart-{chart}').closest('figure').querySelectorAll('details[open] tbody tr')]"
            ".map((row) => [...row.cells].map((cell) => cell.textContent))"
        )

    def fits(self, what):
        check(
            self.browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"),
            f"{self.name}: nothing is wider than the {what}",
        )


def same_number(text, value):
    """A text of the page has five significant digits."""
    return abs(float(text.replace(",", "")) - value) <= 1e-4 * max(abs(value), 1e-12)


def use_curves(page):
    run, steps = page.run, page.run.records("steps")
    check(list(page.charts) == ["loss", "accuracy", "gap", "throughput", "lr", "memory"], f"the charts: {list(page.charts)}")
    check(page.charts["loss"]["points"] == [len(steps), len(run.ledger("epoch"))], "a point a step, a validation an epoch")
    check(page.charts["throughput"]["points"][0] == len(run.records("monitor")), "a point a record of the monitor")
    rows = page.rows("loss")
    check(len(rows) == len(steps), "the table has every step")
    for row, step in zip(rows, steps):
        check(int(row[0]) == step["step"] and same_number(row[1], step["loss"]), f"loss of step {step['step']}: {row}")
    for row, step in zip(page.rows("lr"), steps):
        check(same_number(row[1], step["lr"]) and same_number(row[2], step["scale"]), f"rate of step {step['step']}: {row}")
    for row, record in zip(page.rows("throughput"), run.records("monitor")):
        check(
            int(row[0]) == record["step"] and abs(int(row[1].replace(",", "")) - record["samples_per_second"]) <= 0.51,
            f"samples/s of the window up to step {record['step']}: {row}",
        )
    check(len(page.rows("memory")) == len(run.records("monitor")), "a row of bytes a record of the monitor")

    # The pointer over the first chart finds a step and says its loss.
    box = page.box("#chart-loss")
    page.browser.move(box["x"] + box["w"] * 0.55, box["y"] + box["h"] * 0.4)
    page.browser.settle()
    tooltip = page.state()["charts"][0]["tooltip"]
    check(len(tooltip) >= 2 and tooltip[0].startswith("step "), f"the tooltip: {tooltip}")
    if len(tooltip) >= 2:
        step = steps[int(tooltip[0].split()[1])]
        check(
            any(line.startswith("training: ") and same_number(line.split()[1], step["loss"]) for line in tooltip),
            f"it has the loss of that step, {step['loss']}: {tooltip}",
        )
    page.browser.move(3, 3)
    page.browser.settle()
    check(page.state()["charts"][0]["tooltip"] == [], "the tooltip goes when the pointer leaves")


def same_batch(shown, recorded):
    parts = [
        part[0] == m["samples"] and abs(part[1] - m["weight"][0] * recorded["samples"]) < 1e-12
        for part, m in zip(shown["parts"], recorded["micro_batches"])
    ]
    return (
        shown["step"] == recorded["step"]
        and len(shown["parts"]) == len(recorded["micro_batches"])
        and all(parts)
        and shown["ids"] == recorded["ids"]
    )


def use_batches(page):
    browser, recorded = page.browser, page.run.ledger("step")
    skipped = [r["step"] for r in recorded if not r["applied"]]
    s = page.state()
    check(s["batches"] == len(recorded), "every effective batch is in the picture")
    check(len(skipped) > 0 and s["marked"] == skipped, f"skipped steps are marked: {s['marked']}")
    check(s["at"] == skipped[0], "the picture begins with the first marked step")
    check("skipped" in page.text("#batch li.bad"), "and says what happened to it")
    browser.evaluate("document.activeElement.blur()")
    page.choose("#step", "0", "input")
    for at in range(len(recorded)):
        s = page.state()
        check(s["at"] == at and same_batch(s["batch"], recorded[at]), f"the picture shows step {at}: {s['batch']}")
        browser.key("ArrowRight")
    check(page.state()["at"] == len(recorded) - 1, "the right arrow stops at the last step")
    browser.key("ArrowLeft")
    check(page.state()["at"] == len(recorded) - 2, "the left arrow goes back")
    browser.key("m")
    check(page.state()["at"] == skipped[0], "M goes to the next marked step, from the end to the first")
    page.choose("#step", "1", "input")
    page.click("#step-after")
    check(page.state()["at"] == 2, "the button goes on")
    page.click("#step-before")
    check(page.state()["at"] == 1, "and back")
    widths = browser.evaluate("[...document.querySelectorAll('.part')].map((e) => e.getBoundingClientRect().width)")
    check(len(widths) == len(recorded[1]["micro_batches"]), "a bar a micro-batch")
    check("weight 1/N" in page.text(".part"), "a bar says the weight of its samples")


def use_keys(page):
    """Tab reaches every control and, once it is there, Enter works it."""
    browser = page.browser
    browser.evaluate("(document.activeElement.blur(), scrollTo(0, 0))")
    seen = []
    for _ in range(80):
        browser.key("Tab")
        seen.append(browser.evaluate("document.activeElement.id || document.activeElement.textContent.slice(0, 40)"))
    wanted = browser.evaluate(
        "[...document.querySelectorAll('button:not(:disabled), input, summary')].map((e) => e.id || e.textContent.slice(0, 40))"
    )
    check(all(name in seen for name in wanted), f"Tab reaches everything: {set(wanted) - set(seen)}")
    browser.evaluate("document.getElementById('step').focus()")
    page.choose("#step", "0", "input")
    browser.key("ArrowRight")
    check(page.state()["at"] == 1, "an arrow on the slider is one step, not two")


def luminance(colour):
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    a, b = (luminance([int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)]) for c in (a, b))
    return (max(a, b) + 0.05) / (min(a, b) + 0.05)


def use_themes(page, options):
    browser, colours = page.browser, {}
    for scheme in ("dark", "light"):
        browser.colour_scheme(scheme)
        browser.settle()
        least = page.contrast("body", "h1", "h2", "h3", "dt", "dd", "li", "li.bad", "th", "td", ".note", "summary", "button", ".ids")
        check(least >= 4.5, f"text is readable in {scheme}: contrast {least:.1f}")
        state, paper = page.state(), page.browser.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--paper').trim()")
        colours[scheme] = state["charts"][0]["textColour"]
        check(contrast(colours[scheme], paper) >= 4.5, f"the charts' text is readable in {scheme}")
        for chart in state["charts"]:
            if chart["id"] == "memory":
                continue  # areas, which lie beside each other
            for label, colour in zip(chart["labels"], chart["colours"]):
                check(contrast(colour, paper) >= 3, f"the line {chart['id']}, {label} stands out in {scheme}")
        for at in range(page.state()["batches"]):
            page.choose("#step", str(at), "input")
            check(page.contrast(".part") >= 4.5, f"the bars of step {at} are readable in {scheme}")
        browser.evaluate("scrollTo(0, 0)")
        browser.screenshot(os.path.join(options.out, f"report_{scheme}.png"), full=True)
    check(colours["dark"] != colours["light"], "the charts have the theme's colours")
    browser.colour_scheme("dark")
    browser.settle()
    page.pdf(os.path.join(options.out, "report.pdf"))
    browser.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    state = page.state()
    check(state["charts"][0]["textColour"] == colours["light"], "paper is light")
    check(all(0 < chart["width"] <= 360 for chart in state["charts"]), "the charts have the width of a sheet")
    browser.evaluate("window.dispatchEvent(new Event('afterprint'))")
    check(page.state()["charts"][0]["textColour"] == colours["dark"], "the theme comes back after printing")
    browser.colour_scheme("light")
    page.fits("window")
    browser.call("Emulation.setDeviceMetricsOverride", {"width": 420, "height": 800, "deviceScaleFactor": 1, "mobile": False})
    browser.settle()
    page.fits("screen of a phone")
    browser.call("Emulation.clearDeviceMetricsOverride")
    browser.settle()


def full(browser, options):
    # Three micro-batches of 12 and a tail of 26; at this rate fp16 overflows twice and steps are skipped.
    run = Run(options, "full", f"{SMALL} --model lenet-bn --limit 240 --epochs 4 --val-fraction 0.1 --effective-batch 36 --micro-batch 12 --amp fp16 "
                               "--monitor 3 --ledger-ids --schedule cosine --optimizer sgd --lr 0.3").train()
    check(os.path.exists(os.path.join(run.folder, "report.html")), "train writes the report at its end")
    page = Report(browser, run)
    check("every sample was used once an epoch" in page.text("#findings"), "the ledger's check is on the page")
    check("Diagnosis: " in page.text("#findings"), "and the monitor's diagnosis")
    check("no copies to a device" in page.text("#findings"), "and what a CPU does not have")
    use_curves(page)
    use_batches(page)
    use_keys(page)
    use_themes(page, options)
    page.finish()


def plain(browser, options):
    run = Run(options, "one_step", f"{SMALL} --model lenet-bn --limit 40 --epochs 1 --val-fraction 0 --batch 64 --monitor 0").train()
    page = Report(browser, run)
    check(list(page.charts) == ["loss", "accuracy", "lr"], f"one step, no monitor, no validation: {list(page.charts)}")
    check(page.charts["loss"]["points"] == [1, 0] and len(page.rows("loss")) == 1, "one point, one row")
    check("no records of the monitor" in page.text("#findings"), "the page says what is missing")
    ids = page.state()["batch"]["ids"]
    check(sorted(ids) == list(range(40)), "the samples are known from the seed")
    browser.key("ArrowRight")
    check(page.state()["at"] == 0, "there is no other step")
    page.finish()


def killed(browser, options):
    run = Run(options, "killed", f"{SMALL} --model lenet-bn --limit 200 --epochs 40 --val-fraction 0 --batch 20 --monitor 4 --checkpoint-every 3")
    run.kill_after(25)
    check(not os.path.exists(os.path.join(run.folder, "report.html")), "a killed run has written no report")
    page = Report(browser, run)
    made = len(run.records("steps"))
    check(f"has made {made} of 400 steps" in page.text("#findings"), "the page says how far the run came")
    check(page.charts["loss"]["points"][0] == made, "and shows all of it")
    page.finish()
    run.resume()
    page = Report(browser, run)
    check(page.charts["loss"]["points"][0] == 400, "the resumed run is whole")
    check("has made" not in page.text("#findings"), "and the page does not call it unfinished")
    check("every sample was used once an epoch" in page.text("#findings"), "its ledger too")
    page.finish()


def long(browser, options):
    run = Run(options, "long", f"{SMALL} --model mlp --limit 2500 --epochs 1 --batch 1 --val-fraction 0 --monitor 1").train()
    page = Report(browser, run)
    check("a point stands for 3 of them" in page.text("#thinned"), "a long run is thinned out, and the page says how")
    check(page.charts["loss"]["points"][:3] == [834, 834, 834], "mean, largest and smallest of each group")
    check(page.state()["batches"] == 1250, "every second effective batch")
    page.fits("window")
    page.finish()


def diverged(browser, options):
    run = Run(options, "diverged", f"{SMALL} --model lenet-bn --limit 60 --epochs 2 --val-fraction 0.2 --batch 12 --monitor 1 --lr 1e30 --optimizer sgd").train()
    page = Report(browser, run)
    check("the training has diverged" in page.text("#findings"), "a loss that is no number is a warning")
    page.finish()


def names(browser, options):
    run = Run(options, "a<b>&\"'</script>".replace("/", ""), f"{SMALL} --model lenet-bn --limit 40 --epochs 1 --batch 20").train()
    page = Report(browser, run)
    check(page.text("h1") == os.path.basename(run.folder), "a name comes out as text")
    check(browser.evaluate("document.scripts.length") == 3, "no name became a script")
    page.finish()


def picture(browser, options):
    run = Run(options, "first", "--data fashion-mnist --limit 6000 --model lenet-bn --epochs 3 --effective-batch 128 --micro-batch 32 "
                                "--amp fp16 --optimizer sgd --momentum 0.9 --lr 0.05 --schedule cosine --monitor 5 --quiet").train()
    page = Report(browser, run)
    page.choose("#step", "20", "input")
    browser.evaluate("document.activeElement.blur()")
    browser.evaluate("document.getElementById('settings').parentElement.remove()")  # long, and of no interest in a picture
    browser.settle()
    browser.screenshot(os.path.join(options.images, "report.png"), full=True)
    page.finish()


def use(browser, options):
    for part in (full, plain, killed, long, diverged, names):
        part(browser, options)
    if options.images:
        picture(browser, options)


if __name__ == "__main__":
    sys.exit(run_in_browser(("limpid",), use))
