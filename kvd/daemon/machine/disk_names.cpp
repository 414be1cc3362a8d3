#include "kvd/daemon/machine/disk_names.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <memory>
#include <utility>

#include "ipc/digest/fingerprint.hpp"
#include "ipc/digest/sha256.hpp"
#include "ipc/vocabulary/errno_words.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::daemon {

namespace {

/// How many domains' secrets are kept at hand, as users come and go.
constexpr std::size_t kMostKept = 1024;
constexpr const char* kSecret = "secret";

/// Unavailable for what may pass by itself: a disk that is full, read-only or not there yet.
Error unavailable(const std::string& path, int error) {
  const bool forbidden = error == EACCES || error == EPERM || error == ENOTDIR;
  return make_error(forbidden ? ErrorCode::kPermissionDenied : ErrorCode::kUnavailable,
                    path + ": " + errno_words(error) +
                        "; set disk.path to a folder of kvd's user on a local disk, or to \"\"; " +
                        "under systemd to /var/cache/kvd, or use the drop-in of kvd --print-unit");
}

Error no_secret(const std::string& path) {
  return make_error(ErrorCode::kInvalidArgument,
                    path + " is not kvd's: remove the folder, and what it caches is forgotten");
}

/// Others could replace what they may write: the secret, the folders of models.
Result<UniqueFd> open_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return unavailable(path, errno);
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat facts {};
  if (!folder.valid() || ::fstat(folder.get(), &facts) != 0) return unavailable(path, errno);
  const bool ours = facts.st_uid == ::geteuid() || facts.st_uid == 0;
  if (ours && (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0) return folder;
  return make_error(ErrorCode::kPermissionDenied,
                    path +
                        " may be written by others: chown it to kvd's user and chmod 700, or "
                        "set disk.path to another folder");
}

/// The file is written under another name first. A kvd that starts at the same moment sees all of
/// it or nothing, and one that is killed meanwhile leaves no half file.
Status make_secret(const UniqueFd& folder, const std::string& path) {
  if (::faccessat(folder.get(), kSecret, F_OK, AT_SYMLINK_NOFOLLOW) == 0) return {};
  Digest secret;
  if (::getrandom(secret.bytes.data(), secret.bytes.size(), 0) != 32) {
    return make_error(ErrorCode::kUnavailable, "the kernel has no randomness");
  }
  const std::string fresh = std::string(kSecret) + "." + std::to_string(::getpid());
  (void)::unlinkat(folder.get(), fresh.c_str(), 0);  // a killed kvd of the same number left it
  const UniqueFd file(::openat(folder.get(), fresh.c_str(),
                               O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return unavailable(path, errno);
  const bool made =
      ::write(file.get(), secret.bytes.data(), secret.bytes.size()) == 32 &&
      (::linkat(folder.get(), fresh.c_str(), folder.get(), kSecret, 0) == 0 || errno == EEXIST);
  const int error = errno;
  ::unlinkat(folder.get(), fresh.c_str(), 0);
  return made ? Status() : unavailable(path, error);
}

Result<Digest> read_secret(const UniqueFd& folder, const std::string& path) {
  const UniqueFd file(
      ::openat(folder.get(), kSecret, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat facts {};
  if (!file.valid() && errno == ELOOP) return no_secret(path);
  if (!file.valid() || ::fstat(file.get(), &facts) != 0) return unavailable(path, errno);
  if (!S_ISREG(facts.st_mode)) return no_secret(path);
  if (facts.st_uid != ::geteuid() || (facts.st_mode & 077) != 0) {
    return make_error(ErrorCode::kPermissionDenied,
                      path + " has to be kvd's own and nobody else's to read (mode 0600)");
  }
  Digest secret;
  if (::read(file.get(), secret.bytes.data(), secret.bytes.size()) == 32) return secret;
  return no_secret(path);
}

}  // namespace

Result<DiskNames> disk_names(const std::string& folder) {
  KVD_ASSIGN_OR_RETURN(const UniqueFd opened, open_folder(folder));
  const std::string path = folder + "/" + kSecret;
  KVD_TRY(make_secret(opened, path));
  KVD_ASSIGN_OR_RETURN(const Digest secret, read_secret(opened, path));
  return names_under(secret);
}

DiskNames names_under(const Digest& secret) {
  const auto kept = std::make_shared<std::map<std::string, digest::HmacSha256>>();
  return [secret, kept](const std::string& domain, const Fingerprint& fingerprint,
                        const Digest& block) {
    auto own = kept->find(domain);
    if (own == kept->end()) {
      if (kept->size() >= kMostKept) kept->clear();
      const auto* name = reinterpret_cast<const std::uint8_t*>(domain.data());
      const Digest its = digest::HmacSha256(secret.bytes)({name, domain.size()});
      own = kept->emplace(domain, digest::HmacSha256(its.bytes)).first;
    }
    return digest::outside_name(own->second, fingerprint, block);
  };
}

}  // namespace kvd::daemon
