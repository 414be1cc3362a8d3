#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace kvd::store {

/// Records by number. Grows by pieces that never move: where a vector of a million doubles, the
/// control thread would copy them all within one command. Neighbours within a piece are so in
/// memory. Owner: control thread. Errors: none, a number beyond the size is the caller's bug. Cost:
/// O(1), but a piece that is made.
template <class T, std::size_t kRecords = 4096>
class Pieces {
 public:
  static constexpr std::size_t kPiece = kRecords;

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] T& operator[](std::size_t i) { return pieces_[i / kPiece][i % kPiece]; }
  [[nodiscard]] const T& operator[](std::size_t i) const { return pieces_[i / kPiece][i % kPiece]; }
  void push_back(T record) {
    grow(size_ + 1);
    (*this)[size_ - 1] = std::move(record);
  }
  /// Its piece stays for the next one.
  void pop_back() { --size_; }
  /// Grows to this many at least. New records are as T() makes them; popped ones are as they were.
  void grow(std::size_t size) {
    while (pieces_.size() * kPiece < size) pieces_.push_back(std::make_unique<T[]>(kPiece));
    if (size > size_) size_ = size;
  }
  [[nodiscard]] std::size_t allocated_bytes() const {
    return pieces_.size() * kPiece * sizeof(T) + pieces_.capacity() * sizeof(pieces_[0]);
  }

 private:
  std::vector<std::unique_ptr<T[]>> pieces_;
  std::size_t size_ = 0;
};

}  // namespace kvd::store
