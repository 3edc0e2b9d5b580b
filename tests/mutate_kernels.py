#!/usr/bin/env python3
"""Mutation test of the CUDA kernels: takes out each barrier, widens each bound, and shows that the tests notice.

    tests/mutate_kernels.py [--build build] [--only TEXT] [--table tests/kernel_mutations.md] [--work FOLDER]

In every __global__ and __device__ function of cuda/kernels and of the test layer's examples, one at a time: a
__syncthreads(), __syncwarp() or __threadfence() is removed, "<" becomes "<=", ">=" becomes ">". The kernel libraries that
contain the file are compiled anew with the flags of the build folder, and their tests run: those under the access checker
first, then those that only try orders. A mutant is caught when a test fails, crashes, hangs or does not compile (the build's
warnings are errors). EQUIVALENT
names the mutants that behave like the original, each with its reason. The build folder must be up to date; nothing in it is
changed. Fails when fewer than 95 % of the mutants that are not equivalent are caught. Not part of the common tests: some
seconds to a minute a mutant. With --work the folder stays, and a later call goes on where this one stopped."""
import argparse
import glob
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SYNC = {"__syncthreads": "barrier removed", "__syncwarp": "warp barrier removed", "__threadfence": "fence removed"}
# file, line (text, spaces aside), change, reason.
EQUIVALENT = [
    ("example_kernels.cu", "__syncthreads();  // the array may still be read from the last call", "barrier removed",
     "of the callers the only one that calls it twice has a barrier in between"),
    ("example_kernels.cu", "__syncthreads();", "barrier removed [2]", "no caller calls it twice"),
    ("example_kernels.cu", "for (int first = 0; first < k; first += tile) {", "< to <=",
     "one round more adds zeros: every load is guarded by its own bound"),
    ("example_kernels.cu", "for (int offset = 1; offset < 16; offset *= 2) {", "< to <=", "no lane of 16 has one 16 below it"),
    ("example_kernels.cu", "r = r < 0 ? -r : (r > (std::int64_t(1) << 40) ? r - (r >> 5) : r);", "< to <=", "0 is its own negative"),
]


def run(command, **more):
    return subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


class Build:
    """What the build folder knows: kernel objects with their commands and headers, and the tests that are linked to them."""

    def __init__(self, folder):
        self.folder = os.path.abspath(folder)
        ninja = open(f"{self.folder}/build.ninja").read()
        self.compile, self.library_objects, self.headers = {}, {}, {}
        for entry in json.load(open(f"{self.folder}/compile_commands.json")):
            if not entry["file"].endswith(".cu"):
                continue
            target = re.search(r" -o (\S+)", entry["command"])[1]
            library = re.search(r"(\S*)CMakeFiles/(\w+)\.dir/", target)
            self.compile[target] = (entry["command"], entry["file"])
            self.library_objects.setdefault(f"{library[1]}lib{library[2]}.a", []).append(target)
        deps = run(f"ninja -C {self.folder} -t deps {' '.join(self.compile)}").stdout
        for part in re.split(r"\n(?=\S+: #deps)", deps):
            target = part.split(":")[0].split("\n")[-1]
            self.headers[target] = {os.path.realpath(os.path.join(self.folder, line.strip())) for line in part.splitlines()[1:]}
        self.tests = {}  # executable -> its kernel libraries
        for line in re.findall(r"^build (tests/test_\S+): CXX_EXECUTABLE_LINKER.*", ninja, re.M):
            row = re.search(rf"^build {re.escape(line)}: .*$", ninja, re.M)[0]
            libraries = [word for word in row.split("||")[0].split() if word in self.library_objects]
            if libraries:
                self.tests[line] = libraries

    def users(self, file):
        """The kernel objects that contain the file."""
        return [target for target in self.compile if os.path.realpath(file) in self.headers.get(target, ())]

    def tests_of(self, targets):
        """Executables linked to one of the objects, those under the access checker first."""
        libraries = {lib for lib, objects in self.library_objects.items() if set(objects) & set(targets)}
        found = [t for t, libs in self.tests.items() if libraries & set(libs)]
        return sorted(found, key=lambda t: "check" not in t)


def try_mutant(build, file, text, work):
    """What notices the changed file, or an empty string."""
    overlay = os.path.join(work, "include")
    room = os.path.relpath(file, ROOT)
    changed = os.path.join(overlay, "limpid", room)
    os.makedirs(os.path.dirname(changed), exist_ok=True)
    open(changed, "w").write(text)
    targets = build.users(file)
    objects = {}
    try:
        for test in build.tests_of(targets):
            link = run(f"ninja -C {build.folder} -t commands {test}").stdout.strip().splitlines()[-1]
            for library in build.tests[test]:
                members = []
                for target in build.library_objects[library]:
                    if target in targets and target not in objects:
                        command, source = build.compile[target]
                        objects[target] = os.path.join(work, target.replace("/", "_"))
                        source_now = changed if os.path.realpath(source) == os.path.realpath(file) else source
                        command = command.replace(f" -o {target}", f" -o {objects[target]}").replace(f" -c {source}", f" -c {source_now}")
                        command = re.sub(r" -MD -MT \S+ -MF \S+", "", command).replace(" -I", f" -I{overlay} -I", 1)
                        if run(command, cwd=build.folder).returncode:
                            return "does not compile"
                    members.append(objects.get(target, target))
                link = link.replace(f" {library}", " " + " ".join(members), 1)
            program = os.path.join(work, "mutant")
            done = run(link.replace(f" -o {test}", f" -o {program}"), cwd=build.folder)
            if done.returncode:
                return "does not link"
            done = run(f"timeout -s KILL 300 {shlex.quote(program)} -aa=1 '--test-case-exclude=long:*'", cwd=build.folder)
            name = os.path.basename(test)
            if done.returncode in (137, -9):
                return f"{name}: hangs"
            if done.returncode:
                finding = re.search(r"(divergent barrier|race in \w+ memory|(?:read|write) of \d+ bytes[^,(]*|read of uninitialised \w+ memory|deadlock)",
                                    done.stdout)
                case = re.search(r"TEST CASE:\s+(.*)", done.stdout)
                return f"{name}: {finding[1] if finding else case[1] if case else f'ends with {done.returncode}'}"
        return ""
    finally:
        os.remove(changed)
        for path in objects.values():
            if os.path.exists(path):
                os.remove(path)


