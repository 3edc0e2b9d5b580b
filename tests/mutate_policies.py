#!/usr/bin/env python3
"""Mutation test of the memory policies: changes one decision at a time and shows that the tests notice.

    tests/mutate_policies.py [--only TEXT] [--work FOLDER] [--table tests/mutations.md]

Every comparison of the policies is moved by one (< to <=, == to !=, ...), plain counting loops aside; MORE lists dropped
merges, ignored events and wrong bookkeeping. The sources are compiled in a folder of their own, away from the tree, with
all policy tests in one program. A mutant counts as caught when the program fails, crashes, hangs or does not compile.
EQUIVALENT names the mutants that behave like the original, each with its reason. With --work the folder stays, and a
later call goes on where this one stopped. Needs g++, doctest, zlib; 5 s to a minute a mutant. Not part of ./check."""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILES = ["native_policy.cpp", "native_expandable.cpp", "tiled_policy.cpp", "list_policy.cpp", "bfc_policy.cpp",
         "buddy_policy.cpp", "rmm_pool_policy.cpp", "arena_policy.cpp", "paged_policy.cpp", "offline_policy.cpp",
         "offline_plan.cpp", "bfc_policy.h", "buddy_policy.h", "rmm_pool_policy.h", "arena_policy.h", "offline_policy.h",
         "native_policy.h", "tiled_policy.h", "free_list.h"]
# The sources that a mutant of a header is compiled into: those that call what is mutated, not all that see it.
USERS = {"tiled_policy.h": ["tiled_policy", "native_policy", "list_policy"], "free_list.h": ["native_policy", "list_policy"],
         "native_policy.h": ["native_policy", "native_expandable"]}
TESTS = ["policy_fuzz", "stream_safety", "offline_plan", "offline_policy", "allocator_golden", "allocator_fuzz",
         "policies", "policy_edges"]
