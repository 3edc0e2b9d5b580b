#!/usr/bin/env python3
"""Runs limpid and PyTorch in turns: compare.py VENV [--repeats 5] [--threads 2] [--build build] [--only seed:16,...] [--out F.json].

limpid with chains of layers as one operation and with one operation a layer; PyTorch as it comes and in the fastest of three
settings (channels_last, a malloc that keeps its memory, both), found by one run of each before the repeats."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROWS = [("seed", 16, 5), ("lenet", 32, 25), ("lenet", 128, 12), ("lenet", 512, 5), ("resnet18", 16, 4), ("resnet18", 32, 3),
        ("resnet18", 128, 2), ("resnet20", 128, 3), ("mlp", 1, 1500), ("mlp", 64, 700)]
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


# glibc: no mapping of its own for large blocks, nothing given back.
KEEPING_MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(256 << 20)}
TUNED = {"channels_last": (["channels_last"], {}), "malloc": ([], KEEPING_MALLOC), "channels_last + malloc": (["channels_last"], KEEPING_MALLOC)}


def run(command, environment=None):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environment or {})})
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def limpid(model, batch, steps, fuse):
    return run([str(step_bench), model, str(batch), str(args.threads), str(steps), "--json", "--fuse", "on" if fuse else "off"])


def torch(model, batch, steps, words, environment):
    return run([f"{args.venv}/bin/python", str(here / "torch_step.py"), model, str(batch), str(args.threads), str(steps), *words], environment)


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} - {max(values):.2f})"


found = [p for p in (pathlib.Path(args.build) / "step_bench", pathlib.Path(args.build) / "bench" / "step_bench") if p.exists()]
if not found:
    sys.exit(f"there is no step_bench in {args.build}: configure with -DLIMPID_BENCH=ON and build it")
step_bench = found[0]
results = []
print(f"{cpu_name()}, {os.cpu_count()} processors, {args.threads} threads, load {os.getloadavg()[0]:.2f} at the start; "
      f"ms a step, medians of {args.repeats} interleaved repeats (smallest - largest median)")
for model, batch, steps in ROWS:
    if only and f"{model}:{batch}" not in only:
        continue
    best = min(TUNED, key=lambda name: torch(model, batch, steps, *TUNED[name])["median_ms"])
    columns = {"fused": [], "one operation a layer": [], "PyTorch": [], f"PyTorch, {best}": []}
    for _ in range(args.repeats):
        columns["fused"].append(limpid(model, batch, steps, True))
        columns["PyTorch"].append(torch(model, batch, steps, [], {}))
        columns["one operation a layer"].append(limpid(model, batch, steps, False))
        columns[f"PyTorch, {best}"].append(torch(model, batch, steps, *TUNED[best]))
    ms = {name: [r["median_ms"] for r in runs] for name, runs in columns.items()}
    ratios = {name: [q / p for p, q in zip(ms["fused"], ms[name])] for name in columns}
    row = {"model": model, "batch": batch, "best": best, "ms": ms, "ratio_to_fused": ratios,
           "rss": {name: max(r["rss_bytes"] for r in runs) for name, runs in columns.items()},
           "faults_after_step_2": max(r["faults_after_step_2"] for r in columns["fused"]), "torch": columns["PyTorch"][0]["version"]}
    results.append(row)
    print(f"{model} {batch}")
    for name in columns:
        print(f"  {name:<38}{spread(ms[name]):>28}   {statistics.median(ratios[name]):>6.2f} x fused   RSS {row['rss'][name] / 1e6:.0f} MB", flush=True)
if args.out:
    pathlib.Path(args.out).write_text(json.dumps({"cpu": cpu_name(), "threads": args.threads, "repeats": args.repeats, "rows": results}, indent=1) + "\n")
