"""Makes tests/golden/nn/*.safetensors with PyTorch (made with 2.15, CPU, float64). The tests only read the files.

    python tests/golden/make_nn_golden.py

layers.safetensors      CASE.x, CASE.param.NAME (state before), CASE.y, CASE.g (dL/dy), CASE.gx, CASE.grad.NAME,
                        CASE.after.NAME (buffers after the forward pass)
losses.safetensors      CASE.x, CASE.t, CASE.y, CASE.g, CASE.gx, CASE.w (class weights)
init.safetensors        CASE = [mean, std, min, max] of PyTorch's start values
optim.safetensors       start, grads [1000, 19], CASE = parameters after steps 1, 50, 100, ..., 1000
schedules.safetensors   CASE = learning rates at t = 0..1000 (momenta: CASE.momentum)
cnn.safetensors         a small network trained for 20 steps: start.NAME, end.NAME, x, t, losses
"""

import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

torch.manual_seed(20)
torch.set_default_dtype(torch.float64)
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nn")
os.makedirs(HERE, exist_ok=True)


def save(name, tensors):
    save_file({k: v.detach().clone().contiguous() for k, v in tensors.items()}, os.path.join(HERE, name + ".safetensors"))


def layers():
    out = {}

    def case(name, module, shape, train=True, forwards=1):
        module.train(train)
        for p in module.parameters():
            p.data.normal_()
        for key, b in module.named_buffers():
            if b.dtype.is_floating_point:
                b.data.uniform_(0.5, 1.5)
        for key, value in module.state_dict().items():
            out[f"{name}.param.{key}"] = value.clone()
        for _ in range(forwards):
            x = torch.randn(shape, requires_grad=True)
            y = module(x)
            if forwards > 1:
                out[f"{name}.x{_}"] = x
        g = torch.randn(y.shape)
        y.backward(g)
        out.update({f"{name}.x": x, f"{name}.y": y, f"{name}.g": g, f"{name}.gx": x.grad})
        for key, p in module.named_parameters():
            out[f"{name}.grad.{key}"] = p.grad
        for key, b in module.named_buffers():
            out[f"{name}.after.{key}"] = b

    case("linear", nn.Linear(7, 3), (5, 7))
    case("linear_no_bias_3d", nn.Linear(5, 4, bias=False), (2, 3, 5))
    case("conv", nn.Conv2d(3, 5, 3), (2, 3, 7, 9))
    case("conv_all", nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 3), groups=2), (3, 4, 9, 7))
    case("conv_depthwise", nn.Conv2d(5, 5, 3, padding=1, groups=5, bias=False), (2, 5, 6, 5))
    case("conv_1x1_stride", nn.Conv2d(3, 7, 1, stride=2), (1, 3, 5, 7))
    case("conv_dilated", nn.Conv2d(2, 3, 3, padding=2, dilation=2), (2, 2, 8, 6))
    case("conv_5x5", nn.Conv2d(1, 6, 5, padding=2), (2, 1, 11, 13))
    case("bn1d_train", nn.BatchNorm1d(3), (5, 3))
    case("bn1d_3d_train", nn.BatchNorm1d(3, momentum=0.3, eps=1e-3), (4, 3, 5))
    case("bn1d_eval", nn.BatchNorm1d(4), (3, 4), train=False)
    case("bn2d_train", nn.BatchNorm2d(5), (3, 5, 4, 3))
    case("bn2d_eval", nn.BatchNorm2d(5), (3, 5, 4, 3), train=False)
    case("bn2d_cumulative", nn.BatchNorm2d(3, momentum=None), (2, 3, 3, 3), forwards=3)
    case("bn2d_no_affine", nn.BatchNorm2d(3, affine=False), (2, 3, 3, 5))
    case("bn2d_no_track_eval", nn.BatchNorm2d(3, track_running_stats=False), (2, 3, 3, 5), train=False)
    case("layernorm", nn.LayerNorm((4, 5)), (3, 4, 5))
    case("layernorm_no_bias", nn.LayerNorm(7, bias=False, eps=1e-3), (2, 3, 7))
    case("layernorm_plain", nn.LayerNorm(7, elementwise_affine=False), (3, 7))
    case("groupnorm", nn.GroupNorm(3, 6), (2, 6, 3, 5))
    case("groupnorm_2d", nn.GroupNorm(2, 6, affine=False), (4, 6))
    for name, act in {
        "relu": nn.ReLU(), "leaky_relu": nn.LeakyReLU(0.2), "elu": nn.ELU(0.7), "gelu": nn.GELU(),
        "gelu_tanh": nn.GELU(approximate="tanh"), "silu": nn.SiLU(), "sigmoid": nn.Sigmoid(), "tanh": nn.Tanh(),
        "softmax": nn.Softmax(dim=-1),
    }.items():
        case(name, act, (3, 17))
    case("softmax_dim1", nn.Softmax(dim=1), (2, 5, 3))
    case("maxpool", nn.MaxPool2d(2), (2, 3, 7, 9))
    case("maxpool_all", nn.MaxPool2d((3, 2), stride=(2, 1), padding=1, dilation=(1, 2), ceil_mode=True), (2, 3, 8, 9))
    case("maxpool_overlap", nn.MaxPool2d(3, stride=2, padding=1), (1, 4, 9, 7))
    case("avgpool", nn.AvgPool2d(2), (2, 3, 7, 9))
    case("avgpool_ceil", nn.AvgPool2d((3, 2), stride=2, padding=1, ceil_mode=True), (2, 3, 8, 7))
    case("avgpool_no_pad_count", nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), (2, 3, 8, 7))
    case("adaptive_1", nn.AdaptiveAvgPool2d(1), (2, 3, 5, 7))
    case("adaptive_3x2", nn.AdaptiveAvgPool2d((3, 2)), (2, 3, 7, 5))
    case("flatten", nn.Flatten(), (2, 3, 4, 5))
    case("flatten_1_2", nn.Flatten(1, 2), (2, 3, 4, 5))
    save("layers", out)


