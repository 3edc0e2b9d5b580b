#!/usr/bin/env python3
"""Runs limpid and PyTorch in turns: compare.py VENV [--repeats 5] [--threads 2] [--build build] [--only seed:16,...] [--out F.json]."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROWS = [("seed", 16, 5), ("lenet", 32, 25), ("lenet", 128, 12), ("lenet", 512, 5), ("resnet18", 16, 4), ("resnet18", 32, 3),
        ("mlp", 1, 1500), ("mlp", 64, 700)]
here = pathlib.Path(__file__).resolve().parent
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("venv")
parser.add_argument("--repeats", type=int, default=5)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--build", default=str(here.parent.parent / "build"))
parser.add_argument("--only", help="rows as MODEL:BATCH, comma separated")
parser.add_argument("--out", help="also write the figures as JSON")
args = parser.parse_args()
only = set(args.only.split(",")) if args.only else None


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


results = []
print(f"{cpu_name()}, {os.cpu_count()} processors, {args.threads} threads, load {os.getloadavg()[0]:.2f} at the start; "
      f"medians of {args.repeats} interleaved repeats (smallest - largest median)")
print(f"{'model':<9}{'batch':>6}  {'limpid ms':>22}  {'PyTorch ms':>22}  {'PyTorch / limpid':>17}  {'RSS MB limpid / PyTorch':>24}")
for model, batch, steps in ROWS:
    if only and f"{model}:{batch}" not in only:
        continue
    ours, peers = [], []
    for _ in range(args.repeats):
        ours.append(run([f"{args.build}/step_bench", model, str(batch), str(args.threads), str(steps), "--json"]))
        peers.append(run([f"{args.venv}/bin/python", str(here / "torch_step.py"), model, str(batch), str(args.threads), str(steps)]))
    a, b = [r["median_ms"] for r in ours], [r["median_ms"] for r in peers]
    ratios = [q / p for p, q in zip(a, b)]
    row = {"model": model, "batch": batch, "limpid_ms": a, "torch_ms": b, "ratio": statistics.median(ratios), "ratios": ratios,
           "limpid_rss": max(r["rss_bytes"] for r in ours), "torch_rss": max(r["rss_bytes"] for r in peers), "torch": peers[0]["version"]}
    results.append(row)
    spread = lambda v: f"{statistics.median(v):.2f} ({min(v):.2f} - {max(v):.2f})"
    print(f"{model:<9}{batch:>6}  {spread(a):>22}  {spread(b):>22}  {row['ratio']:>12.2f} x    {row['limpid_rss'] / 1e6:>11.0f} / {row['torch_rss'] / 1e6:.0f}", flush=True)
if args.out:
    pathlib.Path(args.out).write_text(json.dumps({"cpu": cpu_name(), "threads": args.threads, "repeats": args.repeats, "rows": results}, indent=1) + "\n")
