#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvd::digest {

/// Writes a value as Python's pickle does in protocol 5, as far as identities need it. Every value
/// is an object of its own: where Python would refer back to the same object, it is written again.
/// Nothing here reads a pickle. Source: CPython, Lib/pickle.py. Owner: one thread. Errors: none.
/// Precondition: a text is below 64 KiB, which is one frame.
class PickleWriter {
 public:
  void clear() { text_.clear(); }
  /// The pickle of the one value that was written. The next call may change it.
  [[nodiscard]] std::span<const std::uint8_t> text() {
    constexpr std::uint8_t kStop = '.', kProtocol = 0x80, kFrame = 0x95;
    std::vector<std::uint8_t> all = {kProtocol, 5, kFrame};
    for (unsigned shift = 0; shift < 64; shift += 8) {
      all.push_back(static_cast<std::uint8_t>((text_.size() + 1) >> shift));
    }
    all.insert(all.end(), text_.begin(), text_.end());
    all.push_back(kStop);
    text_ = std::move(all);
    return text_;
  }

  void integer(std::int64_t value) {
    if (value >= 0 && value <= 0xff) return put('K', value, 1);
    if (value >= 0 && value <= 0xffff) return put('M', value, 2);
    if (value >= INT32_MIN && value <= INT32_MAX) return put('J', value, 4);
    unsigned bytes = 5;  // one more bit is for the sign
    while (bytes < 8 && (value >> (8 * bytes - 1)) != (value < 0 ? -1 : 0)) ++bytes;
    put(0x8a, bytes, 1);
    put_bytes(value, bytes);
  }
  void bytes(std::span<const std::uint8_t> value) {
    value.size() < 256 ? put('C', std::ssize(value), 1) : put('B', std::ssize(value), 4);
    append(value);
  }
  /// UTF-8.
  void string(std::string_view value) {
    value.size() < 256 ? put(0x8c, std::ssize(value), 1) : put('X', std::ssize(value), 4);
    append({reinterpret_cast<const std::uint8_t*>(value.data()), value.size()});
  }
  /// A tuple: the next `size` values, one at least, are its elements, and end_array() comes after
  /// them.
  void array(std::size_t size) {
    if (size > kShort) text_.push_back('(');
  }
  void end_array(std::size_t size) {
    text_.push_back(size > kShort ? 't' : static_cast<std::uint8_t>(0x84 + size));
    text_.push_back(kMemoize);
  }
  void null() { text_.push_back('N'); }

 private:
  static constexpr std::size_t kShort = 3;
  static constexpr std::uint8_t kMemoize = 0x94;

  void put(unsigned opcode, std::int64_t number, unsigned bytes) {
    text_.push_back(static_cast<std::uint8_t>(opcode));
    put_bytes(number, bytes);
  }
  /// The lowest first.
  void put_bytes(std::int64_t number, unsigned bytes) {
    for (unsigned i = 0; i < bytes; ++i) {
      text_.push_back(static_cast<std::uint8_t>(static_cast<std::uint64_t>(number) >> (8 * i)));
    }
  }
  void append(std::span<const std::uint8_t> value) {
    text_.insert(text_.end(), value.begin(), value.end());
    text_.push_back(kMemoize);
  }

  std::vector<std::uint8_t> text_;
};

}  // namespace kvd::digest