def losses():
    out = {}

    def case(name, f, x, t, w=None):
        x.requires_grad_()
        y = f(x, t)
        g = torch.randn(y.shape)
        y.backward(g)
        out.update({f"{name}.x": x, f"{name}.t": t, f"{name}.y": y, f"{name}.g": g, f"{name}.gx": x.grad})
        if w is not None:
            out[f"{name}.w"] = w

    labels = torch.tensor([0, 4, 2, -100, 1, 4, 3])
    weights = torch.rand(5) + 0.5
    for reduction in ("none", "mean", "sum"):
        for smoothing in (0.0, 0.1):
            for w in (None, weights):
                tag = f"{reduction}_{'smooth' if smoothing else 'hard'}_{'plain' if w is None else 'weighted'}"
                loss = nn.CrossEntropyLoss(weight=w, reduction=reduction, label_smoothing=smoothing)
                case("ce_" + tag, loss, torch.randn(7, 5), labels, w)
    dense = torch.randint(0, 4, (2, 3, 5))
    dense[1, 2, 0] = 3
    case("ce_dense", nn.CrossEntropyLoss(ignore_index=3, label_smoothing=0.2), torch.randn(2, 4, 3, 5), dense)
    case("nll", nn.NLLLoss(), F.log_softmax(torch.randn(7, 5), 1), labels)
    case("nll_weighted_sum", nn.NLLLoss(weight=weights, reduction="sum", ignore_index=4), F.log_softmax(torch.randn(7, 5), 1),
         torch.tensor([0, 4, 2, 3, 1, 4, 3]), weights)
    case("nll_dense_none", nn.NLLLoss(reduction="none"), F.log_softmax(torch.randn(2, 4, 3, 5), 1), dense)
    for reduction in ("none", "mean", "sum"):
        x, t = torch.randn(3, 7), torch.randn(3, 7)
        x[0, 0] = t[0, 0]
        case("mse_" + reduction, nn.MSELoss(reduction=reduction), x.clone(), t)
        case("l1_" + reduction, nn.L1Loss(reduction=reduction), x.clone(), t)
        case("smooth_l1_" + reduction, nn.SmoothL1Loss(beta=0.7, reduction=reduction), x.clone(), t)
        case("bce_" + reduction, nn.BCEWithLogitsLoss(reduction=reduction), 20 * x.clone(), torch.rand(3, 7))
    save("losses", out)


