#!/usr/bin/env python3
"""Writes the snapshots beside it: made-up states in the forms that torch.cuda.memory._snapshot() has had, pickled by
CPython in every protocol, and hostile pickles that try to run code. Run it in this folder; needs only Python."""
import os
import pickle

MIB = 1 << 20
BASE = 0x7F1234000000
FRAME = {"filename": "model.py", "line": 12, "name": "forward"}
NOISE = {"filename": "ceval.c", "line": 0, "name": "_PyEval_EvalFrameDefault"}


def event(action, addr, size, stream=0, frames=None, **more):
    e = {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": 1_700_000_000_000_000,
         "compile_context": "N/A", "user_metadata": "", **more}
    if frames is not None:
        e["frames"] = frames
    return e


def block(address, size, requested, state):
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": [FRAME]}


big, small = BASE, BASE + 64 * MIB
trace = [
    event("free_requested", small + 4096, 700), event("free_completed", small + 4096, 700),  # allocated before
    event("segment_alloc", big, 20 * MIB),
    event("alloc", big, 3 * MIB - 100, frames=[NOISE, FRAME]),
    event("alloc", big + 3 * MIB, 5 * MIB, stream=7, frames=[FRAME], category="gradient"),
    event("free_requested", big, 3 * MIB - 100, frames=[FRAME]),
    event("free_completed", big, 3 * MIB - 100),
    event("alloc", big, 1000, frames=[]),
    event("free_requested", big + 3 * MIB, 5 * MIB),  # waits for another stream
    event("snapshot", 0, 0),
    event("free_completed", big + 3 * MIB, 5 * MIB),
    {"action": "oom", "device_free": 5 * MIB, "size": 100 * MIB, "stream": 0, "time_us": 1, "frames": [FRAME]},
    event("something_new", 0, 0),
]
segments = [
    {"device": 0, "address": big, "total_size": 20 * MIB, "allocated_size": 1024, "active_size": 1024,
     "requested_size": 1000, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
     "frames": [], "blocks": [block(big, 1024, 1000, "active_allocated"),
                              block(big + 1024, 20 * MIB - 1024, 0, "inactive")]},
    {"device": 0, "address": small, "total_size": 2 * MIB, "allocated_size": 1024, "active_size": 1024,
     "requested_size": 600, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False,
     "frames": [], "blocks": [block(small, 1024, 600, "active_allocated"),
                              block(small + 1024, 2 * MIB - 1024, 0, "inactive")]},
    {"device": 1, "address": big, "total_size": 2 * MIB, "allocated_size": 512, "active_size": 512,
     "requested_size": 512, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False,
     "frames": [], "blocks": [block(big, 512, 512, "active_allocated"), block(big + 512, 2 * MIB - 512, 0, "inactive")]},
]
snapshot = {
    "segments": segments,
    "device_traces": [trace, []],
    "external_annotations": [{"device": 0, "time_us": 2.5, "name": "step", "stage": "START"}],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "max_split_size": -1,
                           "garbage_collection_threshold": 0.0, "expandable_segments": False,
                           "roundup_power2_divisions": {"1": 0, "4": 2}, "big": 1 << 62, "none": None, "yes": True},
}
legacy = [
    {"device": 0, "address": big, "total_size": 2 * MIB, "allocated_size": 1536, "active_size": 1536, "stream": 3,
     "segment_type": "small",
     "blocks": [{"size": 1024, "state": "active_allocated", "history": [{"addr": big, "real_size": 1000, "frames": [FRAME]}]},
                {"size": 2 * MIB - 1536, "state": "inactive"},
                {"size": 512, "state": "active_allocated"}]},
]


class Evil:
    def __reduce__(self):
        return (os.system, ("touch /tmp/limpid-was-here",))


def write(name, data):
    with open(name, "wb") as f:
        f.write(data)


for protocol in (2, 3, 4, 5):
    write(f"snapshot_p{protocol}.pickle", pickle.dumps(snapshot, protocol))
    write(f"legacy_p{protocol}.pickle", pickle.dumps(legacy, protocol))
    write(f"evil_p{protocol}.pickle", pickle.dumps({"segments": [Evil()], "device_traces": []}, protocol))
write("old_protocol.pickle", pickle.dumps(snapshot, 0))
# Opcodes by hand: GLOBAL; INST; EXT1; PERSID; an import by STACK_GLOBAL at the very start.
write("evil_global.pickle", b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00true\x85R.")
write("evil_inst.pickle", b"\x80\x02(X\x04\x00\x00\x00trueios\nsystem\n.")
write("evil_ext.pickle", b"\x80\x02\x82\x01.")
write("evil_persid.pickle", b"\x80\x02Psecret\n.")
write("evil_build.pickle", b"\x80\x02}}b.")
write("evil_stack_global.pickle", b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.")
