#!/usr/bin/env python3
"""Registers, shared memory and spills of every kernel, as ptxas reports them, against a table.

    nvcc_budgets.py --nvcc=NVCC --table=FILE --architectures=75,90 --flags="-std=c++20;-Ipath" SOURCE.cu ...

A row of the table: a pattern of the kernel's name, the most registers, the most static shared bytes, and words:
  vector       its PTX has 16-byte loads and stores of global memory
  spills=N     it may spill N bytes (without the word, none)
  only=90,100  the row counts for these architectures; another one serves the others
The first row that matches counts. A kernel without a row fails, and so does a row that nothing matches. With --ptx=A:B the
PTX of the first architecture is taken from those files instead of being compiled."""
import argparse
import fnmatch
import os
import re
import subprocess
import sys
import tempfile

LOAD = re.compile(r"\b{}\.(?:global|volatile\.global|relaxed\S*\.global)\S*\.v(?:4\.[bufs]32|2\.[bufs]64)\b")


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def demangle(names):
    if not names:
        return {}
    plain = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    short = [re.sub(r"^void ", "", p).replace("(anonymous namespace)::", "") for p in plain]
    return {name: re.sub(r"\((?!.*\)::).*\)$", "", s) for name, s in zip(names, short)}


def read_table(path):
    rows = []
    for number, line in enumerate(open(path), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) < 3:
            sys.exit(f"{path}:{number}: a row needs a pattern, registers and shared bytes: {line.strip()}")
        options = dict(w.split("=") if "=" in w else (w, "yes") for w in words[3:])
        unknown = set(options) - {"vector", "spills", "only"}
        if unknown:
            sys.exit(f"{path}:{number}: unknown word {unknown.pop()}")
        rows.append({"pattern": words[0], "registers": int(words[1]), "shared": int(words[2]), "vector": "vector" in options,
                     "spills": int(options.get("spills", 0)), "only": options.get("only", "").split(",") if "only" in options else None,
                     "line": number, "used": False})
    return rows


def kernels_of(ptx, ptxas, arch):
    """name -> what ptxas says about it, and whether its PTX has 16-byte accesses."""
    with tempfile.TemporaryDirectory() as folder:
        report = run([ptxas, "-v", f"-arch=sm_{arch}", ptx, "-o", os.path.join(folder, "out.cubin")])
    found = {}
    for part in report.split("Compiling entry function '")[1:]:
        name = part.split("'")[0]
        number = lambda pattern: int((re.search(pattern, part) or [0, 0])[1])
        found[name] = {"registers": number(r"Used (\d+) registers"), "shared": number(r"(\d+) bytes smem"),
                       "spills": number(r"(\d+) bytes spill stores")}
    for body in re.split(r"\.entry ", open(ptx).read())[1:]:
        name = re.match(r"[\w$]+", body)[0]
        found[name]["vector"] = all(re.search(LOAD.pattern.format(kind), body) for kind in ("ld", "st"))
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--architectures", required=True)
    parser.add_argument("--flags", default="")
    parser.add_argument("--ptx", default="")
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()
    ptxas = os.path.join(os.path.dirname(os.path.realpath(options.nvcc)), "ptxas")
    rows = read_table(options.table)
    problems, checked = [], 0
    stems = {os.path.splitext(os.path.basename(s))[0] for s in options.sources}
    with tempfile.TemporaryDirectory() as folder:
        for arch in options.architectures.split(","):
            if options.ptx:
                files = [f for f in options.ptx.split(":") if os.path.basename(f).split(".")[0] in stems]
                options.ptx = ""
            else:
                files = []
                for source in options.sources:
                    files.append(os.path.join(folder, os.path.basename(source) + f".{arch}.ptx"))
                    run([options.nvcc, *options.flags.split(";"), f"-arch=compute_{arch}", "-ptx", source, "-o", files[-1]])
            most = {}
            for ptx in files:
                kernels = kernels_of(ptx, ptxas, arch)
                plain = demangle(list(kernels))
                for name, facts in kernels.items():
                    checked += 1
                    row = next((r for r in rows if fnmatch.fnmatchcase(plain[name], r["pattern"]) and (not r["only"] or arch in r["only"])), None)
                    if row is None:
                        problems.append(f"sm_{arch} {plain[name]}: no row in the table; it has {facts}")
                        continue
                    row["used"] = True
                    best = most.setdefault(row["line"], dict.fromkeys(("registers", "shared", "spills"), 0))
                    for key in best:
                        best[key] = max(best[key], facts[key])
                        if facts[key] > row[key]:
                            problems.append(f"sm_{arch} {plain[name]}: {facts[key]} {key}, the table allows {row[key]}")
                    if row["vector"] and not facts["vector"]:
                        problems.append(f"sm_{arch} {plain[name]}: its PTX lacks 16-byte loads or stores of global memory")
            for row in rows:
                if row["line"] in most:
                    m = most[row["line"]]
                    print(f"sm_{arch:4} {row['pattern']:50} registers {m['registers']:3} of {row['registers']:3}  shared {m['shared']:5} of "
                          f"{row['shared']:5}  spills {m['spills']}")
    problems += [f"{options.table}:{r['line']}: no kernel matches {r['pattern']}" for r in rows if not r["used"] and not r["only"]]
    print(f"{checked} kernels checked, {len(problems)} problems")
    for problem in problems:
        print(problem)
    return 1 if problems or checked == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
