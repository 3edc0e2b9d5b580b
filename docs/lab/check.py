#!/usr/bin/env python3
"""Checker of the lab sheet why_8_gib.md. It knows no answer: it runs the `limpid` command and takes them from its JSON.

  check.py --template > answers.json      a file with every answer open
  check.py answers.json                   right or wrong for each answer, with a hint
  check.py --solution                     the answers, for teachers
  check.py --self-test                    does the checker mark rightly, and does the sheet show real output?

--limpid PATH names the command; default: build/limpid of this tree, else limpid of the PATH.
Exit codes: 0 all answers right (or the self-test passed), 1 not all, 2 a file or a command that cannot be used.
"""
import argparse
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SHEET = os.path.join(HERE, "why_8_gib.md")

CAPACITY = 8 << 30
MODEL = ["--fuse", "off", "--model", "resnet50", "--input", "3x224x224", "--classes", "10"]
TRAIN = ["train", "--fuse", "off", "--data", "synthetic", "--input", "1x28x28", "--model", "lenet", "--batch", "128", "--limit", "269",
         "--epochs", "1", "--seed", "1", "--workers", "0", "--threads", "2", "--quiet"]
STAND_IN_CAPACITY = "104MiB"
POLICIES = ["native", "nosplit", "expandable", "stitch", "bfc", "buddy", "arena", "rmm_pool", "async"]

# Key, kind, what is asked, hint.
QUESTIONS = [
    ("1a", "number", "bytes of parameters and buffers", "The row `params` of the first table, in bytes."),
    ("1b", "number", "bytes of optimizer state", "The row `optimizer`. Adam keeps two values for each parameter."),
    ("1c", "number", "bytes kept for the backward pass", "The row `saved`: the largest of the table."),
    ("2a", "word", "layer at the peak", "The line `Memory at the peak` names step, phase, and operation in layer."),
    ("2b", "word", "phase at the peak", "The line `Memory at the peak`: the word after the step."),
    ("3a", "number", "8 GiB less the live bytes", "8 GiB are 8 x 1024 x 1024 x 1024 bytes; take off the row `allocated`."),
    ("3b", "number", "reserved less requested, compute pool",
     "In the block on the compute pool: `reserved at most` less `requested at most`."),
    ("4a", "word", "cause", "The word after `Cause:` in the failure, of the run with --capacity."),
    ("4b", "number", "bytes of the request", "`requested` in the JSON of the run that failed, not a rounded figure in MiB."),
    ("4c", "number", "bytes of the largest free place in the cache",
     "`largest_free` in the JSON of the run that failed. It must be smaller than the request."),
    ("5a", "number", "batch by the rule of thumb", "The column `answer` of the table that --find adds."),
    ("5b", "number", "samples by which the rule of thumb is off",
     "Its answer less the largest batch that runs: the column `error`, with its sign."),
    ("5c", "word", "the finder whose answer does not run", "Look for `no` in the column `runs?`; give the finder's full name."),
    ("6a", "word", "role of the block in the way", "The line below `in the way` starts with a role."),
    ("6b", "word", "name of the block in the way", "The line below `in the way`: the name of a tensor, after its role."),
    ("6c", "number", "bytes of the block in the way", "`bytes` of `pins` in the JSON."),
    ("7a", "number", "lower bound in bytes", "`lower_bound` in the JSON: the live bytes at their highest."),
    ("7b", "number", "C* of native in bytes",
     "`scan.smallest` of the policy in the JSON. Not the peak reserved without a limit: C* may be smaller."),
    ("7c", "number", "C* of stitch in bytes", "`scan.smallest` of the policy `stitch` in the JSON."),
    ("8", "words", "policies under which batch 94 fits",
     "Run the command once for each of the nine policies. The exit code is 0 where the batch fits, 3 where it does not."),
    ("9a", "number", "largest batch under native", "The last line of the run with --capacity and no --policy."),
    ("9b", "number", "largest batch under expandable", "The last line of the run with --policy expandable."),
    ("10a", "number", "bytes allocated at the peak, 2 micro-batches", "The row `allocated` of the run with --accumulate 2."),
    ("10b", "word", "role that has grown", "Compare the two tables row by row: all rows fall or stay, but one (rounding aside)."),
    ("10c", "number", "samples of the largest step of 2 micro-batches",
     "The last line gives the largest micro-batch; a step has two of them."),
]
KINDS = {key: kind for key, kind, _, _ in QUESTIONS}
ALIASES = {"params": "param", "parameters": "param", "grads": "grad", "gradients": "grad", "gradient": "grad",
           "activations": "activation"}


