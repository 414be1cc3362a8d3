#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace kvd::digest {

/// Writes CBOR in its canonical form, in which one value has one text: integers and lengths are as
/// short as possible. It covers what identities need. Source: RFC 8949, sections 3 and 4.2. Owner:
/// one thread. Errors: none.
class CborWriter {
 public:
  void clear() { size_ = 0; }
  [[nodiscard]] std::span<const std::uint8_t> text() const { return {room_.data(), size_}; }

  void integer(std::int64_t value) {
    value < 0 ? head(1, static_cast<std::uint64_t>(-(value + 1)))
              : head(0, static_cast<std::uint64_t>(value));
  }
  void bytes(std::span<const std::uint8_t> value) { head(2, value.size()), append(value); }
  void string(std::string_view value) {
    head(3, value.size());
    append({reinterpret_cast<const std::uint8_t*>(value.data()), value.size()});
  }
  /// The next `size` values are its elements.
  void array(std::size_t size) { head(4, size); }
  /// Called after the elements. Other formats need it (pickle.hpp).
  void end_array(std::size_t) {}
  void null() { put(0xf6, 0, 0); }

 private:
  /// A value's first bytes: its major type in three bits, then a number in 0, 1, 2, 4 or 8 bytes.
  void head(unsigned major, std::uint64_t number) {
    constexpr unsigned kInOneByte = 24;  // 24 to 27 say how many bytes follow: 1, 2, 4 or 8
    if (number < kInOneByte) return put(major << 5 | static_cast<unsigned>(number), 0, 0);
    const unsigned log2 = number <= 0xff ? 0 : number <= 0xffff ? 1 : number <= 0xffffffff ? 2 : 3;
    put(major << 5 | (kInOneByte + log2), number << (64 - (8u << log2)), 1u << log2);
  }
  /// A byte, and the first `bytes` of the number, the highest first.
  void put(unsigned first, std::uint64_t number, unsigned bytes) {
    // Writes eight bytes and overwrites the surplus: byte by byte, a block's tokens would take
    // longer to write than to hash.
    make_room(1 + sizeof number);
    room_[size_] = static_cast<std::uint8_t>(first);
    const std::uint64_t highest_first = __builtin_bswap64(number);
    std::memcpy(&room_[size_ + 1], &highest_first, sizeof highest_first);
    size_ += 1 + bytes;
  }
  void append(std::span<const std::uint8_t> value) {
    make_room(value.size());
    std::copy(value.begin(), value.end(), &room_[size_]);
    size_ += value.size();
  }
  void make_room(std::size_t bytes) {
    if (room_.size() <= size_ + bytes) room_.resize(2 * (size_ + bytes));
  }

  std::vector<std::uint8_t> room_;
  std::size_t size_ = 0;  ///< size of the text, which begins where the room does
};

}  // namespace kvd::digest
