#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/result.hpp"

namespace kvd::ctl::top {

/// Which of the two lists is below the head.
enum class List : std::uint8_t { kEngines, kRequests };
/// What rows are ordered by, the largest first; kNumber: by their numbers.
enum class Order : std::uint8_t { kNumber, kMemory, kRate, kLag };

/// Turns overviews into the lines of text that `kvdctl top` shows. Knows no terminal.
/// Source: kvd design; the figures are those of the web console.
/// Owner:  one thread.
class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// Takes the next overview document. Rates are between this one and the one before. Errors:
  /// Internal when it is not the JSON that this knows; the screen stays as it was.
  Status take(std::string_view overview);

  /// From the next rows() on.
  void choose(List list) { list_ = list; }
  void choose(Order order) { order_ = order; }
  [[nodiscard]] List list() const { return list_; }
  [[nodiscard]] Order order() const { return order_; }

  /// The lines that stay in place; bars fit `width` columns.
  [[nodiscard]] std::vector<std::string> head(std::size_t width) const;
  /// The list: its title first.
  [[nodiscard]] std::vector<std::string> rows() const;

 private:
  struct Overviews;
  std::unique_ptr<Overviews> overviews_;
  List list_ = List::kEngines;
  Order order_ = Order::kNumber;
};

}  // namespace kvd::ctl::top
