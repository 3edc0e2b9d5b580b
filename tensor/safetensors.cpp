#include <limpid/tensor/safetensors.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <limpid/base/error.h>
#include <limpid/base/file.h>
#include <limpid/tensor/creation.h>
#include <limpid/tensor/raw.h>

namespace limpid {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little endian");
constexpr std::uint64_t kMaxHeader = 100'000'000;  // the limit of the format's own library
constexpr const char* kMetadata = "__metadata__";
constexpr std::pair<DType, const char*> kNames[] = {
    {DType::float64, "F64"}, {DType::float32, "F32"}, {DType::float16, "F16"}, {DType::bfloat16, "BF16"},
    {DType::int64, "I64"},   {DType::int32, "I32"},   {DType::uint8, "U8"},    {DType::boolean, "BOOL"}};

const char* format_name(DType dtype) {
  for (const auto& [known, name] : kNames)
    if (known == dtype) return name;
  LIMPID_THROW(InternalError, "unknown dtype ", static_cast<int>(dtype));
}

// Text of a file in an error message: printable and short.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text.substr(0, 80)) out += (c >= 32 && c < 127) ? c : '?';
  return out + (text.size() > 80 ? "...\"" : "\"");
}

// Calls write(pointer, bytes) over the elements in row-major order.
template <class Write>
void walk_row_major(const Tensor& tensor, Write&& write) {
  const std::size_t element = size_of(tensor.dtype());
  const char* base = static_cast<const char*>(tensor.raw_data());
  if (tensor.numel() == 0) return;
  if (tensor.is_contiguous()) {
    write(base, tensor.nbytes());
    return;
  }
  std::vector<char> buffer;
  constexpr std::size_t kFlush = std::size_t{1} << 20;
  buffer.reserve(kFlush + element);
  const Shape& shape = tensor.shape();
  std::int64_t index[kMaxDims] = {};
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < tensor.numel(); i++) {
    const char* p = base + offset * static_cast<std::int64_t>(element);
    buffer.insert(buffer.end(), p, p + element);
    if (buffer.size() >= kFlush) {
      write(buffer.data(), buffer.size());
      buffer.clear();
    }
    for (int d = shape.size() - 1; d >= 0; d--) {
      offset += tensor.strides()[d];
      if (++index[d] < shape[d]) break;
      offset -= tensor.strides()[d] * shape[d];
      index[d] = 0;
    }
  }
  write(buffer.data(), buffer.size());
}

struct Entry {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// Checks one header; every error names the file.
class HeaderReader {
 public:
  HeaderReader(const std::string& path, std::uint64_t data_bytes) : path_(path), data_bytes_(data_bytes) {}

  std::vector<Entry> read(const std::string& text, std::map<std::string, std::string>* metadata) {
    // The format wants the header to start with '{'; spaces may follow it, nothing may precede it.
    LIMPID_CHECK(!text.empty() && text[0] == '{', DataError, "[safetensors] ", path_,
                 ": the header is not a JSON object");
    Json header = parse(text);
    std::vector<Entry> entries;
    for (const auto& [name, value] : header.items()) {
      if (name == kMetadata) {
        read_metadata(value, metadata);
      } else {
        entries.push_back(read_entry(name, value));
      }
    }
    check_layout(entries);
    return entries;
  }