FLIP = {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == "}
SKIP = re.compile(r"^\s*(//|#|template)|LIMPID_ASSERT|LIMPID_CHECK|operator|catch|std::map<|std::set<")
COUNTING = re.compile(r"for \(std::size_t (\w+) = [^;]*; \1 < [^;&]*; \1\+\+\)")
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


# file, line (text, spaces aside), change, reason. The comparison of that line can be moved without any difference.
EQUIVALENT = [
    ("tiled_policy.cpp",
     "return a->size != b->size ? a->size > b->size : comes_before(a, b);",
     "> to >=", "this branch is for different sizes"),
    ("tiled_policy.cpp",
     "if (books_.rows.reserved <= keep) return;",
     "<= to <", "at the border no byte more may go, so no block is small enough"),
    ("tiled_policy.h",
     "static bool comes_before(const Block* a, const Block* b) { return place_of(a) < place_of(b); }",
     "< to <=", "two blocks never lie at the same place"),
    ("native_policy.cpp",
     "for (std::size_t divisions : settings_.roundup_power2_divisions) has_divisions_ = has_divisions_ || divisions > 1;",
     "> to >=", "one division rounds as none does: the slower road to the same size"),
    ("native_policy.cpp",
     "if (bytes < kMinBlock) return kMinBlock;",
     "< to <=", "512 bytes round to 512 on either road"),
    ("native_policy.cpp",
     "if (divisions > 1 && bytes > kMinBlock * divisions) {",
     "> to >= [2]", "at the border the steps are 512 bytes, as without divisions"),
    ("native_policy.cpp",
     "if (books_.rows.reserved <= threshold) return;",
     "<= to <", "at the threshold the target is 0 bytes: nothing is collected"),
    ("native_expandable.cpp",
     "for (Block* b = first; b && room < rounded && (is_free(b) || b->state == BlockState::unmapped); b = b->next) {",
     "< to <=", "counts one block more when there is room enough already"),
    ("tiled_policy.cpp",
     "sign > 0 ? books_.free_added(*block) : books_.free_removed(*block);",
     "> to >=", "the sign is 1 or -1"),
    ("buddy_policy.cpp",
     "while (block->size < block->segment->size) {",
     "< to <=", "a block as large as its segment has no neighbour: the loop ends there"),
    ("arena_policy.cpp",
     "if (!first || block->order < first->order) first = block;",
     "< to <=", "two blocks never have the same order, which is their place"),
    ("arena_policy.cpp",
     "if (rounded > kSuperblock) return take_global(rounded, stream);",
     "> to >=", "a request of a whole superblock takes one from the global arena either way, and its free returns it whole"),
    ("offline_plan.cpp",
     "return buffers[a].start != buffers[b].start ? buffers[a].start < buffers[b].start : a < b;",
     "< to <=", "this branch is for different starts"),
    ("offline_plan.cpp",
     "return buffers[a].start != buffers[b].start ? buffers[a].start < buffers[b].start : a < b;",
     "< to <= [2]", "two indices are different"),
    ("offline_plan.cpp",
     "return buffers[a].start != buffers[b].start ? buffers[a].start < buffers[b].start : a < b;",
     "< to <= [3]", "this branch is for different starts"),
    ("offline_plan.cpp",
     "return buffers[a].start != buffers[b].start ? buffers[a].start < buffers[b].start : a < b;",
     "< to <= [4]", "two indices are different"),
    ("offline_plan.cpp",
     "if (latest_[middle] <= b.start) return;",
     "<= to <", "prunes less; what is then visited is tested one by one"),
    ("offline_plan.cpp",
     "return x != y ? x > y : buffers[a].size > buffers[b].size;",
     "> to >=", "this branch is for different weights"),
    ("offline_plan.cpp",
     "if (best_ <= lower_bound_ || !finished_) return;",
     "<= to <", "goes on searching after the optimum: slower, the same plan"),
    ("offline_plan.cpp",
     "if (height < best_) {",
     "< to <=", "branches that reach the best height are cut before"),
    ("offline_plan.cpp",
     "if (from + buffers_[i].size >= best_) return;",
     ">= to >", "cuts less: slower, the same optimum"),
    ("offline_plan.cpp",
     "if (lowest[t] != SIZE_MAX && lowest[t] + waiting_[t] >= best_) return;",
     ">= to >", "cuts less: slower, the same optimum"),
    ("offline_plan.cpp",
     "if (rest < last || (rest == last && count > 0 && i < last_index)) continue;",
     "> to >=", "the first buffer has index 0 behind it: no index is smaller"),
    ("offline_plan.cpp",
     "if (rest < last || (rest == last && count > 0 && i < last_index)) continue;",
     "< to <= [2]", "the buffer placed last is no candidate any more"),
    ("offline_plan.cpp",
     "if (a.offset != b.offset) return a.offset < b.offset;",
     "< to <=", "this branch is for different offsets"),
    ("offline_plan.cpp",
     "return buffers_[a.index].size != buffers_[b.index].size ? buffers_[a.index].size > buffers_[b.index].size",
     "!= to ==", "another order of trials: another speed, the same optimum"),
    ("offline_plan.cpp",
     "return buffers_[a.index].size != buffers_[b.index].size ? buffers_[a.index].size > buffers_[b.index].size",
     "> to >=", "this branch is for different sizes"),
    ("offline_plan.cpp",
     ": a.index < b.index;",
     "< to <=", "two indices are different"),
    ("offline_plan.cpp",
     "if (groups.empty() || buffers[i].start >= end) groups.emplace_back();",
     ">= to >", "groups that only touch are searched as one: slower, the same optimum"),
    ("offline_plan.cpp",
     "if (buffers[i].size > 0) order.push_back(i);",
     "> to >=", "buffers of no bytes are searched too: slower, the same optimum"),
    ("free_list.h",
     "if (chunks_.size() > 1) {",
     "> to >=", "the search over one chunk ends at that chunk; of an empty one it reads before the start, which only a sanitizer sees"),
    ("free_list.h",
     "if (at.index > lower.count) at = {at.chunk + 1, at.index - lower.count};",
     "> to >=", "the end of one chunk and the start of the next are the same place in the order"),
    ("free_list.h",
     "if (c.count == 0 && chunks_.size() > 1) chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(at.chunk));",
     "> to >=", "the last chunk goes too, and comes back with the next block"),
    ("free_list.h",
     "return entry.size != size ? entry.size < size : entry.block->order < order;",
     "< to <=", "this branch is for different sizes"),
]


def run(command, **more):
    return subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


class Bench:
    def __init__(self, folder):
        self.folder = folder
        for room in ("base", "memory", "tests"):
            if not os.path.exists(f"{folder}/{room}"):
                shutil.copytree(f"{ROOT}/{room}", f"{folder}/{room}", ignore=shutil.ignore_patterns("golden"))
        if not os.path.exists(f"{folder}/include"):
            os.makedirs(f"{folder}/include")
            os.symlink(folder, f"{folder}/include/limpid")
        self.flags = (f"-std=c++20 -O1 -DNDEBUG -w -I{folder}/include -I{folder}/tests "
                      f"-DLIMPID_TEST_DATA='\"{ROOT}/tests/golden\"'")
        sources = [f"base/{f}" for f in os.listdir(f"{folder}/base") if f.endswith(".cpp")]
        sources += [f"memory/{f}" for f in os.listdir(f"{folder}/memory") if f.endswith(".cpp")]
        sources += ["tests/main.cpp"] + [f"tests/test_{t}.cpp" for t in TESTS]
        self.objects = {source: f"{folder}/{source.replace('/', '_')}.o" for source in sources}
        for source in sources:
            if not os.path.exists(self.objects[source]):
                error = self.compile(source)
                if error:
                    sys.exit(f"{source} does not compile:\n{error}")

    def compile(self, source):
        target = self.objects[source]
        part = target + ".part"
        done = run(f"g++ {self.flags} -c {self.folder}/{source} -o {part}")
        if done.returncode:
            return done.stdout
        os.replace(part, target)
        return ""

    def users(self, name):
        """The sources in which a mutant of memory/NAME counts."""
        return [f"memory/{user}.cpp" for user in USERS.get(name, [name.split(".")[0]])]

    def test(self, users=()):
        # Those that were compiled with the mutant come first: of an inline function's copies the linker takes the first.
        objects = sorted(self.objects.items(), key=lambda item: item[0] not in users)
        done = run(f"g++ -o {self.folder}/all {' '.join(path for _, path in objects)} -lz -pthread")
        if done.returncode:
            return "does not link"
        done = run(f"ulimit -v 8000000; ulimit -t 120; timeout -s KILL 900 {self.folder}/all -aa=1 -tce='long:*'")
        if done.returncode in (137, 152, -9, -24):  # 2 minutes of CPU time, or 15 minutes: the tests take 10 s
            return "hangs"
        if done.returncode == 0:
            return ""
        case = re.search(r"TEST CASE:\s+(.*)", done.stdout)
        return case.group(1) if case else f"ends with {done.returncode}"

    def verdict(self, name, text):
        path, users = f"{self.folder}/memory/{name}", self.users(name)
        former = open(path).read()
        try:
            open(path, "w").write(text)
            for source in users:
                if self.compile(source):
                    return "does not compile"
            return self.test(users)
        finally:
            open(path, "w").write(former)
            for source in users:  # compiled again when it is needed: at the next mutant of another file
                os.remove(self.objects[source])

    def restore(self, besides):
        for source, target in self.objects.items():
            if not os.path.exists(target) and source not in besides:
                self.compile(source)


def mutants():
    """Of each: file, line number, line, change, text of the whole file. Equal changes of equal lines get a number."""
    seen = {}
    for name, number, line, change, new in all_mutants():
        count = seen[name, line, change] = seen.get((name, line, change), 0) + 1
        yield name, number, line, change + (f" [{count}]" if count > 1 else ""), new


def all_mutants():
    for name in FILES:
        text = open(f"{ROOT}/memory/{name}").read()
        in_check, at = False, 0
        for number, line in enumerate(text.splitlines(True), 1):
            if re.search(r"::check\w*\(|^void check_|^void check\w*\(|::describe|to_string\(", line) and line.endswith("{\n"):
                in_check = True  # the invariants themselves are not mutated
            if line.startswith("}"):
                in_check = False
            if not in_check and not SKIP.search(line):
                counting = COUNTING.search(line)
                for match in re.finditer(r" (<|<=|>|>=|==|!=) ", line.split(" // ")[0]):
                    if counting and counting.start() <= match.start() < counting.end():
                        continue
                    new = text[:at + match.start()] + FLIP[match.group()] + text[at + match.end():]
                    yield name, number, line.strip(), f"{match.group().strip()} to {FLIP[match.group()].strip()}", new
            at += len(line)
    for name, old, replacement, what in MORE:
        name += ".cpp"
        text = open(f"{ROOT}/memory/{name}").read()
        if old not in text:
            sys.exit(f"memory/{name} has no longer: {old}")
        number = text[:text.index(old)].count("\n") + 1
        yield name, number, old.strip().splitlines()[0].strip(), what, text.replace(old, replacement, 1)


def reason_of(name, line, change):
    for file, text, what, reason in EQUIVALENT:
        if file == name and text == line and what == change:
            return reason
    return None


def write_table(path, rows):
    def cell(text):
        return text.replace("|", "\\|")
    caught = sum(kind == "caught" for *_, kind, _ in rows)
    equivalent = sum(kind == "equivalent" for *_, kind, _ in rows)
    waiting = sum(kind == "open" for *_, kind, _ in rows)
    with open(path, "w") as file:
        file.write("# Mutation test of the memory policies\n\n"
                   "Written by `tests/mutate_policies.py`: one decision of a policy is changed, and the policy tests must\n"
                   "fail. The line numbers are those of the run.\n\n"
                   f"**{len(rows)} mutants: {caught} caught, {equivalent} equivalent (reasons in the table), {waiting} not run, "
                   f"{len(rows) - caught - equivalent - waiting} unexplained.**\n\n"
                   "| place | line | change | caught by |\n|---|---|---|---|\n")
        for name, number, line, change, kind, text in rows:
            text = {"caught": text, "equivalent": "equivalent: " + text, "survived": "**survived**",
                    "open": "not run"}[kind]
            file.write(f"| {name}:{number} | `{cell(line)}` | {cell(change)} | {cell(text)} |\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="only files whose name contains this")
    parser.add_argument("--work", help="compile here, keep objects and results, go on from what is there")
    parser.add_argument("--run-none", action="store_true", help="only the table, from what --work has")
    parser.add_argument("--table", help="write the result here, as Markdown")
    options = parser.parse_args()
    folder = options.work or tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    results = f"{folder}/results.jsonl"
    known = {}
    if os.path.exists(results):
        for entry in map(json.loads, open(results)):
            known[tuple(entry["mutant"])] = entry["verdict"]
    rows, bench = [], None
    for name, number, line, change, new in mutants():
        if options.only not in name:
            continue
        reason, key = reason_of(name, line, change), (name, line, change)
        if key not in known and options.run_none:
            rows.append((name, number, line, change, "open", ""))
            continue
        if key not in known:
            if not bench:
                bench = Bench(folder)
                failure = bench.test()
                if failure:
                    sys.exit(f"the tests fail without any mutation: {failure}")
            bench.restore(bench.users(name))
            known[key] = bench.verdict(name, new)
            with open(results, "a") as file:
                file.write(json.dumps({"mutant": key, "verdict": known[key]}) + "\n")
        kind, text = ("caught", known[key]) if known[key] else ("equivalent", reason) if reason else ("survived", "")
        rows.append((name, number, line, change, kind, text))
        print(f"{name}:{number} | {line} | {change} | {kind} | {text}", flush=True)
    survived = sum(kind == "survived" for *_, kind, _ in rows)
    print(f"{len(rows)} mutants, {survived} survived without a reason")
    if options.table:
        write_table(options.table, rows)
    if not options.work:
        shutil.rmtree(folder)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
