#!/usr/bin/env python3
"""How well each allocation policy packs training whose shapes stay or change: recorded here, replayed here.

    bench/fragmentation/fragmentation.py [--build build] [--only TEXT] [--no-scan]

Builds `record_traces` and `limpid` in a build folder that was configured with -DLIMPID_BENCH=ON, records the traces (dry,
seeded: the same on every machine), runs `limpid mem replay --policy all` on each, and prints Markdown. A second table
holds the claims of the literature against the figures. Takes a few minutes, most of them in the scans for C*."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIB = 1 << 20


def mib(value):
    return "-" if value is None else f"{value / MIB:,.1f}"


def external(policy):
    """Fragmentation: what the policy reserved at its peak beyond the most that was ever live."""
    return policy["peak_reserved"] - policy["peak_live"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default=f"{ROOT}/build")
    parser.add_argument("--only", default="", help="only traces whose name contains this")
    parser.add_argument("--no-scan", action="store_true", help="leave out C*, which takes nearly all of the time")
    options = parser.parse_args()
    subprocess.run(["cmake", "--build", options.build, "--target", "record_traces", "limpid_command"], check=True,
                   stdout=sys.stderr)
    limpid = f"{options.build}/limpid"
    claims = []
    with tempfile.TemporaryDirectory() as folder:
        recorded = subprocess.run([f"{options.build}/record_traces", folder], check=True, stdout=subprocess.PIPE, text=True)
        for trace in map(json.loads, recorded.stdout.splitlines()):
            if options.only not in trace["name"]:
                continue
            command = [limpid, "mem", "replay", trace["trace"], "--policy", "all", "--json"]
            command += ["--no-scan"] if options.no_scan else []
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            report = json.loads(out.stdout.splitlines()[-1])
            print(f"\n**{trace['name']}**: {trace['steps']} steps, {report['allocations']:,} allocations, "
                  f"lower bound {mib(report['lower_bound'])} MiB\n")
            print("| policy | peak reserved, MiB | above the lower bound | fragmentation | C*, MiB | device calls |")
            print("|---|---|---|---|---|---|")
            policies = {p["policy"]: p for p in report["policies"]}
            for name, p in policies.items():
                calls = sum(p["device_calls"][c] for c in ("reserve", "release", "map", "unmap"))
                least = p["scan"]["smallest"] if "scan" in p else None
                tilde = "" if "scan" not in p or p["scan"]["exact"] else "~"
                print(f"| {name} | {mib(p['peak_reserved'])} | {external(p) / report['lower_bound']:.1%} | "
                      f"{p['fragmentation']['fragmentation_ratio']:.3f} | {tilde}{mib(least)} | {calls:,} |")
            # One slab: it runs in what it reserves and in nothing less.
            print(f"| offline plan | {mib(trace['peak_reserved'])} | {external(trace) / report['lower_bound']:.1%} | "
                  f"{1 - trace['utilisation']:.3f} | {mib(trace['peak_reserved'])} | {trace['device_calls']:,} |")
            assert trace["followed"], trace
            assert trace["peak_live"] == report["lower_bound"]

            def lowered(name):
                native = policies["native"]["peak_reserved"]
                return (native - policies[name]["peak_reserved"]) / native
            best = min(policies.values(), key=lambda p: p["peak_reserved"])
            claims.append((trace["name"], policies["native"]["fragmentation"]["fragmentation_ratio"],
                           policies["expandable"]["fragmentation"]["fragmentation_ratio"],
                           policies["stitch"]["fragmentation"]["fragmentation_ratio"], lowered("expandable"),
                           lowered("stitch"), best, trace))
    print("\n| trace | fragmentation: native | expandable | stitch | reserved, expandable | reserved, stitch "
          "| best online | offline plan |\n|---|---|---|---|---|---|---|---|")
    for name, native, expandable, stitch, by_expandable, by_stitch, best, plan in claims:
        print(f"| {name} | {native:.3f} | {expandable:.3f} | {stitch:.3f} | {-by_expandable:+.1%} | {-by_stitch:+.1%} | "
              f"{best['policy']} {mib(best['peak_reserved'])} | {mib(plan['peak_reserved'])} |")


if __name__ == "__main__":
    main()
