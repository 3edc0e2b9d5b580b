#!/usr/bin/env python3
"""Makes the pages of `limpid sweep` and opens them in a real Chromium: every chart is drawn, every figure is that of the
command's JSON, nothing is logged or requested.
  sweep.py --browser=chromium --limpid=build/limpid --out=DIR
"""

import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from page import Page, check, run_in_browser  # noqa: E402

LEARNING = (
    "--model mlp --batches 8,31,32 --data synthetic --input 1x8x8 --limit 200 --val-fraction 0.2 --epochs 3 "
    "--lr-policy none,linear --seeds 2 --target-accuracy 0.2 --optimizer adam --memory-cap 64MiB"
)


def make(browser, options, name, arguments):
    path = os.path.join(options.out, name + ".html")
    command = [options.limpid, "sweep", *arguments.split(), "-o", path, "--json", "--quiet"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    page = Page(browser, path, name, "!!window.limpidSweep")
    page.charts = {chart["id"]: chart for chart in browser.evaluate("limpidSweep()")["charts"]}
    for chart in page.charts.values():
        check(chart["width"] > 200 and chart["height"] > 100, f"{name}: chart {chart['id']} has a size")
        check(max(chart["points"], default=0) > 0, f"{name}: chart {chart['id']} has points")
    check(page.contrast("body", ".note", "th") >= 4.5, f"{name}: text is readable")
    page.pdf(os.path.join(options.out, name + ".pdf"))
    return page, json.loads(done.stdout.splitlines()[-1])


def cells(browser, index):
    return browser.evaluate(
        f"[...document.querySelectorAll('#tables table')[{index}].tBodies[0].rows].map((r) => [...r.cells].map((c) => c.textContent))"
    )


def learning(browser, options):
    page, found = make(browser, options, "learning", LEARNING)
    wanted = {"throughput", "time", "busy", "memory", "accuracy", "gap", "loss-none", "accuracy-none", "loss-linear", "accuracy-linear"}
    check(wanted <= set(page.charts), f"the charts of a sweep that learns: {sorted(page.charts)}")
    check(page.charts["throughput"]["points"][0] == 3, "three batches were timed")
    check(page.charts["memory"]["points"][0] == 3, "and have a prediction")
    rows = cells(browser, 0)
    check([row[0] for row in rows] == ["8", "31", "32"], "the table has every batch")
    rows = cells(browser, 1)
    for row, expected in zip(rows, found["learning"]["rows"]):
        if expected["accuracy"]:
            text = f"{100 * expected['accuracy']['mean']:.2f} %"
            check(row[3].startswith(text), f"accuracy {row[3]} is {text}")
    check(len(rows) == len(found["learning"]["rows"]), "the learning table is whole")
    text = browser.evaluate("document.querySelector('#findings').innerText")
    check("the linear rule is SGD's; adam" in text, "warnings stand on the page")
    check("as predicted, to the byte" in text, "memory is as predicted")
    page.finish()


def too_large(browser, options):
    page, found = make(browser, options, "too_large", "--model mlp --batches 8,31,32,1000000 --input 1x8x8 --memory-cap 64MiB")
    check(page.charts["throughput"]["points"][0] == 3, "three batches were timed")
    check(page.charts["memory"]["points"][0] == 4, "the fourth has a prediction")
    rows = cells(browser, 0)
    check([row[0] for row in rows] == ["8", "31", "32", "1,000,000"], "the table has every batch")
    check(rows[3][-1].startswith("predicted not to fit: needs "), "what does not fit says so")
    page.finish()


def lab(browser, options):
    page, found = make(browser, options, "lab", "--gemm 15,16,17 --channels 16,17 --threads 1")
    check(len(page.charts) == len(found["experiments"]) == 7, "a chart for each experiment")
    for i, experiment in enumerate(found["experiments"]):
        rows = cells(browser, i)
        check([row[6] for row in rows] == [r["verdict"] for r in experiment["rows"]], f"verdicts of {experiment['op']}")
        check([row[3] for row in rows] == [f"{r['predicted_ratio']:.3f}" for r in experiment["rows"]], f"predictions of {experiment['op']}")
    text = browser.evaluate("document.querySelector('#findings').innerText")
    check(f"{found['disagree']} disagree" in text, "disagreement is on the page")
    page.finish()


def use(browser, options):
    learning(browser, options)
    too_large(browser, options)
    lab(browser, options)


if __name__ == "__main__":
    sys.exit(run_in_browser(("limpid",), use))
