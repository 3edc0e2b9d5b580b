// Internal to tensor/cpu: direct convolution of images with few channels, the first layer of most networks. Patches are
// read where they lie instead of being packed; conv.cpp decides when it is used. Forward sums are those of the packed form,
// bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include <limpid/tensor/cpu/conv.h>
#include <limpid/tensor/cpu/conv_tail.h>

namespace limpid::cpu {

inline constexpr std::int64_t kThinChannels = 15, kThinDepth = 160;  // depth: taps * channels

bool is_thin(const ConvDesc& desc);

// Elements of workspace. A null tail: plain forward. `slots`: tasks with scratch of their own.
std::int64_t thin_forward_elements(const ConvDesc& desc, const ConvTail* tail, std::int64_t panel, std::int64_t slots);
template <class T>
void thin_forward(const ConvDesc& desc, std::int64_t slots, const T* x, const T* w, const T* bias, T* y,
                  const TailTarget<T>* tail, T* scratch);
// Multiply-adds of each task of the forward pass, padding included.
std::vector<double> thin_forward_tasks(const ConvDesc& desc, std::int64_t panel);

// `parts`: partial sums of the weight gradient, at most.
std::int64_t thin_weight_elements(const ConvDesc& desc, std::int64_t panel, std::int64_t parts);
// db: the bias's gradient as well, unless null.
template <class T>
void thin_backward_weight(const ConvDesc& desc, std::int64_t parts, const T* x, const TailGradient<T>& dz, T* dw, T* db,
                          T* scratch);

}  // namespace limpid::cpu
