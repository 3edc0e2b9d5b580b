"""Packs NAME.script and NAME.events (see README.md) into NAME.gz: pack.py FOLDER NAME...

One line an event: the script line, a tab, the error (OOM or nothing), segment, offset, and the changes against the line
before of: allocated, reserved, active, segments, inactive split bytes, retries, device allocations, device frees.
With expandable segments also the changes of pages mapped and unmapped. Zeros are written as nothing."""
import gzip
import sys

FIELDS = ["alloc", "res", "active", "segs", "inactive_split", "retries"]


def pack(folder, name):
    script = open(f"{folder}/{name}.script").read().splitlines()
    events = open(f"{folder}/{name}.events").read().splitlines()
    assert len(script) == len(events)
    expandable = any(e.split()[-2] != "0" for e in events)
    counts = 4 if expandable else 2
    former, out = [0] * (6 + counts), []
    for command, event in zip(script, events):
        words = event.split()
        at = words.index("seg")
        error = words[2] if at == 3 else ""
        value = {words[i]: int(words[i + 1]) for i in range(at, len(words) - 5, 2) if words[i] != "calls"}
        calls = [int(w) for w in words[-5:]]
        calls = calls[:2] + calls[3:]  # pages created are those mapped, and those of a failed attempt
        assert expandable or calls[2:] == [0, 0]
        now = [value[f] for f in FIELDS] + calls[:counts]
        numbers = [value["seg"], value["off"]] + [a - b for a, b in zip(now, former)]
        out.append(command + "\t" + " ".join([error] + [str(n) if n else "" for n in numbers]))
        former = now
    with open(f"{name}.gz", "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(("\n".join(out) + "\n").encode())


for name in sys.argv[2:]:
    pack(sys.argv[1], name)