def init():
    out = {}

    def case(name, t):
        t = t.detach()
        out[name] = torch.stack([t.mean(), t.std(), t.min(), t.max()])

    linear = nn.Linear(300, 200)
    case("linear.weight", linear.weight)
    case("linear.bias", linear.bias)
    conv = nn.Conv2d(32, 64, 5, groups=2)
    case("conv.weight", conv.weight)
    case("conv.bias", conv.bias)
    w = torch.empty(128, 32, 3, 3)
    case("kaiming_uniform", nn.init.kaiming_uniform_(w))
    case("kaiming_uniform_fan_out_tanh", nn.init.kaiming_uniform_(w, mode="fan_out", nonlinearity="tanh"))
    case("kaiming_normal", nn.init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"))
    case("xavier_uniform", nn.init.xavier_uniform_(w, gain=1.5))
    case("xavier_normal", nn.init.xavier_normal_(w))
    save("init", out)


def optim():
    sizes = [(4, 3), (5,), (2,)]
    start = torch.randn(19)
    grads = torch.randn(1000, 19) * torch.exp(torch.linspace(-2, 1, 19)) + 0.1
    grads[10] = 0
    out = {"start": start, "grads": grads}

    def split(flat):
        parts, at = [], 0
        for size in sizes:
            n = math.prod(size)
            parts.append(flat[at:at + n].reshape(size).clone())
            at += n
        return parts

    def case(name, make):
        params = [nn.Parameter(p) for p in split(start)]
        opt = make(params)
        rows = []
        for step in range(1000):
            for i, (p, g) in enumerate(zip(params, split(grads[step]))):
                p.grad = None if i == 2 and step % 3 == 2 else g
            if step == 500:
                for group in opt.param_groups:
                    group["lr"] *= 0.3
            opt.step()
            if step == 0 or (step + 1) % 50 == 0:
                rows.append(torch.cat([p.detach().flatten() for p in params]))
        out[name] = torch.stack(rows)

    O = torch.optim
    kw = {"foreach": False}
    case("sgd", lambda p: O.SGD(p, lr=0.01, **kw))
    case("sgd_momentum", lambda p: O.SGD(p, lr=0.01, momentum=0.9, **kw))
    case("sgd_dampening_decay", lambda p: O.SGD(p, lr=0.01, momentum=0.8, dampening=0.3, weight_decay=0.05, **kw))
    case("sgd_nesterov_decay", lambda p: O.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.01, **kw))
    case("adam", lambda p: O.Adam(p, lr=0.01, **kw))
    case("adam_decay", lambda p: O.Adam(p, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, **kw))
    case("adam_amsgrad", lambda p: O.Adam(p, lr=0.01, amsgrad=True, **kw))
    case("adamw", lambda p: O.AdamW(p, lr=0.01, **kw))
    case("adamw_amsgrad", lambda p: O.AdamW(p, lr=0.01, weight_decay=0.2, amsgrad=True, **kw))
    case("rmsprop", lambda p: O.RMSprop(p, **kw))
    case("rmsprop_momentum", lambda p: O.RMSprop(p, lr=0.003, momentum=0.7, weight_decay=0.02, **kw))
    case("rmsprop_centered", lambda p: O.RMSprop(p, alpha=0.9, eps=1e-4, centered=True, **kw))
    case("rmsprop_all", lambda p: O.RMSprop(p, lr=0.003, momentum=0.5, centered=True, weight_decay=0.01, **kw))
    case("groups", lambda p: O.Adam([{"params": p[:1]}, {"params": p[1:], "lr": 0.03, "weight_decay": 0.1}], lr=0.01, **kw))
    save("optim", out)


def schedules():
    S = torch.optim.lr_scheduler
    out = {}

    def case(name, make, momentum=False):
        opt = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3, momentum=0.9)
        scheduler = make(opt)
        lrs, moms = [], []
        for t in range(1001):
            lrs.append(opt.param_groups[0]["lr"])
            moms.append(opt.param_groups[0]["momentum"])
            opt.step()
            if t < 1000:
                scheduler.step()
        out[name] = torch.tensor(lrs)
        if momentum:
            out[name + ".momentum"] = torch.tensor(moms)

    case("step", lambda o: S.StepLR(o, 30, gamma=0.7))
    case("multistep", lambda o: S.MultiStepLR(o, [10, 200, 200, 650], gamma=0.3))
    case("exponential", lambda o: S.ExponentialLR(o, 0.995))
    case("cosine", lambda o: S.CosineAnnealingLR(o, 1000, eta_min=0.001))
    case("cosine_rising", lambda o: S.CosineAnnealingLR(o, 300, eta_min=0.01))
    case("linear", lambda o: S.LinearLR(o, start_factor=0.25, total_iters=100))
    case("onecycle", lambda o: S.OneCycleLR(o, 0.7, total_steps=1000), momentum=True)
    case("onecycle_linear", lambda o: S.OneCycleLR(o, 0.7, total_steps=1000, pct_start=0.17, anneal_strategy="linear",
                                                   div_factor=10, final_div_factor=50), momentum=True)
    case("onecycle_three", lambda o: S.OneCycleLR(o, 0.7, total_steps=1000, three_phase=True), momentum=True)
    case("sequential", lambda o: S.SequentialLR(o, [S.LinearLR(o, start_factor=0.01, total_iters=50),
                                                    S.CosineAnnealingLR(o, 700), S.ExponentialLR(o, 0.99)], [50, 750]))
    save("schedules", out)


def cnn():
    model = nn.Sequential(nn.Conv2d(2, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(5, 6, 3, stride=2), nn.GELU(), nn.AvgPool2d(2, stride=1), nn.Flatten(), nn.Linear(24, 8),
                          nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
    out = {"start." + k: v.clone() for k, v in model.state_dict().items()}
    x, t = torch.randn(7, 2, 15, 14), torch.tensor([0, 1, 2, 2, 1, 0, 1])
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)
    history = []
    for _ in range(20):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), t, label_smoothing=0.1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.8)
        opt.step()
        history.append(loss.detach())
    out.update({"x": x, "t": t, "losses": torch.stack(history)})
    out.update({"end." + k: v for k, v in model.state_dict().items()})
    model.eval()
    out["eval"] = model(x)
    save("cnn", out)


layers()
losses()
init()
optim()
schedules()
cnn()
