#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "ipc/vocabulary/result.hpp"

namespace kvd::engine {

/// A metadata array: what this reader needs of it.
struct GgufArray {
  std::uint64_t length = 0;
};
using GgufValue = std::variant<std::uint64_t, std::int64_t, double, bool, std::string, GgufArray>;

enum class GgufType : std::uint32_t { kF32 = 0, kF16 = 1, kBf16 = 30 };

struct GgufTensor {
  std::vector<std::uint64_t> dims;  ///< innermost first, as in the file
  std::uint32_t type = 0;           ///< a GgufType, or another that only the loader may refuse
  std::uint64_t offset = 0;         ///< into the data section
};

/// A parsed GGUF file, version 2 or 3, little-endian.
/// Source: the format's published specification (ggml docs/gguf.md).
/// Owns:   names and values; tensor data stays in the bytes given to parse(), which outlive this.
/// Errors: InvalidArgument for anything the bytes do not bear out. Each length is compared with
/// what
///         is left before it is used, and nothing is allocated for a count the file cannot hold.
class Gguf {
 public:
  [[nodiscard]] static Result<Gguf> parse(std::span<const std::byte> file);

  [[nodiscard]] const GgufValue* find(const std::string& key) const;
  /// A whole number that is not negative; none: no such key, or another kind of value.
  [[nodiscard]] std::optional<std::uint64_t> number(const std::string& key) const;
  [[nodiscard]] std::optional<double> real(const std::string& key) const;
  [[nodiscard]] std::optional<std::string> text(const std::string& key) const;

  [[nodiscard]] bool has_tensor(const std::string& name) const { return tensors_.contains(name); }
  /// The tensor's values as floats. Its dims must be exactly `dims`, innermost first.
  [[nodiscard]] Result<std::vector<float>> floats(const std::string& name,
                                                  const std::vector<std::uint64_t>& dims) const;

 private:
  friend class GgufParser;
  std::map<std::string, GgufValue> values_;
  std::map<std::string, GgufTensor> tensors_;
  std::span<const std::byte> data_;
};

}  // namespace kvd::engine
