#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/check.hpp"

/// A fuzz target defines seeds() and run(); fuzz.cpp gives both to libFuzzer. deploy/fuzz.sh builds
/// and runs the targets. What run() expects beyond not crashing it says by expect().
namespace kvd::fuzz {

using View = std::span<const std::byte>;
using Data = std::vector<std::byte>;

/// Inputs to begin with, made by the encoders of the code under test.
[[nodiscard]] std::vector<Data> seeds();

/// Looks at one input.
void run(View input);

inline void expect(bool holds, const std::string& what) { KVD_CHECK(holds, what.c_str()); }

/// Takes bytes off the front of `input`; zeros stand for those that are missing.
template <class T>
[[nodiscard]] T take(View& input) {
  T value{};
  const std::size_t size = std::min(sizeof value, input.size());
  if (size > 0) std::memcpy(&value, input.data(), size);
  input = input.subspan(size);
  return value;
}

inline void add(Data& data, View bytes) { data.insert(data.end(), bytes.begin(), bytes.end()); }
template <class T>
void add_pod(Data& data, const T& value) {
  add(data, std::as_bytes(std::span(&value, 1)));
}
inline void add_text(Data& data, std::string_view text) {
  add(data, std::as_bytes(std::span(text)));
}

[[nodiscard]] inline std::string text_of(View bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Text that is longer than libFuzzer makes any: the first byte 1 stands for the eight letters
/// before it, 10,000 times.
[[nodiscard]] inline std::string expanded(std::string text) {
  constexpr std::size_t kTimes = 10'000, kPiece = 8;
  const std::size_t at = text.find('\1');
  if (at == std::string::npos || at < kPiece) return text;
  std::string piece;
  for (std::size_t i = 0; i < kTimes; ++i) piece += text.substr(at - kPiece, kPiece);
  return text.replace(at, 1, piece);
}

/// A folder of this process under the one for temporary files.
[[nodiscard]] std::string folder();

}  // namespace kvd::fuzz
