#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace kvd::store {

/// A list that never changes, shared by all its copies. What an order repeats each iteration is
/// computed and allocated once. Owner: any thread; immutable.
template <class T>
class SharedList {
 public:
  SharedList() = default;
  SharedList(std::vector<T> list)  // NOLINT(google-explicit-constructor): stands for the vector
      : list_(std::make_shared<const std::vector<T>>(std::move(list))) {}

  [[nodiscard]] std::size_t size() const { return list_ ? list_->size() : 0; }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] const T* data() const { return list_ ? list_->data() : nullptr; }
  [[nodiscard]] const T* begin() const { return data(); }
  [[nodiscard]] const T* end() const { return data() + size(); }
  [[nodiscard]] const T& operator[](std::size_t i) const { return (*list_)[i]; }

 private:
  std::shared_ptr<const std::vector<T>> list_;
};

}  // namespace kvd::store
