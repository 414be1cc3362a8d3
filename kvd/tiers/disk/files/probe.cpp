#include "kvd/tiers/disk/files/probe.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/keep.hpp"
#include "kvd/tiers/disk/files/sectors.hpp"

namespace kvd::disk {
namespace {

constexpr const char* kProbeName = "probe";
// Waiting does not pay for a disk that takes longer for 4 KiB.
constexpr Nanoseconds kProbePatience = std::chrono::seconds(5);
constexpr std::byte kProbePattern{0xa5};

UniqueFd open_probe(const Folder& folder, bool direct) {
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (direct ? O_DIRECT : 0);
  UniqueFd file(::openat(folder.fd(), kProbeName, flags, 0600));
  const int error = errno;
  ::unlinkat(folder.fd(), kProbeName, 0);
  errno = error;
  return file;
}

Error unsupported(const std::string& what, std::int64_t result) {
  const char* reason = result < 0 ? std::strerror(static_cast<int>(-result)) : "other bytes";
  return make_error(ErrorCode::kUnsupported, what + ": " + reason);
}

/// An Io with a file and memory that live as long as the device may use them.
class Probe {
 public:
  Probe(std::unique_ptr<Io> io, UniqueFd file) : io_(std::move(io)), file_(std::move(file)) {}

  /// DeadlineExceeded: it must be kept.
  Status run() {
    const auto sector = memory_[0];
    std::fill(sector.begin(), sector.end(), kProbePattern);
    KVD_TRY(move(true));
    std::fill(sector.begin(), sector.end(), std::byte{0});
    KVD_TRY(move(false));
    const auto is_pattern = [](std::byte byte) { return byte == kProbePattern; };
    if (std::all_of(sector.begin(), sector.end(), is_pattern)) return {};
    return unsupported(std::string(io_->name()), 0);
  }
  std::unique_ptr<Io> io() { return std::move(io_); }

 private:
  Status move(bool write) {
    operation_ = {0, file_.get(), write, Bytes(0), {{memory_[0].data(), kSector.size()}}};
    io_->submit(operation_);
    std::vector<Outcome> outcomes;
    const SteadyClock clock;
    for (const TimePoint end = clock.now() + kProbePatience; outcomes.empty();) {
      if (clock.now() >= end) {
        return make_error(ErrorCode::kDeadlineExceeded, "the disk does not answer");
      }
      io_->flush();
      pollfd event{io_->event_fd(), POLLIN, 0};
      ::poll(&event, 1, 100);
      io_->reap(outcomes);
    }
    if (outcomes.front().result == kSector.value) return {};
    return unsupported(std::string(io_->name()), outcomes.front().result);
  }

  std::unique_ptr<Io> io_;
  UniqueFd file_;
  Sectors memory_{1};
  Operation operation_;
};

}  // namespace

Status try_direct(const Folder& folder) {
  const UniqueFd file = open_probe(folder, true);
  if (!file.valid()) return unsupported("O_DIRECT", -errno);
  const Sectors memory(1);
  const auto sector = memory[0];
  std::fill(sector.begin(), sector.end(), kProbePattern);
  if (::pwrite(file.get(), sector.data(), sector.size(), 0) != kSector.value ||
      ::pread(file.get(), sector.data(), sector.size(), 0) != kSector.value) {
    return unsupported("O_DIRECT", -errno);
  }
  return {};
}

Result<std::unique_ptr<Io>> try_io(std::unique_ptr<Io> io, const Folder& folder, bool direct) {
  UniqueFd file = open_probe(folder, direct);
  if (!file.valid()) return folder.error(kProbeName, errno);
  auto probe = std::make_unique<Probe>(std::move(io), std::move(file));
  const Status works = probe->run();
  if (works.ok()) return probe->io();
  if (works.code() == ErrorCode::kDeadlineExceeded) keep_for_ever(std::move(probe));
  return works.error();
}

}  // namespace kvd::disk
