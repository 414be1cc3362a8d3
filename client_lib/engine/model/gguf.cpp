#include "client_lib/engine/model/gguf.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client_lib/engine/model/half.hpp"

namespace kvd::engine {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint32_t kMostDims = 4;
/// The least a tensor's or a value's entry takes: bounds both counts before anything is read.
constexpr std::uint64_t kLeastEntry = 13;

enum ValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kF64,  // in file order
};

/// Reads little-endian values one after the other and never past the end.
class GgufCursor {
 public:
  explicit GgufCursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  [[nodiscard]] std::size_t at() const { return at_; }
  [[nodiscard]] std::size_t left() const { return bytes_.size() - at_; }

  template <class T>
  Result<T> read() {
    if (left() < sizeof(T)) return torn();
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  Result<std::string> read_text() {
    KVD_ASSIGN_OR_RETURN(const auto length, read<std::uint64_t>());
    if (length > left()) return torn();
    std::string text(reinterpret_cast<const char*>(bytes_.data() + at_), length);
    at_ += length;
    return text;
  }

  Status skip(std::uint64_t bytes) {
    if (bytes > left()) return torn();
    at_ += bytes;
    return {};
  }

 private:
  [[nodiscard]] Error torn() const {
    return make_error(ErrorCode::kInvalidArgument,
                      "the GGUF file ends at byte " + std::to_string(bytes_.size()) +
                          ", in the middle of its header: get a whole copy");
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

Error broken(const std::string& what) {
  return make_error(ErrorCode::kInvalidArgument, "the GGUF file is broken: " + what);
}

/// Bytes of a value of fixed size; 0: not of fixed size, or no such type.
std::uint64_t size_of(std::uint32_t type) {
  constexpr std::uint64_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kSizes) ? kSizes[type] : 0;
}

/// Bytes of an element of a tensor this engine reads; 0: of another type.
std::uint64_t element_bytes(std::uint32_t type) {
  switch (static_cast<GgufType>(type)) {
    case GgufType::kF32:
      return 4;
    case GgufType::kF16:
    case GgufType::kBf16:
      return 2;
  }
  return 0;
}

template <class Wide, class T>
Result<GgufValue> widened(GgufCursor& cursor) {
  KVD_ASSIGN_OR_RETURN(const T value, cursor.read<T>());
  return GgufValue(static_cast<Wide>(value));
}

Status skip_texts(GgufCursor& cursor, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    KVD_ASSIGN_OR_RETURN(const auto length, cursor.read<std::uint64_t>());
    KVD_TRY(cursor.skip(length));
  }
  return {};
}

Result<GgufValue> read_array(GgufCursor& cursor) {
  KVD_ASSIGN_OR_RETURN(const auto type, cursor.read<std::uint32_t>());
  KVD_ASSIGN_OR_RETURN(const auto length, cursor.read<std::uint64_t>());
  if (length > cursor.left()) return broken("an array is longer than the file");
  if (type == kText) {
    KVD_TRY(skip_texts(cursor, length));
  } else if (size_of(type) == 0) {
    return broken("an array of type " + std::to_string(type));
  } else {
    KVD_TRY(cursor.skip(length * size_of(type)));  // length <= file size: no overflow
  }
  return GgufValue(GgufArray{length});
}

Result<GgufValue> read_value(GgufCursor& cursor) {
  KVD_ASSIGN_OR_RETURN(const auto type, cursor.read<std::uint32_t>());
  switch (type) {
    case kU8:
      return widened<std::uint64_t, std::uint8_t>(cursor);
    case kU16:
      return widened<std::uint64_t, std::uint16_t>(cursor);
    case kU32:
      return widened<std::uint64_t, std::uint32_t>(cursor);
    case kU64:
      return widened<std::uint64_t, std::uint64_t>(cursor);
    case kI8:
      return widened<std::int64_t, std::int8_t>(cursor);
    case kI16:
      return widened<std::int64_t, std::int16_t>(cursor);
    case kI32:
      return widened<std::int64_t, std::int32_t>(cursor);
    case kI64:
      return widened<std::int64_t, std::int64_t>(cursor);
    case kF32:
      return widened<double, float>(cursor);
    case kF64:
      return widened<double, double>(cursor);
    case kBool: {
      KVD_ASSIGN_OR_RETURN(const auto value, cursor.read<std::uint8_t>());
      return GgufValue(value != 0);
    }
    case kText: {
      KVD_ASSIGN_OR_RETURN(auto text, cursor.read_text());
      return GgufValue(std::move(text));
    }
    case kArray:
      return read_array(cursor);
    default:
      return broken("a value of type " + std::to_string(type));
  }
}

Result<GgufTensor> read_tensor(GgufCursor& cursor) {
  GgufTensor tensor;
  KVD_ASSIGN_OR_RETURN(const auto dims, cursor.read<std::uint32_t>());
  if (dims == 0 || dims > kMostDims) {
    return broken("a tensor of " + std::to_string(dims) + " dimensions");
  }
  for (std::uint32_t i = 0; i < dims; ++i) {
    KVD_ASSIGN_OR_RETURN(const auto size, cursor.read<std::uint64_t>());
    tensor.dims.push_back(size);
  }
  KVD_ASSIGN_OR_RETURN(tensor.type, cursor.read<std::uint32_t>());
  KVD_ASSIGN_OR_RETURN(tensor.offset, cursor.read<std::uint64_t>());
  return tensor;
}

std::string shape_of(const std::vector<std::uint64_t>& dims) {
  std::string text;
  for (const std::uint64_t size : dims) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

std::vector<float> decode(std::span<const std::byte> bytes, GgufType type) {
  std::vector<float> out(bytes.size() / element_bytes(static_cast<std::uint32_t>(type)));
  if (type == GgufType::kF32) {
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, sizeof bits);
    out[i] = type == GgufType::kF16 ? from_half(bits) : from_bfloat(bits);
  }
  return out;
}

}  // namespace

