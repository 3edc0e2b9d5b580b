"""Packs NAME.script and NAME.events (see README.md) into NAME.gz: pack.py FOLDER NAME...

One line an event: the script line, a tab, the error (OOM or nothing), segment, offset, and the changes against the line
before of: allocated, reserved, active, segments, inactive split bytes, retries, device allocations, device frees.
Zeros are written as nothing. The three counts of virtual-memory calls are checked to be 0 and dropped."""
import gzip
import sys

FIELDS = ["alloc", "res", "active", "segs", "inactive_split", "retries"]


def pack(folder, name):
    script = open(f"{folder}/{name}.script").read().splitlines()
    events = open(f"{folder}/{name}.events").read().splitlines()
    assert len(script) == len(events)
    former, out = [0] * 8, []
    for command, event in zip(script, events):
        words = event.split()
        at = words.index("seg")
        error = words[2] if at == 3 else ""
        value = {words[i]: int(words[i + 1]) for i in range(at, len(words) - 5, 2) if words[i] != "calls"}
        calls = [int(w) for w in words[-5:]]
        assert calls[2:] == [0, 0, 0]
        now = [value[f] for f in FIELDS] + calls[:2]
        numbers = [value["seg"], value["off"]] + [a - b for a, b in zip(now, former)]
        out.append(command + "\t" + " ".join([error] + [str(n) if n else "" for n in numbers]))
        former = now
    with open(f"{name}.gz", "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(("\n".join(out) + "\n").encode())


for name in sys.argv[2:]:
    pack(sys.argv[1], name)
