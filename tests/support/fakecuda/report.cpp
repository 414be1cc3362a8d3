#include "tests/support/fakecuda/report.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "tests/support/fakecuda/driver.hpp"

namespace fakecuda {
namespace {

constexpr std::size_t kKept = 100;

// Not a static object: its life must not end while streams still run.
Violations* const the_violations = new Violations;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c >= ' ' ? c : ' ';
  }
  return out + '"';
}

}  // namespace

Violations& violations() { return *the_violations; }
void violation(const std::string& rule, const std::string& detail) {
  violations().add(rule, detail);
}

std::string hex(unsigned long long value) {
  char text[20];
  std::snprintf(text, sizeof text, "0x%llx", value);
  return text;
}

void Violations::add(const std::string& rule, const std::string& detail) {
  const std::lock_guard lock(mutex_);
  ++counts_[rule];
  if (first_.size() < kKept) first_.push_back({rule, detail});
  if (!strict_) return;
  std::fprintf(stderr, "fakecuda: rule broken: %s: %s\n", rule.c_str(), detail.c_str());
  std::abort();
}

std::size_t Violations::count(const char* rule) const {
  const std::lock_guard lock(mutex_);
  std::size_t total = 0;
  for (const auto& [name, times] : counts_) {
    if (rule == nullptr || name == rule) total += times;
  }
  return total;
}

void Violations::clear() {
  const std::lock_guard lock(mutex_);
  first_.clear();
  counts_.clear();
}

std::string Violations::json() const {
  const std::lock_guard lock(mutex_);
  std::string out = "[";
  for (const Violation& item : first_) {
    if (out.size() > 1) out += ',';
    out += "{\"rule\":" + quoted(item.rule) + ",\"detail\":" + quoted(item.detail) + '}';
  }
  return out + ']';
}

std::string report_json() {
  Driver& d = driver();
  const std::lock_guard lock(d.mutex);
  CUresult latched = CUDA_SUCCESS;
  for (const auto& context : d.contexts) latched = std::max(latched, context->latched.load());
  std::ostringstream out;
  out << "{\"pid\":" << ::getpid() << ",\"latched\":" << static_cast<int>(latched)
      << ",\"violation_count\":" << violations().count(nullptr)
      << ",\"violations\":" << violations().json() << R"(,"leaks":{"handles":)"
      << d.vmm.live_handles() << ",\"mappings\":" << d.vmm.live_mappings()
      << ",\"reservations\":" << d.vmm.live_reservations() << ",\"registrations\":" << d.host.size()
      << ",\"streams\":" << d.streams.size() << ",\"events\":" << d.events.size()
      << ",\"exported_fds\":" << open_exports() << R"(},"bytes":{"h2d":)" << d.bytes[0]
      << ",\"d2h\":" << d.bytes[1] << ",\"other\":" << d.bytes[2]
      << "},\"pageable_copies\":" << d.pageable_copies << '}';
  return out.str();
}

void write_report() {
  const std::string& path = driver().config.report;
  if (path.empty()) return;
  const std::string line = report_json() + '\n';
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0 || ::write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    std::fprintf(stderr, "fakecuda: cannot write FAKECUDA_REPORT=%s\n", path.c_str());
  }
  if (fd >= 0) ::close(fd);
}

namespace {

// Runs when the process exits, after the program's own static objects are gone.
__attribute__((destructor)) void at_exit() { write_report(); }

}  // namespace
}  // namespace fakecuda

size_t fakecuda_violations(const char* rule) { return fakecuda::violations().count(rule); }

size_t fakecuda_report(char* buffer, size_t bytes) {
  const std::string text = fakecuda::report_json();
  if (bytes > 0) {
    const std::size_t length = std::min(text.size(), bytes - 1);
    std::memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
  }
  return text.size();
}