class Unusable(Exception):
    """A file or a command that cannot be used; the message is one sentence."""


def run(limpid, words, folder, codes=(0, 3)):
    """Standard output of the command. Exit code 3, out of memory, is an answer here."""
    try:
        done = subprocess.run([limpid] + words, cwd=folder, capture_output=True, text=True)
    except OSError as e:
        raise Unusable(f"{limpid} cannot be run: {e.strerror}; build limpid, or name it with --limpid")
    if done.returncode not in codes:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unusable(f"`limpid {' '.join(words)}` ended with exit code {done.returncode}: {last}")
    return done.stdout


def run_json(limpid, words, folder):
    lines = run(limpid, words + ["--json"], folder).strip().splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        raise Unusable(f"`limpid {' '.join(words)} --json` printed no JSON; is {limpid} the limpid command?")


def solve(limpid):
    """Every answer, from the command itself; and what the sheet takes for granted, as (sentence, holds)."""
    with tempfile.TemporaryDirectory() as folder:
        def plan(*words):
            return run_json(limpid, ["plan", *MODEL, "--quiet", *words], folder)

        try:
            free = plan("--batch", "94")["prediction"]
            capped = plan("--batch", "94", "--capacity", "8GiB", "--find")
            oom = capped["prediction"].get("oom")
            if oom is None:
                raise Unusable("batch 94 fits into 8 GiB with this limpid: sheet and command are not of one version")
            cause = re.search(r"Cause: ([a-z ]+):", oom["message"])
            finders = {f["name"]: f for f in capped["find"]["finders"]}
            thumb = finders["rule of thumb"]
            failing = [name for name, f in finders.items() if not f["fits"]]
            policies = {p: plan("--batch", "94", "--capacity", "8GiB", "--policy", p) for p in POLICIES}
            fitting = [p for p in POLICIES if policies[p]["prediction"]["fits"]]
            micro = plan("--batch", "47", "--accumulate", "2", "--capacity", "8GiB")
            micro_peak = micro["prediction"]
            grown = [role for role, n in micro_peak["memory_at_peak"].items() if n > free["memory_at_peak"][role]]

            run(limpid, TRAIN + ["--out", "lab_run"], folder, codes=(0,))
            stand_in = run_json(limpid, ["mem", "explain", "lab_run", "--capacity", STAND_IN_CAPACITY], folder)
            pins = stand_in["oom"]["pins"]
            replay = run_json(limpid, ["mem", "replay", "lab_run", "--policy", "native,stitch"], folder)
            smallest = {p["policy"]: p["scan"]["smallest"] for p in replay["policies"]}

            roles = free["memory_at_peak"]
            answers = {
                "1a": roles["param"], "1b": roles["optimizer"], "1c": roles["saved"],
                "2a": free["peak_at"]["layer"], "2b": free["peak_at"]["phase"],
                "3a": CAPACITY - free["peak_allocated_bytes"],
                "3b": free["compute"]["reserved_peak"] - free["compute"]["live_peak"],
                "4a": cause.group(1) if cause else "", "4b": oom["requested"], "4c": oom["largest_free"],
                "5a": thumb["answer"], "5b": thumb["error"], "5c": failing[0] if failing else "",
                "6a": pins["blocks"][0]["role"], "6b": pins["blocks"][0]["name"], "6c": pins["bytes"],
                "7a": replay["lower_bound"], "7b": smallest["native"], "7c": smallest["stitch"],
                "8": fitting,
                "9a": policies["native"]["max_batch"], "9b": policies["expandable"]["max_batch"],
                "10a": micro_peak["peak_allocated_bytes"], "10b": grown[0] if grown else "",
                "10c": 2 * micro["max_batch"],
            }
        except (KeyError, IndexError, TypeError) as e:
            raise Unusable(f"the JSON of {limpid} is not as the checker expects it: {type(e).__name__} {e}")
    premises = [
        ("the live bytes of batch 94 are below 8 GiB", answers["3a"] > 0),
        ("the cause of the failure is known", cause is not None),
        ("no free place of the cache is as large as the request", oom["largest_free"] < oom["requested"]),
        ("one finder gives a batch that does not run", len(failing) == 1),
        ("some policies fit batch 94, others do not", 0 < len(fitting) < len(POLICIES)),
        ("one block pins the hole of the stand-in, and a replay without it was served",
         pins["count"] == 1 and pins["replayed"] is True),
        ("C* of native is above the lower bound and above that of stitch",
         smallest["native"] > max(replay["lower_bound"], smallest["stitch"])),
        ("two micro-batches raise one role", len(grown) == 1),
    ]
    return answers, premises


