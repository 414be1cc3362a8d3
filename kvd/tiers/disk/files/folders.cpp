#include "kvd/tiers/disk/files/folders.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "ipc/vocabulary/errno_words.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::disk {
namespace {

constexpr const char* kModel = "model";
constexpr std::size_t kMostModel = 256;
constexpr Bytes kAll(std::numeric_limits<std::int64_t>::max());

/// Whether the name is one that kvd gives to folders of classes.
bool is_folder_name(const std::string& name) {
  return name.size() == 32 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool is_segment(const std::string& name) { return name.starts_with("segment-"); }

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

/// In their order.
std::vector<std::string> names_in(const UniqueFd& folder) {
  std::vector<std::string> names;
  const int again = ::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, CloseFolder> all(again < 0 ? nullptr : ::fdopendir(again));
  while (const dirent* entry = all ? ::readdir(all.get()) : nullptr) {
    names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

UniqueFd open_folder(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

std::string read_model(const UniqueFd& folder) {
  const UniqueFd file(
      ::openat(folder.get(), kModel, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  std::array<char, kMostModel> text{};
  const ssize_t size = file.valid() ? ::read(file.get(), text.data(), text.size()) : 0;
  std::string model(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  return model.substr(0, model.find('\n'));
}

/// Bytes of the segments, and when the folder was opened or closed last.
Folders::Entry look(const UniqueFd& folder) {
  Folders::Entry entry;
  for (const std::string& name : names_in(folder)) {
    struct stat facts {};
    if (::fstatat(folder.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (is_segment(name)) entry.bytes += Bytes(facts.st_size);
    if (name == "lock") entry.used = std::chrono::system_clock::from_time_t(facts.st_mtime);
  }
  entry.model = read_model(folder);
  return entry;
}

Error unavailable(const std::string& path, int number) {
  return make_error(ErrorCode::kUnavailable, path + ": " + errno_words(number));
}

}  // namespace

Status write_model(const std::string& path, const std::string& model) {
  const UniqueFd folder = open_folder(path);
  if (folder.valid() && read_model(folder) == model) return {};
  const UniqueFd file(::openat(folder.get(), kModel,
                               O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
                               0600));
  const std::string line = model.substr(0, kMostModel - 1) + "\n";
  if (file.valid() &&
      ::write(file.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size())) {
    return {};
  }
  return unavailable(path + "/" + kModel, errno);
}

Status Folders::scan() {
  const std::lock_guard files(files_mutex_);
  const UniqueFd all(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!all.valid()) return unavailable(path_, errno);
  for (const std::string& name : names_in(all)) {
    const UniqueFd folder = is_folder_name(name) ? open_folder(path_ + "/" + name) : UniqueFd();
    if (folder.valid()) set(name, look(folder));
  }
  make_room(size_, {});
  return {};
}

bool Folders::take(const std::string& name, Bytes bytes, const std::string& model) {
  const std::lock_guard files(files_mutex_);
  const Bytes more = bytes - bytes_of(name);
  make_room(std::min(size_ - bytes, others(name) - more - missing()), name);
  if (others(name) + bytes > size_) return false;
  set(name, {model, bytes, std::chrono::system_clock::now(), true});
  return true;
}

void Folders::put(const std::string& name, Bytes bytes, bool open) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[name];
  entry.bytes = bytes;
  entry.open = open;
  entry.used = std::chrono::system_clock::now();
  if (!open && bytes == Bytes(0)) entries_.erase(name);
}

Status Folders::clear() {
  const std::lock_guard files(files_mutex_);
  const UniqueFd all(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!all.valid()) return unavailable(path_, errno);
  const Entries known = list();
  Status status;
  for (const std::string& name : names_in(all)) {
    const auto entry = known.find(name);
    if (!is_folder_name(name) || (entry != known.end() && entry->second.open)) continue;
    if (const int why = give_up(name, kAll)) status = unavailable(path_ + "/" + name, why);
  }
  return status;
}

bool Folders::has(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return entries_.contains(name);
}

Folders::Entries Folders::list() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

Bytes Folders::bytes_of(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(name);
  return entry == entries_.end() ? Bytes(0) : entry->second.bytes;
}

// How many bytes of free space are missing below the floor; negative where there is more.
Bytes Folders::missing() const {
  struct statvfs facts {};
  if (::statvfs(path_.c_str(), &facts) != 0) return Bytes(0) - floor_;
  return floor_ - Bytes(static_cast<std::int64_t>(facts.f_bavail)) *
                      static_cast<std::int64_t>(facts.f_frsize);
}

void Folders::set(const std::string& name, const Entry& entry) {
  const std::lock_guard lock(mutex_);
  entries_[name] = entry;
}

Bytes Folders::others(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  Bytes sum;
  for (const auto& [other, entry] : entries_) sum += other == name ? Bytes(0) : entry.bytes;
  return sum;
}

// The other folders give up what they have beyond `most`.
void Folders::make_room(Bytes most, const std::string& except) {
  std::vector<std::pair<std::chrono::system_clock::time_point, std::string>> closed;
  for (const auto& [name, entry] : list()) {
    if (!entry.open && name != except) closed.emplace_back(entry.used, name);
  }
  std::sort(closed.begin(), closed.end());
  for (const auto& [used, name] : closed) {
    const Bytes beyond = others(except) - most;
    if (beyond <= Bytes(0)) return;
    (void)give_up(name, beyond);
  }
}

// Starts with the last segment, so that the others are found again.
int Folders::give_up(const std::string& name, Bytes bytes) {
  const std::string path = path_ + "/" + name;
  const UniqueFd folder = open_folder(path);
  const UniqueFd lock(::openat(folder.get(), "lock", O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (lock.valid() && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return 0;
  const std::vector<std::string> names = names_in(folder);
  Entry entry = look(folder);
  const Bytes keep = entry.bytes - bytes;
  int why = 0;
  for (auto at = names.rbegin(); at != names.rend() && entry.bytes > keep; ++at) {
    struct stat facts {};
    const bool there =
        is_segment(*at) && ::fstatat(folder.get(), at->c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0;
    if (!there) continue;
    if (::unlinkat(folder.get(), at->c_str(), 0) == 0) {
      entry.bytes = entry.bytes - Bytes(facts.st_size);
    } else {
      why = errno;
    }
  }
  if (entry.bytes > Bytes(0)) {
    set(name, entry);
    return why;
  }
  for (const std::string& file : names) ::unlinkat(folder.get(), file.c_str(), 0);
  ::rmdir(path.c_str());
  const std::lock_guard guard(mutex_);
  entries_.erase(name);
  return 0;
}

}  // namespace kvd::disk
