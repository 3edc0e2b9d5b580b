"""Writes memory_summary.txt: PyTorch's torch.cuda.memory_summary for made-up statistics (no GPU needed)."""
import torch

METRICS = ["allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
           "inactive_split_bytes", "requested_bytes"]
stats, i = {}, 0


def put(prefix):
    global i
    for field in ["current", "peak", "allocated", "freed"]:
        stats[f"{prefix}.{field}"] = (i + 1) * 37 ** (i % 8)
        i += 1


for metric in METRICS:
    for scope in ["all", "small_pool", "large_pool"]:
        put(f"{metric}.{scope}")
put("oversize_allocations")
put("oversize_segments")
stats["num_alloc_retries"], stats["num_ooms"] = 12, 345
torch.cuda.memory.memory_stats = lambda device=None: stats
torch.cuda.memory._get_device_index = lambda device, optional=True: 0
open("memory_summary.txt", "w").write(torch.cuda.memory.memory_summary(0) + "\n" + torch.cuda.memory.memory_summary(0, True) + "\n")
