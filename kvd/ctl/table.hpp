#pragma once

#include <string>
#include <vector>

namespace kvd::ctl {

/// Text in columns. The first row is the head; numbers are aligned right, the rest left.
class Table {
 public:
  explicit Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  [[nodiscard]] std::size_t rows() const { return rows_.size() - 1; }
  [[nodiscard]] std::string render() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// "0 B", "1023 B", "1.5 KiB", "256 MiB": at most three digits and one decimal.
[[nodiscard]] std::string bytes_text(double bytes);
/// "0 s", "250 us", "12.5 ms", "3.2 s", "5m 03s", "2h 05m".
[[nodiscard]] std::string seconds_text(double seconds);

}  // namespace kvd::ctl
