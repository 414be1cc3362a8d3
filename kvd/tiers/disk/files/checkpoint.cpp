#include "kvd/tiers/disk/files/checkpoint.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>

#include "kvd/tiers/disk/files/checksum.hpp"

namespace kvd::disk {
namespace {

constexpr const char* kCheckpointName = "checkpoint";
constexpr const char* kNewCheckpointName = "checkpoint.new";
constexpr std::string_view kCheckpointMagic = "KVDCHECK";

struct CheckpointHead {
  char magic[8];
  std::uint32_t version;
  std::uint32_t entries;
  Digest fingerprint;
};
struct CheckpointEntry {
  std::uint32_t slot;
  std::uint32_t zero;
  std::uint64_t generation;
  Digest domain;
  Digest digest;
};
static_assert(sizeof(CheckpointHead) == 48 && sizeof(CheckpointEntry) == 80);

using Buffer = std::vector<std::byte>;

template <class T>
void append(Buffer& bytes, const T& value) {
  const auto part = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), part.begin(), part.end());
}

Status write_all(const Folder& folder, int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto written = ::write(fd, bytes.data(), bytes.size());
    if (written <= 0) return folder.error(kNewCheckpointName, written < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Result<Buffer> read_all(const Folder& folder, std::size_t most) {
  const UniqueFd file(
      ::openat(folder.fd(), kCheckpointName, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat facts {};
  if (!file.valid() || ::fstat(file.get(), &facts) != 0)
    return folder.error(kCheckpointName, errno);
  const auto size = static_cast<std::size_t>(facts.st_size);
  if (!S_ISREG(facts.st_mode) || size > most) return folder.error(kCheckpointName, EFBIG);
  Buffer bytes(size);
  for (std::size_t at = 0; at < size;) {
    const auto got = ::read(file.get(), bytes.data() + at, size - at);
    if (got <= 0) return folder.error(kCheckpointName, got < 0 ? errno : EIO);
    at += static_cast<std::size_t>(got);
  }
  return bytes;
}

Error no_checkpoint() {
  return make_error(ErrorCode::kNotFound, "no checkpoint of a clean stop: scan the headers");
}

bool trusted(const Buffer& bytes, const Layout& layout, CheckpointHead& head) {
  constexpr std::size_t kLeast = sizeof(CheckpointHead) + sizeof(std::uint32_t);
  if (bytes.size() < kLeast) return false;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (std::string_view(head.magic, sizeof head.magic) != kCheckpointMagic ||
      head.version != kFormatVersion || head.fingerprint != layout.shape().fingerprint ||
      bytes.size() != kLeast + std::size_t{head.entries} * sizeof(CheckpointEntry)) {
    return false;
  }
  std::uint32_t sum = 0;
  std::memcpy(&sum, bytes.data() + bytes.size() - sizeof sum, sizeof sum);
  return sum == crc32c(std::span(bytes).first(bytes.size() - sizeof sum));
}

}  // namespace

Status write_checkpoint(const Folder& folder, const Layout& layout,
                        const std::vector<FoundBlock>& blocks) {
  Buffer bytes;
  bytes.reserve(sizeof(CheckpointHead) + blocks.size() * sizeof(CheckpointEntry) + 4);
  CheckpointHead head{};
  std::memcpy(head.magic, kCheckpointMagic.data(), sizeof head.magic);
  head.version = kFormatVersion;
  head.entries = static_cast<std::uint32_t>(blocks.size());
  head.fingerprint = layout.shape().fingerprint;
  append(bytes, head);
  for (const FoundBlock& block : blocks) {
    append(bytes, CheckpointEntry{block.slot.value, 0, block.generation.value, block.key.domain,
                                  block.key.digest});
  }
  append(bytes, crc32c(bytes));
  const UniqueFd file(::openat(folder.fd(), kNewCheckpointName,
                               O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return folder.error(kNewCheckpointName, errno);
  KVD_TRY(write_all(folder, file.get(), bytes));
  if (::renameat(folder.fd(), kNewCheckpointName, folder.fd(), kCheckpointName) != 0)
    return folder.error(kCheckpointName, errno);
  return {};
}

Result<std::vector<FoundBlock>> take_checkpoint(const Folder& folder, const Layout& layout,
                                                std::uint32_t slots) {
  const std::size_t most = 64 + std::size_t{slots} * sizeof(CheckpointEntry);
  const Result<Buffer> bytes = read_all(folder, most);
  ::unlinkat(folder.fd(), kCheckpointName, 0);
  CheckpointHead head{};
  if (!bytes.ok() || !trusted(*bytes, layout, head)) return no_checkpoint();
  std::vector<FoundBlock> blocks;
  blocks.reserve(head.entries);
  for (std::size_t i = 0; i < head.entries; ++i) {
    CheckpointEntry entry{};
    std::memcpy(&entry, bytes->data() + sizeof head + i * sizeof entry, sizeof entry);
    if (entry.slot >= slots) continue;  // its segment no longer exists
    blocks.push_back(
        {DiskSlot(entry.slot), SlotGeneration(entry.generation), {entry.domain, entry.digest}});
  }
  return blocks;
}

}  // namespace kvd::disk
