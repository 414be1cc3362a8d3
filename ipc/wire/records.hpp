#pragma once

#include <cstddef>
#include <cstring>
#include <iterator>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvd::wire {

/// The entries that follow a message's fixed part, read in place and handed out by value. Bytes in
/// a receive buffer have no alignment to rely on, so this is no std::span. Owner: views memory of
/// another; valid as long as that is.
template <class T>
class Records {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = void;
    using reference = T;

    Iterator() = default;
    explicit Iterator(const std::byte* at) : at_(at) {}
    T operator*() const { return read(at_); }
    Iterator& operator++() { return at_ += sizeof(T), *this; }
    Iterator operator++(int) { return Iterator(std::exchange(at_, at_ + sizeof(T))); }
    friend bool operator==(Iterator, Iterator) = default;

   private:
    const std::byte* at_ = nullptr;
  };

  Records() = default;
  Records(std::span<const T> entries)  // NOLINT(google-explicit-constructor): a view of a view
      : bytes_(std::as_bytes(entries)) {}
  Records(const std::vector<T>& entries)  // NOLINT(google-explicit-constructor): a view
      : Records(std::span<const T>(entries)) {}

  /// Precondition: bytes.size() is a multiple of sizeof(T).
  static Records over(std::span<const std::byte> bytes) {
    Records records;
    records.bytes_ = bytes;
    return records;
  }

  [[nodiscard]] std::size_t size() const { return bytes_.size() / sizeof(T); }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  /// Precondition: index < size().
  [[nodiscard]] T operator[](std::size_t index) const {
    return read(bytes_.data() + index * sizeof(T));
  }
  [[nodiscard]] Iterator begin() const { return Iterator(bytes_.data()); }
  [[nodiscard]] Iterator end() const { return Iterator(bytes_.data() + bytes_.size()); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  static T read(const std::byte* at) {
    T entry;
    std::memcpy(&entry, at, sizeof(T));
    return entry;
  }

  std::span<const std::byte> bytes_;
};

}  // namespace kvd::wire
