"""Makes the golden files of mixed precision with PyTorch (made with 2.15). The tests only read the files.

    python tests/golden/make_amp_golden.py

autocast_dtypes.txt       OP CASE DTYPE: the dtype of the result under autocast with the lists for CUDA, found with fake tensors
                          on a fake CUDA device (no GPU is needed). CASE: f32, low or f64 inputs, or mixed (first low, rest f32).
nn/grad_scaler.safetensors  CASE.config = [init_scale, growth, backoff, interval, probability of inf in 1/10000],
                          CASE.at, CASE.scale: the scale from step `at` on, CASE.tracker: growth tracker after each step mod 256.
                          Found infs come from a counter, see found(). adam.*: parameters after every 500th step.
nn/amp_cnn.safetensors    a small network trained for 20 steps on the CPU under bf16 autocast: start.NAME, end.NAME, x, t,
                          losses, logits (of the first step), grad.NAME (of the first step)
"""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file
from torch._subclasses.fake_tensor import FakeTensorMode

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 10000


def save(name, tensors):
    save_file({k: v.detach().clone().contiguous() for k, v in tensors.items()}, os.path.join(HERE, "nn", name + ".safetensors"))


# ---- dtypes


def ops():
    """name -> (function of a list of tensors, shapes of the floating inputs)"""
    image, square = (2, 4, 6, 6), (4, 4)

    def index(*shape):
        return torch.zeros(shape, dtype=torch.int64, device="cuda")

    table = {}
    for name in ("neg abs sign square sqrt rsqrt reciprocal exp expm1 log log1p sin cos floor ceil round relu sigmoid tanh "
                 "squeeze flatten").split():
        table[name] = (lambda a, f=getattr(torch, name): f(a[0]), [square])
    for name in "leaky_relu elu gelu silu softplus".split():
        table[name] = (lambda a, f=getattr(F, name): f(a[0]), [square])
    for name in "add sub mul div pow maximum minimum".split():
        table[name] = (lambda a, f=getattr(torch, name): f(a[0], a[1]), [square, square])
    table.update({
        "rsub": (lambda a: 1 - a[0], [square]),
        "rdiv": (lambda a: 1 / a[0], [square]),
        "where": (lambda a: torch.where(torch.ones(square, dtype=torch.bool, device="cuda"), a[0], a[1]), [square, square]),
        "clamp": (lambda a: torch.clamp(a[0], 0, 1), [square]),
        "gelu_tanh": (lambda a: F.gelu(a[0], approximate="tanh"), [square]),
        "sum": (lambda a: torch.sum(a[0]), [square]),
        "mean": (lambda a: torch.mean(a[0]), [square]),
        "var": (lambda a: torch.var(a[0]), [square]),
        "prod": (lambda a: torch.prod(a[0]), [square]),
        "max": (lambda a: torch.amax(a[0]), [square]),
        "min": (lambda a: torch.amin(a[0]), [square]),
        "reshape": (lambda a: a[0].reshape(-1), [square]),
        "permute": (lambda a: a[0].permute(1, 0), [square]),
        "transpose": (lambda a: a[0].transpose(0, 1), [square]),
        "narrow": (lambda a: a[0].narrow(0, 1, 2), [square]),
        "select": (lambda a: a[0].select(0, 1), [square]),
        "expand": (lambda a: a[0].expand(2, 4, 4), [square]),
        "unsqueeze": (lambda a: a[0].unsqueeze(0), [square]),
        "contiguous": (lambda a: a[0].contiguous(), [square]),
        "flip": (lambda a: torch.flip(a[0], [0]), [square]),
        "cat": (lambda a: torch.cat(a), [square, square]),
        "stack": (lambda a: torch.stack(a), [square, square]),
        "pad": (lambda a: F.pad(a[0], (1, 1)), [square]),
        "gather": (lambda a: torch.gather(a[0], 0, index(4, 4)), [square]),
        "scatter_add": (lambda a: torch.scatter_add(a[0], 0, index(4, 4), a[1]), [square, square]),
        "index_select": (lambda a: torch.index_select(a[0], 0, index(3)), [square]),
        "matmul": (lambda a: torch.matmul(a[0], a[1]), [square, square]),
        "bmm": (lambda a: torch.bmm(a[0], a[1]), [(2, 3, 3), (2, 3, 3)]),
        "linear": (lambda a: F.linear(a[0], a[1], a[2]), [square, square, (4,)]),
        "conv2d": (lambda a: F.conv2d(a[0], a[1], a[2]), [image, (5, 4, 3, 3), (5,)]),
        "max_pool2d": (lambda a: F.max_pool2d(a[0], 2), [image]),
        "avg_pool2d": (lambda a: F.avg_pool2d(a[0], 2), [image]),
        "adaptive_avg_pool2d": (lambda a: F.adaptive_avg_pool2d(a[0], 1), [image]),
        "softmax": (lambda a: F.softmax(a[0], 1), [square]),
        "log_softmax": (lambda a: F.log_softmax(a[0], 1), [square]),
        "batch_norm": (lambda a: F.batch_norm(a[0], None, None, a[1], a[2], training=True), [image, (4,), (4,)]),
        "layer_norm": (lambda a: F.layer_norm(a[0], (4,), a[1], a[2]), [square, (4,), (4,)]),
        "group_norm": (lambda a: F.group_norm(a[0], 2, a[1], a[2]), [image, (4,), (4,)]),
        "dropout": (lambda a: F.dropout(a[0], 0.5), [square]),
        "cross_entropy": (lambda a: F.cross_entropy(a[0], index(4)), [square]),
        "nll_loss": (lambda a: F.nll_loss(a[0], index(4)), [square]),
        "mse_loss": (lambda a: F.mse_loss(a[0], a[1]), [square, square]),
        "l1_loss": (lambda a: F.l1_loss(a[0], a[1]), [square, square]),
        "smooth_l1_loss": (lambda a: F.smooth_l1_loss(a[0], a[1]), [square, square]),
        "binary_cross_entropy_with_logits": (lambda a: F.binary_cross_entropy_with_logits(a[0], a[1]), [square, square]),
    })
    return table


