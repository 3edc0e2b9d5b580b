#!/usr/bin/env python3
"""Checks a memory snapshot that limpid exported, as PyTorch's viewers will read it: opcodes that the viewer's own
unpickler knows, CPython's pickle, the structure, and a replay of the trace backwards from the final state (what the
viewer does). With --viz also runs `python -m torch.cuda._memory_viz` on it (needs PyTorch; a stand-in for
flamegraph.pl is put where the viewer looks for it, so that nothing is downloaded).

    check_snapshot.py SNAPSHOT [--viz]
"""
import os
import pickle
import pickletools
import subprocess
import sys
import tempfile

VIEWER_OPCODES = set("""PROTO FRAME STOP MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE DICT LIST TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND
APPENDS SETITEM SETITEMS NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE MEMOIZE
BINPUT LONG_BINPUT BINGET LONG_BINGET""".split())
STATES = {"active_allocated", "active_pending_free", "inactive"}
HIDDEN = ("_start", "PyEval_", "PyObject_", "PyFunction_", "unwind::unwind", "CapturedTraceback::gather")


def check_opcodes(data):
    since_mark = []  # values pushed since each open mark, to bound the batches
    for opcode, argument, _ in pickletools.genops(data):
        assert opcode.name in VIEWER_OPCODES, opcode.name
        if opcode.name == "PROTO":
            assert 2 <= argument <= 4, argument
        if opcode.name == "MARK":
            since_mark.append(0)
        elif opcode.name == "APPENDS":
            assert since_mark.pop() <= 1000, "a batch of more than 1000 items"
        elif opcode.name == "SETITEMS":
            since_mark.pop()
            continue
        elif opcode.name == "EMPTY_DICT" and since_mark:
            since_mark[-1] += 1  # items of our lists are dicts


def check_segments(segments):
    assert segments == sorted(segments, key=lambda s: s["address"])
    for s in segments:
        address = s["address"]
        internal = external = requested = 0
        for b in s["blocks"]:
            assert b["state"] in STATES and b["address"] == address
            address += b["size"]
            if b["state"] == "active_allocated":
                requested += b["requested_size"]
                internal += b["size"] - b["requested_size"]
            else:
                external += b["size"]
        assert address == s["address"] + s["total_size"]
        assert requested + internal + external == s["total_size"]
        assert 0 < s["address"] < 2**53 and address < 2**53
        assert s["segment_type"] in ("small", "large") and s["segment_pool_id"] == (0, 0)
        assert s["allocated_size"] <= s["active_size"] <= s["total_size"]


def check_backwards(segments, trace):
    """From the final state to the beginning, where nothing may be left."""
    mapped = {}
    for s in segments:
        mapped[s["address"]] = s["total_size"]
    live = {b["address"]: b["requested_size"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated"}
    pending = {b["address"]: b["requested_size"] for s in segments for b in s["blocks"]
               if b["state"] == "active_pending_free"}
    expandable = any(e["action"] in ("segment_map", "segment_unmap") for e in trace)
    for e in reversed(trace):
        action, address, size = e["action"], e.get("addr"), e["size"]
        if action == "alloc":
            assert live.pop(address) == size, e
        elif action == "free_completed":
            assert address not in pending and address not in live, e
            pending[address] = size
        elif action == "free_requested":
            assert pending.pop(address) == size, e
            live[address] = size
        elif action == "segment_alloc":
            assert expandable or mapped.pop(address) == size, e
        elif action == "segment_free":
            assert expandable or address not in mapped, e
            mapped[address] = size
        else:
            assert action in ("oom", "segment_map", "segment_unmap"), e
    assert not live and not pending, (live, pending)
    assert expandable or not mapped, mapped


def check(path):
    with open(path, "rb") as f:
        data = f.read()
    check_opcodes(data)
    snapshot = pickle.loads(data)
    assert set(snapshot) == {"segments", "device_traces", "external_annotations", "allocator_settings"}
    (trace,) = snapshot["device_traces"]
    categories = {e["category"] for e in trace if "category" in e}
    assert not categories or "unknown" in categories
    times = [e["time_us"] for e in trace]
    assert times == sorted(times)
    frees = [i for i, e in enumerate(trace) if e["action"] == "free_requested"]
    for e in trace:
        for frame in e["frames"]:
            assert set(frame) == {"name", "filename", "line"}
            assert not any(h in frame["name"] for h in HIDDEN), frame
        assert ("device_free" if e["action"] == "oom" else "addr") in e
    waiting = sum(1 for i in frees if i + 1 == len(trace) or trace[i + 1]["action"] != "free_completed"
                  or trace[i + 1]["addr"] != trace[i]["addr"])
    check_segments(snapshot["segments"])
    check_backwards(snapshot["segments"], trace)
    allocs = sum(1 for e in trace if e["action"] == "alloc")
    print(f"ok {len(trace)} events {allocs} allocs {len(frees)} frees {waiting} waited {len(snapshot['segments'])} segments")


def run_viz(path):
    with tempfile.TemporaryDirectory() as home:
        cache = os.path.join(home, ".cache")
        os.makedirs(cache)
        script = os.path.join(cache, "flamegraph.pl")
        with open(script, "w") as f:
            f.write("#!/bin/sh\ncat\n")
        os.chmod(script, 0o755)
        for words in (["stats", path], ["trace", path], ["segments", path, "-o", home + "/segments.svg"],
                      ["memory", path, "-o", home + "/memory.svg"], ["trace_plot", path, "-o", home + "/plot.html"],
                      ["segment_plot", path, "-o", home + "/segments.html"]):
            result = subprocess.run([sys.executable, "-W", "ignore", "-m", "torch.cuda._memory_viz", *words],
                                    env={**os.environ, "HOME": home}, capture_output=True, text=True)
            assert result.returncode == 0, result.stderr
            print("viz", words[0], "ok,", len(result.stdout.splitlines()), "lines")


if __name__ == "__main__":
    check(sys.argv[1])
    if "--viz" in sys.argv:
        run_viz(sys.argv[1])