/// The header, then values, then tensors, then aligned data.
class GgufParser {
 public:
  explicit GgufParser(std::span<const std::byte> file) : file_(file), cursor_(file) {}

  Result<Gguf> run() {
    KVD_ASSIGN_OR_RETURN(const auto magic, cursor_.read<std::uint32_t>());
    KVD_ASSIGN_OR_RETURN(const auto version, cursor_.read<std::uint32_t>());
    if (magic != kMagic) {
      return make_error(ErrorCode::kInvalidArgument, "this is no GGUF file (wrong magic)");
    }
    if (version != 2 && version != 3) {
      return make_error(ErrorCode::kUnsupported,
                        "GGUF version " + std::to_string(version) +
                            ": this engine reads little-endian versions 2 and 3");
    }
    KVD_ASSIGN_OR_RETURN(const auto tensors, cursor_.read<std::uint64_t>());
    KVD_ASSIGN_OR_RETURN(const auto values, cursor_.read<std::uint64_t>());
    if (tensors > file_.size() / kLeastEntry || values > file_.size() / kLeastEntry) {
      return broken("it counts more entries than it has bytes for");
    }
    KVD_TRY(read_values(values));
    KVD_TRY(read_tensors(tensors));
    KVD_TRY(find_data());
    return std::move(out_);
  }

 private:
  Status read_values(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      KVD_ASSIGN_OR_RETURN(auto key, cursor_.read_text());
      KVD_ASSIGN_OR_RETURN(auto value, read_value(cursor_));
      if (!out_.values_.emplace(std::move(key), std::move(value)).second) {
        return broken("a key occurs twice");
      }
    }
    return {};
  }

  Status read_tensors(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      KVD_ASSIGN_OR_RETURN(auto name, cursor_.read_text());
      KVD_ASSIGN_OR_RETURN(auto tensor, read_tensor(cursor_));
      if (!out_.tensors_.emplace(std::move(name), std::move(tensor)).second) {
        return broken("a tensor occurs twice");
      }
    }
    return {};
  }

  Status find_data() {
    const std::uint64_t alignment = out_.number("general.alignment").value_or(kDefaultAlignment);
    if (alignment == 0 || alignment % 8 != 0 || alignment > file_.size()) {
      return broken("its alignment is " + std::to_string(alignment));
    }
    const std::uint64_t start = (cursor_.at() + alignment - 1) / alignment * alignment;
    if (start > file_.size()) return out_.tensors_.empty() ? Status() : broken("it has no data");
    out_.data_ = file_.subspan(start);
    return {};
  }

  std::span<const std::byte> file_;
  GgufCursor cursor_;
  Gguf out_;
};

Result<Gguf> Gguf::parse(std::span<const std::byte> file) { return GgufParser(file).run(); }

const GgufValue* Gguf::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::optional<std::uint64_t> Gguf::number(const std::string& key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* plain = std::get_if<std::uint64_t>(value)) return *plain;
  const auto* with_sign = std::get_if<std::int64_t>(value);
  if (with_sign == nullptr || *with_sign < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*with_sign);
}

std::optional<double> Gguf::real(const std::string& key) const {
  const GgufValue* value = find(key);
  const auto* real = value == nullptr ? nullptr : std::get_if<double>(value);
  return real == nullptr ? std::nullopt : std::optional(*real);
}

std::optional<std::string> Gguf::text(const std::string& key) const {
  const GgufValue* value = find(key);
  const auto* text = value == nullptr ? nullptr : std::get_if<std::string>(value);
  return text == nullptr ? std::nullopt : std::optional(*text);
}

Result<std::vector<float>> Gguf::floats(const std::string& name,
                                        const std::vector<std::uint64_t>& dims) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return broken("it has no tensor " + name);
  const GgufTensor& tensor = found->second;
  const std::uint64_t element = element_bytes(tensor.type);
  if (element == 0) {
    return make_error(
        ErrorCode::kUnsupported,
        "tensor " + name + " has type " + std::to_string(tensor.type) +
            ": this engine reads F32, F16 and BF16, convert the model to one of them");
  }
  if (tensor.dims != dims) {
    return broken("tensor " + name + " is " + shape_of(tensor.dims) + ", its header says " +
                  shape_of(dims));
  }
  std::uint64_t bytes = element;
  for (const std::uint64_t size : dims) {
    if (size == 0 || bytes > data_.size() / size) return broken("tensor " + name + " is cut off");
    bytes *= size;
  }
  if (tensor.offset > data_.size() - bytes) return broken("tensor " + name + " is cut off");
  return decode(data_.subspan(tensor.offset, bytes), static_cast<GgufType>(tensor.type));
}

}  // namespace kvd::engine
