// Umbrella header: the public headers of every room.
#pragma once

#include <limpid/version.h>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/base/format.h>
#include <limpid/base/scope.h>

#include <limpid/memory/allocator.h>
#include <limpid/memory/explain.h>
#include <limpid/memory/leak.h>
#include <limpid/memory/policies.h>
#include <limpid/memory/reserve_plan.h>
#include <limpid/memory/trim.h>

#include <limpid/tensor/cpu/parallel.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/dry.h>
#include <limpid/tensor/random.h>
#include <limpid/tensor/safetensors.h>
#include <limpid/tensor/tensor.h>

#include <limpid/autograd/autocast.h>
#include <limpid/autograd/check_finite.h>
#include <limpid/autograd/checkpoint.h>
#include <limpid/autograd/custom_function.h>
#include <limpid/autograd/engine.h>
#include <limpid/autograd/functions.h>
#include <limpid/autograd/fused.h>
#include <limpid/autograd/grad_mode.h>
#include <limpid/autograd/gradcheck.h>
#include <limpid/autograd/graph.h>
#include <limpid/autograd/loss_weights.h>
#include <limpid/autograd/watch.h>

#include <limpid/nn/activation.h>
#include <limpid/nn/containers.h>
#include <limpid/nn/conv.h>
#include <limpid/nn/dropout.h>
#include <limpid/nn/flatten.h>
#include <limpid/nn/fuse.h>
#include <limpid/nn/init.h>
#include <limpid/nn/linear.h>
#include <limpid/nn/loss.h>
#include <limpid/nn/models/models.h>
#include <limpid/nn/module.h>
#include <limpid/nn/norm.h>
#include <limpid/nn/pool.h>
#include <limpid/nn/replace_norm.h>
#include <limpid/nn/summary.h>

#include <limpid/optim/adam.h>
#include <limpid/optim/clip_grad.h>
#include <limpid/optim/grad_scaler.h>
#include <limpid/optim/lamb.h>
#include <limpid/optim/lars.h>
#include <limpid/optim/lr_scheduler.h>
#include <limpid/optim/optimizer.h>
#include <limpid/optim/rmsprop.h>
#include <limpid/optim/sgd.h>

#include <limpid/data/cifar10.h>
#include <limpid/data/dataset.h>
#include <limpid/data/folder.h>
#include <limpid/data/idx.h>
#include <limpid/data/image.h>
#include <limpid/data/loader.h>
#include <limpid/data/registry.h>
#include <limpid/data/sampler.h>
#include <limpid/data/split.h>
#include <limpid/data/synthetic.h>
#include <limpid/data/transforms.h>

#include <limpid/train/accumulator.h>
#include <limpid/train/activation_ledger.h>
#include <limpid/train/amp.h>
#include <limpid/train/amp_ledger.h>
#include <limpid/train/batch_finders.h>
#include <limpid/train/batch_invariance.h>
#include <limpid/train/batch_norm_advice.h>
#include <limpid/train/batch_norm_modes.h>
#include <limpid/train/batch_plan.h>
#include <limpid/train/checkpoint.h>
#include <limpid/train/equivalence.h>
#include <limpid/train/evaluate.h>
#include <limpid/train/ledger.h>
#include <limpid/train/memory_report.h>
#include <limpid/train/monitor.h>
#include <limpid/train/parts.h>
#include <limpid/train/plan.h>
#include <limpid/train/rehearsal.h>
#include <limpid/train/run_diff.h>
#include <limpid/train/run_folder.h>
#include <limpid/train/settings.h>
#include <limpid/train/scaling_policy.h>
#include <limpid/train/size_lab.h>
#include <limpid/train/step.h>
#include <limpid/train/sweep.h>
#include <limpid/train/sweep_learning.h>
#include <limpid/train/trainer.h>
