#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace fakecuda {

/// Rules that the program broke. Thread-safe; needs no other lock.
class Violations {
 public:
  /// Notes it, or ends the process where the driver is strict.
  void add(const std::string& rule, const std::string& detail);
  std::size_t count(const char* rule) const;
  void set_strict(bool strict) { strict_ = strict; }
  void clear();
  /// The violations as a JSON array of {"rule", "detail"}; at most the first hundred.
  std::string json() const;

 private:
  struct Violation {
    std::string rule, detail;
  };
  mutable std::mutex mutex_;
  std::vector<Violation> first_;
  std::map<std::string, std::size_t> counts_;
  bool strict_ = false;
};

Violations& violations();
/// Reports a broken rule: violation("unmap_in_flight", "…").
void violation(const std::string& rule, const std::string& detail);
std::string hex(unsigned long long value);

/// One line of JSON about this process: violations, what is still alive, bytes moved.
std::string report_json();
/// Appends it to FAKECUDA_REPORT, if set.
void write_report();

}  // namespace fakecuda