def mutants(files):
    """Of each: file, line number, line, change, text of the whole file. Equal changes of equal lines get a number."""
    seen = {}
    for file in files:
        lines = open(file).read().split("\n")
        inside = False
        for number, line in enumerate(lines):
            if "__global__" in line or "__device__" in line or "LIMPID_HD" in line:
                inside = not line.rstrip().endswith(";")
            if line.startswith("}"):
                inside = False
            if not inside or line.strip().startswith(("//", "#", "template", "static_assert")):
                continue
            code = line.split("//")[0]
            changes = [(m.start(), m.end(), "", SYNC[m[1]]) for m in re.finditer(r"(__syncthreads|__syncwarp|__threadfence)\([^;()]*(?:\([^()]*\))*[^;]*\);", code)]
            changes += [(m.start(), m.end(), " <= ", "< to <=") for m in re.finditer(r" < ", code)]
            changes += [(m.start(), m.end(), " > ", ">= to >") for m in re.finditer(r" >= ", code)]
            for begin, end, new, change in sorted(changes):
                text = "\n".join(lines[:number] + [line[:begin] + (new or ";") + line[end:]] + lines[number + 1:])
                key = (os.path.basename(file), line.strip(), change)
                seen[key] = seen.get(key, 0) + 1
                yield file, number + 1, line.strip(), change + (f" [{seen[key]}]" if seen[key] > 1 else ""), text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=f"{ROOT}/build")
    parser.add_argument("--only", default="", help="mutants whose 'file:line change' contains this text")
    parser.add_argument("--table", default="")
    parser.add_argument("--work", default="")
    options = parser.parse_args()
    build = Build(options.build)
    files = [f"{ROOT}/tests/cudasim/example_kernels.cu"] + sorted(glob.glob(f"{ROOT}/cuda/kernels/*.cu*"))
    work = options.work or tempfile.mkdtemp()
    os.makedirs(work, exist_ok=True)
    known_path = os.path.join(work, "known.json")
    known = json.load(open(known_path)) if os.path.exists(known_path) else {}
    reasons = {(f, " ".join(line.split()), change): reason for f, line, change, reason in EQUIVALENT}
    unused = set(reasons)
    rows, caught, equivalent, survived = [], 0, 0, 0
    for file, number, line, change, text in mutants(files):
        name = os.path.basename(file)
        if options.only not in f"{name}:{number} {change}":
            continue
        if not build.tests_of(build.users(file)):
            sys.exit(f"no test in {build.folder} is linked to {name}: build it first")
        key = (name, " ".join(line.split()), change)
        if key in reasons:
            unused.discard(key)
            equivalent += 1
            verdict = f"equivalent: {reasons[key]}"
        else:
            memo = json.dumps([name, line, change, hash_of(text)])
            if memo not in known:
                known[memo] = try_mutant(build, file, text, work)
                json.dump(known, open(known_path, "w"))
            verdict = known[memo] or "SURVIVES"
            caught += bool(known[memo])
            survived += not known[memo]
        rows.append((f"{name}:{number}", line, change, verdict))
        print(f"{name}:{number} {change}: {verdict}", flush=True)
    total = caught + survived
    share = 100 * caught / total if total else 0
    summary = f"{len(rows)} mutants: {caught} caught, {equivalent} equivalent (reasons in the table), {survived} survive. {share:.1f} % of those that differ are caught."
    print(summary)
    if options.table:
        with open(options.table, "w") as out:
            out.write("# Mutation test of the CUDA kernels\n\nWritten by `tests/mutate_kernels.py`: a barrier is removed or a bound widened, and a "
                      f"test must fail.\nFiles: {', '.join(sorted({r[0].split(':')[0] for r in rows}))}. The line numbers are those of the run.\n\n**{summary}**\n\n| place | line | change | caught by |\n|---|---|---|---|\n")
            for place, line, change, verdict in rows:
                out.write(f"| {place} | `{line.replace('|', chr(92) + '|')}` | {change} | {verdict} |\n")
    if not options.only:
        for file, line, change in sorted(unused):
            print(f"EQUIVALENT names a mutant that is gone: {file}: {line}: {change}")
    return 0 if total and share >= 95 else 1


def hash_of(text):
    import hashlib
    return hashlib.sha256(text.encode()).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
