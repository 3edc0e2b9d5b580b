#include <limpid/data/idx.h>

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/tensor/raw.h>

namespace limpid::data {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{4} << 30;
constexpr int kMaxRank = 4;
constexpr std::uint64_t kDeflateRatio = 1032;  // no deflate stream expands more (zlib technical notes)

// Hands out the file's bytes one piece after the other, unpacked where they are packed.
class Source {
 public:
  Source(const std::uint8_t* bytes, std::size_t count, const std::string& name)
      : name_(name), next_(bytes), left_(count) {
    packed_ = count >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
    // The most the bytes can hold: a header that claims more lies, and no memory is taken for it.
    limit_ = packed_ ? count * kDeflateRatio : count;
    if (!packed_) return;
    LIMPID_CHECK(inflateInit2(&stream_, 16 + MAX_WBITS) == Z_OK, DataError, "[idx] ", name_, ": zlib does not start");
    started_ = true;
  }
  ~Source() {
    if (started_) inflateEnd(&stream_);
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  std::uint64_t limit() const { return limit_; }

  void read(void* out, std::size_t count, const char* what) {
    std::size_t got = packed_ ? inflate_to(out, count) : std::min(count, left_);
    if (!packed_) {
      if (got > 0) std::memcpy(out, next_, got);
      next_ += got, left_ -= got;
    }
    LIMPID_CHECK(got == count, DataError, "[idx] ", name_, " is truncated: ", what, " needs ", count, " bytes, ", got,
                 " are left");
  }

  // Nothing may follow, packed or not; the checksum at the end of a gzip stream is verified here.
  void finish() {
    if (packed_) {
      std::uint8_t extra = 0;
      LIMPID_CHECK(inflate_to(&extra, 1) == 0, DataError, "[idx] ", name_, " goes on after the last element");
      LIMPID_CHECK(ended_, DataError, "[idx] ", name_, ": the gzip stream is truncated");
    }
    LIMPID_CHECK(left_ == 0, DataError, "[idx] ", name_, " has ", left_, " bytes after the end");
  }

 private:
  std::size_t inflate_to(void* out, std::size_t count) {
    std::size_t done = 0;
    while (done < count && !ended_) {
      stream_.next_in = const_cast<Bytef*>(next_);
      stream_.avail_in = static_cast<uInt>(std::min<std::size_t>(left_, 1u << 30));
      stream_.next_out = static_cast<Bytef*>(out) + done;
      stream_.avail_out = static_cast<uInt>(std::min<std::size_t>(count - done, 1u << 30));
      const uInt in_before = stream_.avail_in, out_before = stream_.avail_out;
      const int status = inflate(&stream_, Z_NO_FLUSH);
      next_ += in_before - stream_.avail_in;
      left_ -= in_before - stream_.avail_in;
      done += out_before - stream_.avail_out;
      if (status == Z_STREAM_END)
        ended_ = true;
      else if (status == Z_BUF_ERROR)
        break;  // no input left
      else
        LIMPID_CHECK(status == Z_OK, DataError, "[idx] ", name_,
                     ": the gzip stream is corrupt: ", stream_.msg ? stream_.msg : "no reason given");
    }
    return done;
  }

  const std::string& name_;
  const std::uint8_t* next_;
  std::size_t left_;
  bool packed_ = false, started_ = false, ended_ = false;
  std::uint64_t limit_ = 0;
  z_stream stream_{};
};

const char* kHalf[] = {"t10k", "train"};

// The path of one file, plain or packed; empty when there is none.
std::string find_file(const std::string& dir, bool train, const char* kind) {
  const std::string base = (std::filesystem::path(dir) / (std::string(kHalf[train ? 1 : 0]) + kind)).string();
  std::error_code ignored;
  for (const std::string& path : {base, base + ".gz"})
    if (std::filesystem::is_regular_file(path, ignored)) return path;
  return {};
}

std::shared_ptr<ImageArrayDataset> open_pair(const std::string& dir, bool train,
                                             const std::vector<std::string>& names) {
  const std::string images_path = find_file(dir, train, "-images-idx3-ubyte");
  const std::string labels_path = find_file(dir, train, "-labels-idx1-ubyte");
  LIMPID_CHECK(!images_path.empty() && !labels_path.empty(), DataError, "[idx] ", dir, " does not have ",
               kHalf[train ? 1 : 0], images_path.empty() ? "-images-idx3-ubyte" : "-labels-idx1-ubyte", " (or .gz)");
  Tensor images = read_idx(images_path);
  LIMPID_CHECK(images.dim() == 3 && images.size(1) == 28 && images.size(2) == 28, DataError, "[idx] ", images_path,
               " holds an array of shape ", images.shape(), ", expected [N,28,28]");
  Tensor labels = read_idx(labels_path);
  LIMPID_CHECK(labels.dim() == 1, DataError, "[idx] ", labels_path, " holds an array of shape ", labels.shape(),
               ", expected [N]");
  const std::uint8_t* first = labels.data<std::uint8_t>();
  return std::make_shared<ImageArrayDataset>(raw::unsqueeze(images, 1),
                                             std::vector<std::uint8_t>(first, first + labels.numel()), names,
                                             images_path + " and " + labels_path);
}

}  // namespace

Tensor parse_idx(const std::uint8_t* bytes, std::size_t count, const std::string& source) {
  Source in(bytes, count, source);
  std::uint8_t magic[4];
  in.read(magic, 4, "the magic number");
  LIMPID_CHECK(magic[0] == 0 && magic[1] == 0, DataError, "[idx] ", source, " is no IDX file: it starts with bytes ",
               static_cast<int>(magic[0]), " ", static_cast<int>(magic[1]), ", not 0 0");
  LIMPID_CHECK(magic[2] == 8, DataError, "[idx] ", source, " has element type ", static_cast<int>(magic[2]),
               "; only 8 (unsigned byte) is read");
  LIMPID_CHECK(magic[3] >= 1 && magic[3] <= kMaxRank, DataError, "[idx] ", source, " has rank ",
               static_cast<int>(magic[3]), ", expected 1..", kMaxRank);
  Shape shape;
  std::uint64_t total = 1;
  for (int d = 0; d < magic[3]; d++) {
    std::uint8_t be[4];
    in.read(be, 4, "a dimension");
    const std::uint64_t size =
        (std::uint64_t{be[0]} << 24) | (std::uint64_t{be[1]} << 16) | (std::uint64_t{be[2]} << 8) | be[3];
    shape.push_back(static_cast<std::int64_t>(size));
    LIMPID_CHECK(!__builtin_mul_overflow(total, size, &total), DataError, "[idx] ", source, ": the sizes ", shape,
                 " overflow");
  }
  LIMPID_CHECK(total <= kMaxBytes, DataError, "[idx] ", source, " claims ", total, " bytes, more than the accepted ",
               kMaxBytes);
  LIMPID_CHECK(total <= in.limit(), DataError, "[idx] ", source, " is truncated: ", shape, " needs ", total,
               " bytes, the file of ", count, " cannot hold them");
  Tensor array = empty_io(shape, DType::uint8, "dataset");
  if (total > 0) in.read(array.mutable_data<std::uint8_t>(), total, "the array");
  in.finish();
  return array;
}

Tensor read_idx(const std::string& path) {
  std::vector<std::uint8_t> bytes = read_file(path, kMaxBytes + 4 + 4 * kMaxRank);
  return parse_idx(bytes.data(), bytes.size(), path);
}

bool has_idx_pair(const std::string& dir, bool train) {
  return !find_file(dir, train, "-images-idx3-ubyte").empty() && !find_file(dir, train, "-labels-idx1-ubyte").empty();
}

std::vector<std::string> fashion_mnist_classes() {
  return {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"};
}

std::vector<std::string> mnist_classes() { return {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}; }

std::shared_ptr<ImageArrayDataset> fashion_mnist(const std::string& dir, bool train) {
  return open_pair(dir, train, fashion_mnist_classes());
}

std::shared_ptr<ImageArrayDataset> mnist(const std::string& dir, bool train) {
  return open_pair(dir, train, mnist_classes());
}

}  // namespace limpid::data
