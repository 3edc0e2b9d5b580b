#!/usr/bin/env python3
"""Opens the event files of runs with the real `tensorboard` package and compares every scalar with the run's own logs:
ledger.jsonl, steps.jsonl, monitor.jsonl. Three runs: one to its end, one stopped by a signal and resumed, one killed
after its last checkpoint and resumed, so that steps stand in two event files and TensorBoard must forget the first.
  read_tensorboard.py --limpid build/limpid --out DIR        (a Python that has tensorboard; CMake: LIMPID_TENSORBOARD_PYTHON)
"""

import argparse
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import time

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

SMALL = (
    "train --data synthetic --input 3x16x16 --classes 4 --limit 1000 --val-fraction 0.1 --model lenet-bn --epochs 2 "
    "--effective-batch 50 --micro-batch 25 --seed 3 --threads 1 --workers 1 --monitor 4 --trace off --quiet "
    "--checkpoint-every 6 --tensorboard"
)


def f32(value):
    """As an event file stores it."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def lines(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file.read().split("\n")[:-1]]


def expected(folder):
    """tag -> {step: value}, from the logs alone."""
    want = {}

    def put(tag, step, value):
        want.setdefault(tag, {})[step] = f32(math.nan if value is None else value)

    for record in lines(folder, "ledger.jsonl"):
        if record["kind"] == "step":
            put("train/loss", record["step"], record["loss_sum"] / record["samples"])
            put("train/lr", record["step"], record["lr"])
            for name, ratio in record.get("trust_ratios", {}).items():
                put("trust_ratio/" + name, record["step"], ratio)
        elif record["kind"] == "epoch":
            step = record["step"] - 1
            put("epoch/train_loss", step, record["train_loss"])
            put("epoch/train_accuracy", step, record["train_accuracy"])
            put("validation/loss", step, record["validation_loss"])
            put("validation/accuracy", step, record["validation_accuracy"])
    for record in lines(folder, "steps.jsonl"):
        put("train/accuracy", record["step"], record["accuracy"])
    for record in lines(folder, "monitor.jsonl"):
        step, memory = record["step"], record["memory"]
        put("monitor/scale", step, record["scale"])
        put("monitor/samples_per_second", step, record["samples_per_second"])
        put("monitor/data_wait_share", step, record["data_wait_seconds"] / record["seconds"])
        put("monitor/busy", step, record["busy"])
        put("memory/allocated_bytes", step, memory["allocated"])
        put("memory/reserved_bytes", step, memory["reserved"])
        put("memory/peak_allocated_bytes", step, memory["peak_allocated"])
    return want


def compare(folder, what):
    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    want, found = expected(folder), events.Tags()["scalars"]
    assert sorted(want) == sorted(found), f"{what}: tags {sorted(set(want) ^ set(found))} are on one side only"
    values = 0
    for tag, by_step in want.items():
        read = events.Scalars(tag)
        assert [e.step for e in read] == sorted(by_step), f"{what}: {tag} has the steps {[e.step for e in read]}"
        for e in read:
            same = e.value == by_step[e.step] or (math.isnan(e.value) and math.isnan(by_step[e.step]))
            assert same, f"{what}: {tag} at step {e.step} is {e.value}, the logs say {by_step[e.step]}"
            values += 1
    files = len([name for name in os.listdir(folder) if name.startswith("events.out.tfevents")])
    print(f"{what}: {len(want)} tags, {values} values, {files} event file(s): equal to the logs")


def run(limpid, folder, options):
    shutil.rmtree(folder, ignore_errors=True)
    return [limpid, *SMALL.split(), *options.split(), "--out", folder]


def interrupt(command, folder, steps, how):
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and len(lines(folder, "steps.jsonl")) < steps:
            time.sleep(0.001)
        process.send_signal(how)
    assert process.returncode not in (0, 1, 2, 3, 4), f"the run ended before the signal, with code {process.returncode}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limpid", required=True)
    parser.add_argument("--out", required=True, help="folder for the runs")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)

    whole = os.path.join(options.out, "whole")
    subprocess.run(run(options.limpid, whole, "--optimizer lamb --weight-decay 0.01"), check=True, stdout=subprocess.DEVNULL)
    compare(whole, "a whole run under LAMB")
    for how, name in ((signal.SIGTERM, "stopped"), (signal.SIGKILL, "killed")):
        folder = os.path.join(options.out, name)
        interrupt(run(options.limpid, folder, "--amp fp16"), folder, 10, how)
        subprocess.run([options.limpid, "train", "--resume", "--out", folder, "--quiet"], check=True, stdout=subprocess.DEVNULL)
        compare(folder, f"a run in fp16, {name} and resumed")


if __name__ == "__main__":
    sys.exit(main())
