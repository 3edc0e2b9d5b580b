// The place of a position in a dense channels_last image batch, for kernels with one thread a number or a vector of
// channels.
#pragma once

#include <limpid/cuda/kernels/indexing.cuh>

namespace limpid::cu {

struct ImagePlace {
  std::int64_t image;
  int y, x, channel;
};

// Positions of [images, height, width, channels / channels_each]. Neighbouring threads are neighbours in the channels.
struct ImageIndex {
  std::int64_t count = 0;
  int height = 1, width = 1, groups = 1, channels_each = 1;
  bool narrow = true;  // positions below 2^31: divisions by multiplication
  Divider by_height, by_width, by_groups;

  ImageIndex(std::int64_t images, std::int64_t h, std::int64_t w, std::int64_t channels, int each)
      : count(images * h * w * (channels / each)),
        height(int(h)),
        width(int(w)),
        groups(int(channels / each)),
        channels_each(each) {
    narrow = count < (std::int64_t(1) << 31);
    if (count == 0) return;
    by_height = Divider(static_cast<std::uint32_t>(height));
    by_width = Divider(static_cast<std::uint32_t>(width));
    by_groups = Divider(static_cast<std::uint32_t>(groups));
  }
  __device__ LIMPID_INLINE ImagePlace place(std::int64_t position) const {
    const std::int64_t pixel = divide(position, by_groups, groups), row = divide(pixel, by_width, width),
                       image = divide(row, by_height, height);
    return {image, static_cast<int>(row - image * height), static_cast<int>(pixel - row * width),
            static_cast<int>(position - pixel * groups) * channels_each};
  }

 private:
  __device__ LIMPID_INLINE std::int64_t divide(std::int64_t a, const Divider& divider, int b) const {
    return narrow ? static_cast<std::int64_t>(divider.quotient(static_cast<unsigned>(a))) : a / b;
  }
};

// Channels that one thread takes: a vector of 16 bytes where the channels of a pixel come in such vectors and every
// image pointer is aligned (null counts as aligned), else one.
template <class T>
inline int channels_each(std::int64_t channels, std::initializer_list<const void*> images) {
  bool fit = channels % kVectorWidth<T> == 0;
  for (const void* image : images) fit = fit && reinterpret_cast<std::uintptr_t>(image) % 16 == 0;
  return fit ? kVectorWidth<T> : 1;
}

// width neighbouring channels as numbers, and back.
template <int width, class T>
__device__ LIMPID_INLINE void load_channels(const T* from, accumulate_t<T> (&to)[width]) {
  const Vector<T, width> v = load_vector<width>(from);
#pragma unroll
  for (int i = 0; i < width; i++) to[i] = to_float(v.values[i]);
}
template <int width, class T>
__device__ LIMPID_INLINE void store_channels(T* to, const accumulate_t<T> (&from)[width]) {
  Vector<T, width> v;
#pragma unroll
  for (int i = 0; i < width; i++) v.values[i] = from_float<T>(from[i]);
  store_vector(to, v);
}

// The same where only the launch knows whether the vectors are aligned: the width, and with it the order of sums, is
// then a property of the shape alone.
template <int width, class T>
__device__ LIMPID_INLINE void load_group(const T* from, bool aligned, accumulate_t<T> (&to)[width]) {
  if (aligned) return load_channels<width>(from, to);
#pragma unroll
  for (int j = 0; j < width; j++) to[j] = to_float(from[j]);
}
template <int width, class T>
__device__ LIMPID_INLINE void store_group(T* to, bool aligned, const accumulate_t<T> (&from)[width]) {
  if (aligned) return store_channels<width>(to, from);
#pragma unroll
  for (int j = 0; j < width; j++) to[j] = from_float<T>(from[j]);
}

// f.template operator()<width>() for a width that channels_each() gave.
template <class T, class F>
cudaError_t dispatch_width(int width, F&& f) {
  if (width == 1) return f.template operator()<1>();
  return f.template operator()<kVectorWidth<T>>();
}

}  // namespace limpid::cu