 private:
  Json parse(const std::string& text) {
    std::vector<std::set<std::string>> keys;  // of the objects that are open
    std::string twice;
    auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
      LIMPID_CHECK(depth <= 4, DataError, "[safetensors] ", path_, ": the header is nested too deep");
      if (event == Json::parse_event_t::object_start) {
        keys.emplace_back();
      } else if (event == Json::parse_event_t::object_end) {
        keys.pop_back();
      } else if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
        if (twice.empty()) twice = quoted(parsed.get<std::string>());
      }
      return true;
    };
    try {
      Json header = Json::parse(text, watch);
      LIMPID_CHECK(twice.empty(), DataError, "[safetensors] ", path_, ": the name ", twice,
                   " stands twice in the header");
      return header;
    } catch (const Json::exception& error) {
      LIMPID_THROW(DataError, "[safetensors] ", path_, ": the header is not JSON: ", quoted(error.what()));
    }
  }

  void read_metadata(const Json& value, std::map<std::string, std::string>* metadata) {
    LIMPID_CHECK(value.is_object(), DataError, "[safetensors] ", path_, ": __metadata__ is not an object");
    for (const auto& [key, text] : value.items()) {
      LIMPID_CHECK(text.is_string(), DataError, "[safetensors] ", path_, ": metadata ", quoted(key),
                   " is not a string");
      if (metadata) (*metadata)[key] = text.get<std::string>();
    }
  }

  // A whole number >= 0; anything else in the header is an error.
  std::uint64_t whole(const Json& value, const std::string& tensor, const char* what) {
    LIMPID_CHECK(value.is_number_unsigned(), DataError, "[safetensors] ", path_, ": ", what, " of tensor ", tensor,
                 " is not a whole number >= 0: ", quoted(value.dump(-1, ' ', true, Json::error_handler_t::replace)));
    return value.get<std::uint64_t>();
  }

  Entry read_entry(const std::string& name, const Json& value) {
    const std::string shown = quoted(name);
    bool fields = value.is_object() && value.size() == 3 && value.contains("dtype") && value.contains("shape") &&
                  value.contains("data_offsets");
    LIMPID_CHECK(fields, DataError, "[safetensors] ", path_, ": tensor ", shown,
                 " does not have exactly dtype, shape and data_offsets");
    Entry entry;
    entry.name = name;
    const Json& dtype = value["dtype"];
    LIMPID_CHECK(dtype.is_string(), DataError, "[safetensors] ", path_, ": dtype of tensor ", shown,
                 " is not a string");
    std::optional<DType> known;
    for (const auto& [type, spelled] : kNames)
      if (dtype.get_ref<const std::string&>() == spelled) known = type;
    LIMPID_CHECK(known.has_value(), DataError, "[safetensors] ", path_, ": tensor ", shown, " has the unknown dtype ",
                 quoted(dtype.get<std::string>()), "; known are F64 F32 F16 BF16 I64 I32 U8 BOOL");
    entry.dtype = *known;

    const Json& shape = value["shape"];
    LIMPID_CHECK(shape.is_array(), DataError, "[safetensors] ", path_, ": shape of tensor ", shown, " is not a list");
    LIMPID_CHECK(shape.size() <= static_cast<std::size_t>(kMaxDims), DataError, "[safetensors] ", path_, ": tensor ",
                 shown, " has ", shape.size(), " dims, more than ", kMaxDims);
    // Every size and their product must fit the file, so nothing overflows later.
    std::uint64_t bytes = size_of(entry.dtype);
    for (const Json& dim : shape) {
      std::uint64_t size = whole(dim, shown, "shape");
      LIMPID_CHECK(size <= INT64_MAX && !__builtin_mul_overflow(bytes, size, &bytes) && bytes <= INT64_MAX, DataError,
                   "[safetensors] ", path_, ": the shape of tensor ", shown, " overflows");
      entry.shape.push_back(static_cast<std::int64_t>(size));
    }

    const Json& offsets = value["data_offsets"];
    LIMPID_CHECK(offsets.is_array() && offsets.size() == 2, DataError, "[safetensors] ", path_,
                 ": data_offsets of tensor ", shown, " is not a pair");
    entry.begin = whole(offsets[0], shown, "data_offsets");
    entry.end = whole(offsets[1], shown, "data_offsets");
    LIMPID_CHECK(entry.begin <= entry.end && entry.end <= data_bytes_, DataError, "[safetensors] ", path_, ": tensor ",
                 shown, " lies at bytes ", entry.begin, "..", entry.end, " of ", data_bytes_);
    LIMPID_CHECK(entry.end - entry.begin == bytes, DataError, "[safetensors] ", path_, ": tensor ", shown, " of shape ",
                 entry.shape, " ", dtype.get<std::string>(), " needs ", bytes, " bytes, its offsets span ",
                 entry.end - entry.begin);
    return entry;
  }

  // The tensors must tile the data: no overlap, no hole, no rest.
  void check_layout(std::vector<Entry>& entries) {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    std::uint64_t next = 0;
    for (const Entry& entry : entries) {
      LIMPID_CHECK(entry.begin == next, DataError, "[safetensors] ", path_, ": tensor ", quoted(entry.name),
                   " starts at byte ", entry.begin,
                   entry.begin < next ? ", inside the one before, which ends at " : ", leaving a hole after ", next);
      next = entry.end;
    }
    LIMPID_CHECK(next == data_bytes_, DataError, "[safetensors] ", path_, ": the tensors end at byte ", next,
                 " of the data, the file goes on to ", data_bytes_);
  }

  const std::string& path_;
  std::uint64_t data_bytes_;
};

}  // namespace

