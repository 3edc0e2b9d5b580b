#!/usr/bin/env python3
"""Mutation test of the memory policies: changes one decision at a time and shows that the tests notice.

    tests/mutate_policies.py [--only TEXT] [--table tests/mutations.md]

Every comparison in the policies' .cpp files is moved by one (< to <=, == to !=, ...); MORE lists dropped merges, ignored
events and wrong bookkeeping. The sources are compiled in a temporary folder, away from the tree, with all policy tests in
one program. A mutant counts as caught when the program fails, crashes, hangs or does not compile. Needs g++, doctest,
zlib; about 5 s a mutant. Not part of ./check."""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILES = ["native_policy", "native_expandable", "tiled_policy", "list_policy", "bfc_policy", "buddy_policy",
         "rmm_pool_policy", "arena_policy", "paged_policy", "offline_policy", "offline_plan"]
TESTS = ["policy_fuzz", "stream_safety", "offline_plan", "offline_policy", "allocator_golden", "allocator_fuzz"]
FLIP = {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == "}
SKIP = re.compile(r"^\s*(//|#|template|for \()|LIMPID_ASSERT|LIMPID_CHECK|operator|catch|std::map<|std::set<")
# file, text, replacement, what it does. The text must occur; the first occurrence is changed.
MORE = [
    ("native_policy", "if (prev && next) {", "if (false) {", "no merge with both neighbours at once"),
    ("native_policy", "Block* prev = is_free(block->prev) ? block->prev : nullptr;", "Block* prev = nullptr;",
     "no merge with the block before"),
    ("native_policy", "Block* next = is_free(block->next) ? block->next : nullptr;", "Block* next = nullptr;",
     "no merge with the block behind"),
    ("native_policy", "  poll();\n", "", "events are not looked at"),
    ("native_policy", "  release_cached();\n", "", "no cache is given back before a failure"),
    ("native_policy", "  if (collects_garbage()) collect_garbage();\n", "", "no garbage collection"),
    ("native_policy", "  release_whole(pool_of(PoolKind::small));\n", "", "the small pool is never given back"),
    ("native_policy", "if (LIMPID_UNLIKELY(collects_garbage())) pool.searches++;", "", "the collector's clock stands"),
    ("native_expandable", "  if (left) absorb(tile, left);\n", "  if (left) insert_free(left);\n",
     "new pages do not merge with the free block before"),
    ("native_expandable", "  if (right) absorb(tile, right);\n", "  if (right) insert_free(right);\n",
     "new pages do not merge with the free block behind"),
    ("native_expandable", "is_free(tile->prev) ? tile->prev : tile;", "tile;", "room is sought from unmapped tiles only"),
    ("native_expandable", "  wait_for_stream(block->stream);\n", "", "pages are unmapped without waiting"),
    ("native_expandable", "total / 8", "total / 4", "the range is larger"),
    ("tiled_policy", "  while (!block->stream_uses->empty()) {", "  while (false) {", "no event is recorded"),
    ("tiled_policy", "  if (stream == block->stream) return;\n", "", "the owner's stream counts as another one"),
    ("tiled_policy", "      device_.event_wait(queue.front().event);\n", "", "pending blocks are not waited for"),
    ("tiled_policy", "!queue.empty() && device_.event_query(queue.front().event)", "!queue.empty()",
     "events are taken as reached"),
    ("tiled_policy", "    if (!is_unmapped(neighbour)) continue;\n", "    continue;\n", "unmapped tiles do not join"),
    ("tiled_policy", "  wait_for_events();\n", "", "release without waiting for pending blocks"),
    ("tiled_policy", "  if (block->event_count > 0 || block->stream_uses) return;\n", "",
     "a block is free after its first event"),
    ("tiled_policy", "      if (any_range) TiledPolicy::wait_for_stream(stream);\n", "",
     "a dying allocator unmaps without waiting"),
    ("tiled_policy", "if (!within_limit(bytes)) return nullptr;", "", "the limit is ignored"),
    ("list_policy", "  join_own_neighbours(block);\n", "", "no merge on free"),
    ("list_policy", "    release_cached();\n", "", "no cache is given back before a failure"),
    ("list_policy", "  poll();\n", "", "events are not looked at"),
    ("bfc_policy", "  if (block && !grown) list.next_region *= 2;\n", "", "regions do not double"),
    ("buddy_policy", "    if (!is_free(buddy) || buddy->size != block->size) break;\n", "    break;\n", "buddies stay apart"),
    ("rmm_pool_policy", "    wait_for_stream(other->stream);\n    Block*", "    Block*", "steals without waiting"),
    ("rmm_pool_policy", "    wait_for_stream(other->stream);\n    while", "    while", "takes all without waiting"),
    ("rmm_pool_policy", "    join_own_neighbours(block);\n", "", "a stolen block is not merged"),
    ("rmm_pool_policy", "      if (next->stream != whole->stream) wait_for_stream(next->stream);\n", "",
     "streams are not waited for before a segment goes"),
    ("arena_policy", "wait_for_stream(other);", ";", "memory changes its stream without waiting"),
    ("arena_policy", "block->stream = kMixed;", ";", "forgets that several streams used a block"),
    ("arena_policy", "    superblocks_.erase(owner);\n    take_back(block);", "    insert_free(block);",
     "an empty superblock is not returned"),
    ("arena_policy", "  poll();\n", "", "events are not looked at"),
    ("paged_policy", "  if (bytes >= kind_.least) unmap_free_pages(kind, stream, bytes);\n", "", "nothing is stitched"),
    ("paged_policy", "    std::reverse(blocks.begin() + static_cast<std::ptrdiff_t>(first), blocks.end());\n", "",
     "the smallest blocks give their pages first"),
    ("paged_policy", "|| is_idle(list->stream)", "|| true", "pages of busy streams are taken"),
    ("offline_policy", "if (!shared.count(it->second)) ", "", "a block that another stream uses is planned for reuse"),
    ("offline_policy", "out.plan.height + plan.offsets[i]", "plan.offsets[i]", "streams share memory"),
    ("offline_policy", "    remove_free(neighbour);\n    absorb(block, neighbour);\n", "", "gaps do not merge"),
]


def run(command, **more):
    return subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


class Bench:
    def __init__(self, folder):
        self.folder = folder
        for room in ("base", "memory", "tests"):
            shutil.copytree(f"{ROOT}/{room}", f"{folder}/{room}", ignore=shutil.ignore_patterns("golden"))
        os.makedirs(f"{folder}/include")
        os.symlink(folder, f"{folder}/include/limpid")
        self.flags = (f"-std=c++20 -O1 -DNDEBUG -w -I{folder}/include -I{folder}/tests "
                      f"-DLIMPID_TEST_DATA='\"{ROOT}/tests/golden\"'")
        sources = [f"base/{f}" for f in os.listdir(f"{folder}/base") if f.endswith(".cpp")]
        sources += [f"memory/{f}" for f in os.listdir(f"{folder}/memory") if f.endswith(".cpp")]
        sources += ["tests/main.cpp"] + [f"tests/test_{t}.cpp" for t in TESTS]
        self.objects = {}
        for source in sources:
            error = self.compile(source)
            if error:
                sys.exit(f"{source} does not compile:\n{error}")

    def compile(self, source):
        target = f"{self.folder}/{source.replace('/', '_')}.o"
        done = run(f"g++ {self.flags} -c {self.folder}/{source} -o {target}")
        self.objects[source] = target
        return done.stdout if done.returncode else ""

    def test(self):
        done = run(f"g++ -o {self.folder}/all {' '.join(self.objects.values())} -lz -pthread")
        if done.returncode:
            return "does not link"
        try:
            done = run(f"{self.folder}/all -aa=1 -tce='long:*'", timeout=300)
        except subprocess.TimeoutExpired:
            return "hangs"
        if done.returncode == 0:
            return ""
        case = re.search(r"TEST CASE:\s+(.*)", done.stdout)
        return case.group(1) if case else f"ends with {done.returncode}"


def mutants():
    for name in FILES:
        text = open(f"{ROOT}/memory/{name}.cpp").read()
        in_check, at = False, 0
        for number, line in enumerate(text.splitlines(True), 1):
            if re.search(r"::check\w*\(|^void check_|^void check\w*\(|::describe|to_string\(", line):
                in_check = True  # the invariants themselves are not mutated
            if line.startswith("}"):
                in_check = False
            if not in_check and not SKIP.search(line):
                for match in re.finditer(r" (<|<=|>|>=|==|!=) ", line):
                    new = text[:at + match.start()] + FLIP[match.group()] + text[at + match.end():]
                    yield name, number, f"`{match.group().strip()}` to `{FLIP[match.group()].strip()}` in `{line.strip()}`", new
            at += len(line)
    for name, old, replacement, what in MORE:
        text = open(f"{ROOT}/memory/{name}.cpp").read()
        if old not in text:
            sys.exit(f"memory/{name}.cpp has no longer: {old}")
        number = text[:text.index(old)].count("\n") + 1
        yield name, number, what, text.replace(old, replacement, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="only files whose name contains this")
    parser.add_argument("--table", help="write the result here, as Markdown")
    options = parser.parse_args()
    rows, survived = [], 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder)
        if bench.test():
            sys.exit(f"the tests fail without any mutation: {bench.test()}")
        dirty = None  # the file whose object is that of a mutant
        for name, number, what, new in mutants():
            if options.only not in name:
                continue
            if dirty not in (None, name):
                bench.compile(f"memory/{dirty}.cpp")
            dirty = name
            path = f"{folder}/memory/{name}.cpp"
            former = open(path).read()
            open(path, "w").write(new)
            verdict = "does not compile" if bench.compile(f"memory/{name}.cpp") else bench.test()
            open(path, "w").write(former)
            survived += 0 if verdict else 1
            rows.append((f"{name}.cpp:{number}", what.replace("|", "\\|"), verdict or "**survived**"))
            print(*rows[-1], sep=" | ", flush=True)
    summary = f"{len(rows)} mutants, {len(rows) - survived} caught, {survived} survived."
    print(summary)
    if options.table:
        with open(options.table, "w") as file:
            file.write("# Mutation test of the memory policies\n\nWritten by `tests/mutate_policies.py`. " + summary +
                       "\n\n| place | change | noticed by |\n|---|---|---|\n")
            file.writelines("| " + " | ".join(row) + " |\n" for row in rows)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
