#include "kvd/tiers/disk/files/cleared.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string>
#include <system_error>

namespace kvd::disk {
namespace {

constexpr const char* kCleared = "cleared";
constexpr const char* kNewCleared = "cleared.new";

}  // namespace

std::optional<SlotGeneration> read_cleared(const Folder& folder) {
  const UniqueFd file(
      ::openat(folder.fd(), kCleared, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid() && errno == ENOENT) return SlotGeneration(0);
  std::array<char, 24> text{};
  const auto length = file.valid() ? ::read(file.get(), text.data(), text.size()) : 0;
  const char* const end = text.data() + std::max<ssize_t>(length, 0);
  std::int64_t last = 0;
  const auto [at, error] = std::from_chars(text.data(), end, last);
  if (error != std::errc() || at == end || *at != '\n' || last < 0) return std::nullopt;
  return SlotGeneration(static_cast<std::uint64_t>(last));
}

// A power cut may lose blocks, but it must not bring cleared ones back.
Status write_cleared(const Folder& folder, SlotGeneration last) {
  const UniqueFd file(::openat(folder.fd(), kNewCleared,
                               O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return folder.error(kNewCleared, errno);
  const std::string line = std::to_string(last.value) + "\n";
  const auto written = ::write(file.get(), line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size())) {
    return folder.error(kNewCleared, written < 0 ? errno : ENOSPC);
  }
  const bool kept = ::fdatasync(file.get()) == 0 &&
                    ::renameat(folder.fd(), kNewCleared, folder.fd(), kCleared) == 0 &&
                    ::fsync(folder.fd()) == 0;
  return kept ? Status() : Status(folder.error(kCleared, errno));
}

}  // namespace kvd::disk
