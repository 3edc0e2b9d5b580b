"""One training step of the shipped models in PyTorch: torch_step.py MODEL BATCH THREADS STEPS [channels_last]. Prints one JSON line."""
import json
import resource
import statistics
import sys
import time

import torch
from torch import nn

model_name, batch, threads, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
channels_last = "channels_last" in sys.argv[5:]
torch.set_num_threads(threads)
torch.manual_seed(0)


class PadShortcut(nn.Module):
    """Option A of He et al. 2016: every second pixel, the new channels zero."""

    def __init__(self, new_channels):
        super().__init__()
        self.before = new_channels // 2
        self.after = new_channels - self.before

    def forward(self, x):
        return nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.before, self.after))


class Block(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inputs, outputs, stride, pad_shortcut):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else PadShortcut(outputs - inputs) if pad_shortcut else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def resnet(width, stages, blocks, pad_shortcut):
    layers = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for stage in range(stages):
        for block in range(blocks):
            layers.append(Block(channels, width << stage, 2 if stage > 0 and block == 0 else 1, pad_shortcut))
            channels = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


MODELS = {
    "seed": ((3, 224, 224), lambda: nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))),
    "lenet": ((1, 28, 28), lambda: nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                                                 nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))),
    "mlp": ((1, 28, 28), lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))),
    "resnet18": ((3, 32, 32), lambda: resnet(64, 4, 2, False)),
    "resnet20": ((3, 32, 32), lambda: resnet(16, 3, 3, True)),
}
shape, build = MODELS[model_name]
model = build().train()
x = torch.randn(batch, *shape)
y = torch.randint(0, 10, (batch,))
if channels_last:
    model = model.to(memory_format=torch.channels_last)
    x = x.contiguous(memory_format=torch.channels_last)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-6, fused=True)
warm_up = max(2, steps // 5)
times = []
for i in range(steps + warm_up):
    start = time.perf_counter()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if i >= warm_up:
        times.append((time.perf_counter() - start) * 1e3)
print(json.dumps({"median_ms": statistics.median(times), "min_ms": min(times), "max_ms": max(times),
                  "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "version": torch.__version__}))