void save_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::map<std::string, Tensor> on_cpu;
  for (const auto& [name, tensor] : tensors) {
    const bool on_gpu = tensor.defined() && tensor.device().type == DeviceType::cuda;
    on_cpu.emplace(name, on_gpu ? raw::to_device(tensor, kCpu) : tensor);
  }
  std::vector<const std::pair<const std::string, Tensor>*> order;
  for (const auto& item : on_cpu) {
    LIMPID_CHECK(item.first != kMetadata, ArgumentError, "[save_safetensors] a tensor cannot be named ", kMetadata);
    LIMPID_CHECK(item.second.defined(), ArgumentError, "[save_safetensors] tensor \"", item.first, "\" is undefined");
    LIMPID_CHECK(item.second.device() == kCpu, DeviceError, "[save_safetensors] tensor \"", item.first,
                 "\" is not on the cpu: ", item.second);
    order.push_back(&item);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](auto* a, auto* b) { return size_of(a->second.dtype()) > size_of(b->second.dtype()); });
  std::string text;
  try {
    Json header = Json::object();
    if (!metadata.empty()) header[kMetadata] = metadata;
    std::uint64_t offset = 0;
    for (const auto* item : order) {
      const Tensor& tensor = item->second;
      header[item->first] = {{"dtype", format_name(tensor.dtype())},
                             {"shape", tensor.shape().vec()},
                             {"data_offsets", {offset, offset + tensor.nbytes()}}};
      offset += tensor.nbytes();
    }
    text = header.dump();
  } catch (const Json::exception& error) {
    LIMPID_THROW(ArgumentError, "[save_safetensors] ", path, ": a name or metadata text is not UTF-8: ", error.what());
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  LIMPID_CHECK(text.size() <= kMaxHeader, ArgumentError, "[save_safetensors] ", path, ": the header takes ",
               text.size(), " bytes, more than ", kMaxHeader);
  AtomicFile file(path);
  std::uint64_t length = text.size();
  file.write(&length, sizeof length);
  file.write(text);
  for (const auto* item : order)
    walk_row_major(item->second, [&](const char* data, std::size_t bytes) { file.write(data, bytes); });
  file.commit();
}

std::map<std::string, Tensor> load_safetensors(const std::string& path, std::map<std::string, std::string>* metadata,
                                               memory::Role role) {
  InputFile file(path);
  std::uint64_t length = 0;
  LIMPID_CHECK(file.size() >= 8, DataError, "[safetensors] ", path, " has ", file.size(),
               " bytes, not even a header length");
  file.read(&length, sizeof length);
  LIMPID_CHECK(length <= kMaxHeader, DataError, "[safetensors] ", path, ": the header claims ", length,
               " bytes, more than the format's ", kMaxHeader);
  const std::uint64_t rest = file.size() - 8;
  LIMPID_CHECK(length <= rest, DataError, "[safetensors] ", path, ": the header claims ", length, " bytes, ", rest,
               " follow in the file");
  std::string text(length, '\0');
  file.read(text.data(), length);

  std::map<std::string, std::string> texts;
  std::vector<Entry> entries = HeaderReader(path, rest - length).read(text, &texts);
  std::map<std::string, Tensor> tensors;
  for (const Entry& entry : entries) {  // in file order
    Tensor tensor = empty(entry.shape, {.dtype = entry.dtype, .role = role});
    if (tensor.nbytes() > 0) {
      char* data = static_cast<char*>(tensor.raw_mutable_data());
      file.read(data, tensor.nbytes());
      if (entry.dtype == DType::boolean) {
        const auto* bytes = reinterpret_cast<const unsigned char*>(data);
        for (std::size_t i = 0; i < tensor.nbytes(); i++)
          LIMPID_CHECK(bytes[i] <= 1, DataError, "[safetensors] ", path, ": element ", i, " of the BOOL tensor ",
                       quoted(entry.name), " is ", static_cast<int>(bytes[i]));
      }
    }
    tensors.emplace(entry.name, std::move(tensor));
  }
  if (metadata) *metadata = std::move(texts);
  return tensors;
}

}  // namespace limpid