def dtypes_for(low):
    names = {torch.float32: "f32", low: "low", torch.float64: "f64"}
    lines = []
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", low)
    with FakeTensorMode():
        for op, (run, shapes) in sorted(ops().items()):
            cases = {"f32": [torch.float32] * len(shapes), "low": [low] * len(shapes), "f64": [torch.float64] * len(shapes)}
            if len(shapes) > 1:
                cases["mixed"] = [low] + [torch.float32] * (len(shapes) - 1)
            for case, dtypes in cases.items():
                result = run([torch.empty(s, dtype=d, device="cuda") for s, d in zip(shapes, dtypes)])
                lines.append(f"{op} {case} {names[result.dtype]}")
    torch.set_autocast_enabled("cuda", False)
    return lines


def dtypes():
    lines = dtypes_for(torch.float16)
    assert lines == dtypes_for(torch.bfloat16)
    with open(os.path.join(HERE, "autocast_dtypes.txt"), "w") as f:
        f.write("\n".join(lines) + "\n")


# ---- loss scaling


def mix(x):
    """splitmix64's finalizer; the test has the same."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def found(step, which, per_10000):
    return mix(2 * step + which) % 10000 < per_10000


def scaler_trace(config):
    init, growth, backoff, interval, chance = config
    scaler = torch.amp.GradScaler("cpu", init_scale=init, growth_factor=growth, backoff_factor=backoff, growth_interval=int(interval))
    p = torch.zeros(1, requires_grad=True)
    opt = torch.optim.SGD([p], lr=1.0)
    scaler.scale(torch.zeros(()))
    at, scales, tracker = [], [], []
    last = None
    for step in range(STEPS):
        p.grad = torch.full((1,), float("inf") if found(step, 0, chance) else 0.0)
        scaler.step(opt)
        scaler.update()
        now = scaler.get_scale()
        if now != last:
            at.append(step)
            scales.append(now)
        last = now
        tracker.append(scaler._get_growth_tracker() % 256)
    return {"config": torch.tensor(config, dtype=torch.float64), "at": torch.tensor(at, dtype=torch.int32),
            "scale": torch.tensor(scales, dtype=torch.float32), "tracker": torch.tensor(tracker, dtype=torch.uint8)}


def scaler_adam():
    """Two optimizers, as for a GAN: each skips its own steps, the scale backs off for both."""
    scaler = torch.amp.GradScaler("cpu", growth_interval=8)
    params = [torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_() for _ in range(2)]
    opts = [torch.optim.Adam([params[0]], lr=1e-2), torch.optim.SGD([params[1]], lr=1e-2, momentum=0.9)]
    scaler.scale(torch.zeros(()))
    history = [[], []]
    for step in range(STEPS):
        for which in range(2):
            g = torch.tensor([mix(7 * step + 5 * which + i + 10**6) % 2001 / 1000 - 1 for i in range(5)], dtype=torch.float64)
            params[which].grad = g * scaler.get_scale()
            if found(step, which, 300):
                params[which].grad[step % 5] = float("nan") if step % 2 else float("-inf")
            scaler.step(opts[which])
        scaler.update()
        if step % 500 == 499:
            for which in range(2):
                history[which].append(params[which].detach().clone())
    return {"adam.params": torch.stack(history[0]), "sgd.params": torch.stack(history[1]),
            "adam.steps": opts[0].state[params[0]]["step"].to(torch.int64), "two.scale": torch.tensor(scaler.get_scale())}


def grad_scaler():
    out = scaler_adam()
    cases = {"defaults": (65536.0, 2.0, 0.5, 2000, 20), "rounding": (1000.0, 1.7, 0.31, 1, 2500), "busy": (3.0, 3.0, 0.9, 7, 1000),
             "grows": (2.0**100, 2.0, 0.5, 3, 0), "falls": (65536.0, 2.0, 0.5, 2, 9000)}
    for name, config in cases.items():
        out.update({f"{name}.{k}": v for k, v in scaler_trace(config).items()})
    save("grad_scaler", out)


# ---- a network


class Net(nn.Module):
    """Operations on which PyTorch's lists for CUDA and CPU agree."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 12, 3)
        self.fc = nn.Linear(12, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.relu(self.conv2(x))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def amp_cnn():
    torch.manual_seed(5)
    net = Net()
    x, t = torch.randn(16, 1, 10, 10), torch.arange(16) % 4
    out = {"x": x, "t": t}
    out.update({f"start.{k}": v.clone() for k, v in net.state_dict().items()})
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(20):
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(x)
            loss = F.cross_entropy(logits, t)
        assert logits.dtype == torch.bfloat16 and loss.dtype == torch.float32
        loss.backward()
        if step == 0:
            out["logits"] = logits.float()
            out.update({f"grad.{k}": p.grad for k, p in net.named_parameters()})
            assert all(p.grad.dtype == torch.float32 for p in net.parameters())
        opt.step()
        losses.append(loss.item())
    out["losses"] = torch.tensor(losses)
    out.update({f"end.{k}": v for k, v in net.state_dict().items()})
    save("amp_cnn", out)


dtypes()
grad_scaler()
amp_cnn()
