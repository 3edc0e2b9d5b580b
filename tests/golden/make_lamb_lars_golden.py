#!/usr/bin/env python3
"""Makes nn/lamb_lars.safetensors: LAMB and LARS over the 1,000 recorded gradients of nn/optim.safetensors, in NumPy, f64.

The equations are those of timm/optim/lamb.py and lars.py. One difference: timm counts the steps of a group, here each
parameter counts its own (the third one has no gradient at every third step). Needs numpy and safetensors.
Entries: CASE = parameters [21, 19] after steps 1, 50, 100, ..., 1000; CASE.trust = trust ratios [21, 3] of these steps
(1 for a parameter without a gradient).
"""
import os

import numpy as np
from safetensors.numpy import load_file, save_file

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nn")
SLICES = [slice(0, 12), slice(12, 17), slice(17, 19)]


def norm(x):
    return float(np.sqrt(np.sum(x * x)))


class Lamb:
    def __init__(self, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, wd=0.01, max_grad_norm=1.0, always_adapt=False, trust_clip=False):
        self.__dict__.update(locals())
        self.m, self.v, self.t = [0.0] * 3, [0.0] * 3, [0] * 3

    def step(self, params, grads):
        scale = 1.0
        if self.max_grad_norm > 0:
            total = norm(np.concatenate([g for g in grads if g is not None]))
            if total > self.max_grad_norm:
                scale = total / self.max_grad_norm
        ratios = []
        b1, b2 = self.betas
        for i, g in enumerate(grads):
            if g is None:
                ratios.append(1.0)
                continue
            self.t[i] += 1
            g = g / scale
            self.m[i] = b1 * self.m[i] + (1 - b1) * g
            self.v[i] = b2 * self.v[i] + (1 - b2) * g * g
            denom = np.sqrt(self.v[i]) / np.sqrt(1 - b2 ** self.t[i]) + self.eps
            update = self.m[i] / (1 - b1 ** self.t[i]) / denom + self.wd * params[i]
            trust = 1.0
            if self.wd != 0 or self.always_adapt:
                w, u = norm(params[i]), norm(update)
                trust = w / u if w > 0 and u > 0 else 1.0
                if self.trust_clip:
                    trust = min(trust, 1.0)
            params[i] -= self.lr * trust * update
            ratios.append(trust)
        return ratios


class Lars:
    def __init__(self, lr=1.0, momentum=0.0, dampening=0.0, wd=0.0, nesterov=False, coefficient=1e-3, eps=1e-8,
                 always_adapt=False, trust_clip=False):
        self.__dict__.update(locals())
        self.buffers = [None] * 3

    def step(self, params, grads):
        ratios = []
        for i, g in enumerate(grads):
            if g is None:
                ratios.append(1.0)
                continue
            trust = 1.0
            if self.wd != 0 or self.always_adapt:
                w, n = norm(params[i]), norm(g)
                trust = self.coefficient * w / (n + w * self.wd + self.eps) if w > 0 and n > 0 else 1.0
                if self.trust_clip:
                    trust = min(trust / self.lr, 1.0)
            d = (g + self.wd * params[i]) * trust
            if self.momentum != 0:
                if self.buffers[i] is None:
                    self.buffers[i] = d.copy()
                else:
                    self.buffers[i] = self.momentum * self.buffers[i] + (1 - self.dampening) * d
                d = d + self.momentum * self.buffers[i] if self.nesterov else self.buffers[i]
            params[i] -= self.lr * d
            ratios.append(trust)
        return ratios


def main():
    recorded = load_file(os.path.join(HERE, "optim.safetensors"))
    start, grads = recorded["start"].astype(np.float64), recorded["grads"].astype(np.float64)
    out = {}

    def case(name, rule):
        params = [start[s].copy() for s in SLICES]
        rows, trusts = [], []
        for step in range(1000):
            if step == 500:
                rule.lr *= 0.3
            ratios = rule.step(params, [None if i == 2 and step % 3 == 2 else grads[step][s] for i, s in enumerate(SLICES)])
            if step == 0 or (step + 1) % 50 == 0:
                rows.append(np.concatenate(params))
                trusts.append(np.array(ratios))
        out[name], out[name + ".trust"] = np.stack(rows), np.stack(trusts)

    case("lamb", Lamb())
    case("lamb_no_decay", Lamb(lr=0.01, wd=0.0))
    case("lamb_adapt", Lamb(lr=0.01, betas=(0.8, 0.95), wd=0.0, max_grad_norm=0.0, always_adapt=True))
    case("lamb_clip", Lamb(lr=0.01, wd=0.1, trust_clip=True))
    case("lars", Lars(lr=0.5, wd=0.01))
    case("lars_plain", Lars(lr=0.01, momentum=0.9))
    case("lars_momentum", Lars(lr=0.5, momentum=0.9, dampening=0.2, wd=1e-3, coefficient=0.01))
    case("lars_nesterov", Lars(lr=0.5, momentum=0.8, nesterov=True, always_adapt=True))
    case("larc", Lars(lr=0.05, momentum=0.9, wd=1e-4, coefficient=0.02, trust_clip=True))
    save_file(out, os.path.join(HERE, "lamb_lars.safetensors"))


if __name__ == "__main__":
    main()
