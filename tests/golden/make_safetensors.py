"""Writes golden/from_python.safetensors with Python's safetensors library: every dtype that limpid reads.

The values are formulas, so that the test can state them: element i of a tensor is i * 0.5 - 1 for floats, i - 1 for
integers, i % 2 for bool, i for bytes. Run in a virtual environment with torch and safetensors.
"""
import pathlib

import torch
from safetensors.torch import save_file

shapes = {
    "f64": (torch.float64, (2, 3)),
    "f32": (torch.float32, (2, 1, 3)),
    "f16": (torch.float16, (5,)),
    "bf16": (torch.bfloat16, (3,)),
    "i64": (torch.int64, (4,)),
    "i32": (torch.int32, (3,)),
    "u8": (torch.uint8, (7,)),
    "bool": (torch.bool, (3,)),
    "scalar": (torch.float32, ()),
    "empty": (torch.float32, (0, 4)),
}
tensors = {}
for name, (dtype, shape) in shapes.items():
    count = torch.Size(shape).numel()
    i = torch.arange(count, dtype=torch.float64)
    if dtype == torch.bool:
        values = i % 2
    elif dtype == torch.uint8:
        values = i
    elif dtype.is_floating_point:
        values = i * 0.5 - 1
    else:
        values = i - 1
    tensors[name] = values.to(dtype).reshape(shape)
save_file(tensors, pathlib.Path(__file__).parent / "from_python.safetensors", metadata={"format": "pt", "made by": "golden script"})