def read_answers(path):
    try:
        with open(path, encoding="utf-8") as f:
            answers = json.load(f)
    except OSError as e:
        raise Unusable(f"{path} cannot be read: {e.strerror}")
    except (ValueError, RecursionError) as e:
        raise Unusable(f"{path} is not JSON: {e}")
    if not isinstance(answers, dict):
        raise Unusable(f"{path} must hold one JSON object, as `check.py --template` prints it")
    for key, value in answers.items():
        if key not in KINDS:
            raise Unusable(f"{path} has an answer \"{key}\"; there are only {', '.join(KINDS)}")
        if value is None:
            continue
        kind = KINDS[key]
        if kind == "number":
            good = as_number(value) is not None
            wanted = "a whole number"
        elif kind == "word":
            good, wanted = isinstance(value, str), "a word in quotes"
        else:
            good = isinstance(value, list) and all(isinstance(v, str) for v in value)
            wanted = "a list of words, [\"native\", ...]"
        if not good:
            raise Unusable(f"{path}: answer {key} must be {wanted}, is {json.dumps(value)}")
    return answers


def as_number(value):
    """12345, "12,345" or "12 345" as an int; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value == value and abs(value) < 1e18 and value == int(value):
        return int(value)
    if isinstance(value, str):
        text = re.sub(r"[,_\s]", "", value)
        if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            return int(text)
    return None


def as_word(value):
    text = " ".join(value.split()).lower()
    return ALIASES.get(text, text)


def judge(key, value, expected):
    """(right, hint)."""
    kind = KINDS[key]
    hint = next(h for k, _, _, h in QUESTIONS if k == key)
    if kind == "words":
        given, wanted = {as_word(v) for v in value}, {as_word(v) for v in expected}
        if given == wanted:
            return True, ""
        if given - set(POLICIES):
            hint = f"There is no policy {sorted(given - set(POLICIES))[0]}. " + hint
        return False, hint
    if kind == "word":
        return as_word(value) == as_word(expected), hint
    number = as_number(value)
    if number == expected:
        return True, ""
    if number == -expected:
        hint = "The sign is wrong. " + hint
    elif expected >= 1 << 20:
        for unit, size in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)):
            if number > 0 and abs(number * size - expected) < max(size, expected // 100):
                hint = f"That looks like {unit}; bytes are asked for. " + hint
        if abs(number - expected) * 100 < expected:
            hint = "Near, but made from a rounded figure? Take the exact bytes. " + hint
    return False, hint


def mark(answers, expected):
    """Rows (key, "right" | "wrong" | "open", hint)."""
    rows = []
    for key, _, _, _ in QUESTIONS:
        value = answers.get(key)
        if value is None:
            rows.append((key, "open", ""))
            continue
        right, hint = judge(key, value, expected[key])
        rows.append((key, "right" if right else "wrong", "" if right else hint))
    return rows


def report(rows):
    asked = {key: what for key, _, what, _ in QUESTIONS}
    for key, verdict, hint in rows:
        print(f"{key:<4} {verdict:<6} {asked[key]}" + (f"\n            {hint}" if hint else ""))
    right = sum(verdict == "right" for _, verdict, _ in rows)
    print(f"{right} of {len(rows)} right")
    return 0 if right == len(rows) else 1


def template():
    return {key: None for key in KINDS}


def print_answers(answers):
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in answers.items()]
    print("{\n" + ",\n".join(lines) + "\n}")


# --- The self-test ---------------------------------------------------------------------------------------------------

def altered(value):
    if isinstance(value, int):
        return value + 1
    return value[1:] if isinstance(value, list) else value + "x"


def spelled_otherwise(value):
    if isinstance(value, int):
        return f"{value:,}"
    return [v.upper() for v in reversed(value)] if isinstance(value, list) else f" {value.upper()} "


def check_marks(expected, folder):
    """Sentences on what the checker marks wrongly."""
    faults = []

    def rows_of(answers):
        path = os.path.join(folder, "answers.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(answers, f)
        return mark(read_answers(path), expected)

    def expect(what, answers, lost):
        rows = rows_of(answers)
        found = {key: verdict for key, verdict, _ in rows if verdict != "right"}
        if found != lost:
            faults.append(f"{what}: marks lost {found}, should be {lost}")
        with contextlib.redirect_stdout(io.StringIO()):
            code = report(rows)
        if code != (1 if lost else 0):
            faults.append(f"{what}: exit code {code}")

    expect("the answers of the command", expected, {})
    expect("the answers in other spelling", {k: spelled_otherwise(v) for k, v in expected.items()}, {})
    expect("the template", template(), {key: "open" for key in KINDS})
    for key, value in expected.items():
        expect(f"answer {key} altered", {**expected, key: altered(value)}, {key: "wrong"})
        expect(f"answer {key} left out", {k: v for k, v in expected.items() if k != key}, {key: "open"})
        _, _, hint = next(row for row in rows_of({**expected, key: altered(value)}) if row[0] == key)
        told = [str(v) for v in (value if isinstance(value, list) else [value])]
        if not hint or any(re.search(rf"(?<![\w.]){re.escape(t)}(?![\w.])", hint) for t in told):
            faults.append(f"answer {key}: the hint is missing or gives the answer away")
    return faults


def check_errors(limpid, folder):
    """Sentences on unusable files that are not refused with exit code 2 and one sentence."""
    faults = []
    contents = {"none": None, "not JSON": "{1a: 5", "a list": "[1, 2]", "an unknown answer": '{"99": 1}',
                "a word for a number": '{"1a": "many"}', "a number for a word": '{"2a": 5}', "truth": '{"1a": true}',
                "no list": '{"8": "native"}', "NaN": '{"1a": NaN}', "deep": "[" * 100000, "bytes": "\x00\x01"}
    for what, text in contents.items():
        path = os.path.join(folder, "bad.json")
        if text is None:
            path = os.path.join(folder, "absent.json")
        else:
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        faults += refused(what, [path, "--limpid", limpid])
    good = os.path.join(folder, "open.json")
    with open(good, "w", encoding="utf-8") as f:
        json.dump(template(), f)
    faults += refused("an absent command", [good, "--limpid", os.path.join(folder, "absent")])
    faults += refused("another command", [good, "--limpid", shutil.which("true") or "/bin/true"])
    return faults


def refused(what, words):
    done = subprocess.run([sys.executable, os.path.abspath(__file__), *words], capture_output=True, text=True)
    lines = done.stderr.strip().splitlines()
    if done.returncode == 2 and len(lines) == 1 and lines[0].startswith("check.py: "):
        return []
    return [f"{what}: exit code {done.returncode}, standard error {done.stderr!r}; should be 2 and one sentence"]


BLANK = re.compile(r"\[(\d+[a-z]?|\.\.)\]")


def check_sheet(limpid, folder):
    """Each block of the sheet that begins with `$ limpid` must be what the command prints; commands run in order, in one
    folder. `[1a]` and `[..]` stand for what is blanked, a line `...` for lines left out, ` ...` for the end of a line."""
    faults, blanks = [], set()
    with open(SHEET, encoding="utf-8") as f:
        text = f.read()
    blocks = [b for b in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S) if b.startswith("$ limpid")]
    for block in blocks:
        command, _, shown = block.replace("\\\n", " ").partition("\n")
        blanks.update(BLANK.findall(shown))
        out = run(limpid, shlex.split(command)[2:], folder)
        out = "".join(" ".join(line.split()) + "\n" for line in out.splitlines() if line.strip())
        pattern = "(?m)^"
        for line in (" ".join(l.split()) for l in shown.splitlines() if l.strip()):
            if line == "...":
                pattern += r"(?:.*\n)*?"
                continue
            cut = line.endswith(" ...")
            if cut:
                line = line[:-4]
            parts = [re.escape(part) for part in BLANK.sub("\0", line).split("\0")]
            pattern += ".+?".join(parts) + (".*" if cut else "") + r"\n"
        if not re.search(pattern, out):
            faults.append(f"the sheet shows for `{command[2:]}` what it does not print; it prints:\n{out}")
    asked = set(re.findall(r"\*\*(\d+[a-z]?)\*\*", text))
    if asked != set(KINDS):
        faults.append(f"the sheet asks for {sorted(asked)}, the checker for {sorted(KINDS)}")
    if not blanks - {".."} <= set(KINDS):
        faults.append(f"the sheet has blanks {sorted(blanks)} that are no answers")
    return faults, len(blocks)


def self_test(limpid):
    expected, premises = solve(limpid)
    faults = [f"the sheet takes for granted that {sentence}; it is not so" for sentence, holds in premises if not holds]
    with tempfile.TemporaryDirectory() as folder:
        faults += check_marks(expected, folder)
        faults += check_errors(limpid, folder)
    with tempfile.TemporaryDirectory() as folder:
        more, blocks = check_sheet(limpid, folder)
        faults += more
    for fault in faults:
        print(f"FAILED {fault}")
    print(f"{len(KINDS)} answers, {len(premises)} premises, {blocks} blocks of output: {len(faults)} faults")
    return 1 if faults else 0


def find_limpid(named):
    if named:
        return os.path.abspath(named) if os.path.dirname(named) else (shutil.which(named) or named)
    built = os.path.join(HERE, "..", "..", "build", "limpid")
    return os.path.abspath(built) if os.path.exists(built) else (shutil.which("limpid") or "limpid")


def main():
    parser = argparse.ArgumentParser(prog="check.py", description="Checks the answers to the lab sheet why_8_gib.md.",
                                     epilog="Exit code 0: all right, 1: not all, 2: a file or command that cannot be used.")
    parser.add_argument("answers", nargs="?", help="your answers, a JSON file as --template prints it")
    parser.add_argument("--limpid", help="the limpid command; default: build/limpid of this tree, else that of the PATH")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--template", action="store_true", help="print an answer file with every answer open")
    what.add_argument("--solution", action="store_true", help="print the answers, for teachers")
    what.add_argument("--self-test", action="store_true", help="check the checker and the sheet")
    o = parser.parse_args()
    limpid = find_limpid(o.limpid)
    try:
        if o.template:
            print_answers(template())
            return 0
        if o.solution:
            print_answers(solve(limpid)[0])
            return 0
        if o.self_test:
            return self_test(limpid)
        if o.answers is None:
            raise Unusable("name your answer file; `check.py --template > answers.json` makes one")
        answers = read_answers(o.answers)
        return report(mark(answers, solve(limpid)[0]))
    except Unusable as e:
        print(f"check.py: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
