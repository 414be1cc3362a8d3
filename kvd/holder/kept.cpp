#include "kvd/holder/kept.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

namespace kvd::holder {

namespace {

/// The value of the line that begins with `key`=; empty: there is none.
std::string value_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (line.size() > key.size() && line.starts_with(key) && line[key.size()] == '=') {
      return std::string(line.substr(key.size() + 1));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return {};
}

/// Names stand in LISTEN_FDNAMES, with colons between.
bool may_be_a_name(const std::string& name) {
  return !name.empty() && name.size() <= Kept::kMostName &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return c > ' ' && c < 127 && c != ':'; });
}

bool same_file(int a, int b) {
  struct stat one {
  }, other{};
  return ::fstat(a, &one) == 0 && ::fstat(b, &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

}  // namespace

void Kept::take(std::string_view text, std::vector<UniqueFd> descriptors) {
  ready_ = ready_ || value_of(text, "READY") == "1";
  const std::string name = value_of(text, "FDNAME");
  if (value_of(text, "FDSTORE") == "1") {
    for (const UniqueFd& fd : descriptors) add(name.empty() ? "stored" : name, fd);
  }
  if (value_of(text, "FDSTOREREMOVE") == "1" && !name.empty()) {
    std::erase_if(all_, [&](auto& entry) {
      if (entry.first != name) return false;
      closer_.close(std::move(entry.second));
      return true;
    });
  }
  for (UniqueFd& fd : descriptors) {
    if (fd.valid()) closer_.close(std::move(fd));
  }
}

void Kept::add(const std::string& name, const UniqueFd& descriptor) {
  const bool known = std::any_of(all_.begin(), all_.end(), [&](const auto& entry) {
    return entry.first == name && same_file(entry.second.get(), descriptor.get());
  });
  if (known || all_.size() >= most_ || !may_be_a_name(name)) return;
  // Above all numbers at which a child gets descriptors of its own.
  UniqueFd high(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, static_cast<int>(most_) + 16));
  if (high.valid()) all_.emplace_back(name, std::move(high));
}

}  // namespace kvd::holder
