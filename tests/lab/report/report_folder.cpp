#include "tests/lab/report/report_folder.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/lab/report/page.hpp"

namespace kvd::sim {
namespace fs = std::filesystem;
namespace {

Error unavailable(const fs::path& path, const char* what) {
  return make_error(ErrorCode::kUnavailable, std::string("cannot ") + what + " " + path.string() +
                                                 ": " + std::strerror(errno) +
                                                 "; choose another folder with --out");
}

bool is_report(const fs::path& folder) {
  std::ifstream in(folder / "index.html");
  std::stringstream text;
  text << in.rdbuf();
  return text.str().find(kPageMark) != std::string::npos;
}

Status write_synced(const fs::path& path, const std::string& content) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return unavailable(path, "create");
  std::size_t done = 0;
  bool failed = false;
  while (done < content.size() && !failed) {
    const ssize_t count = ::write(fd, content.data() + done, content.size() - done);
    failed = count < 0 && errno != EINTR;
    if (count > 0) done += static_cast<std::size_t>(count);
  }
  failed = failed || ::fsync(fd) != 0;
  auto error = failed ? Status(unavailable(path, "write")) : Status();
  ::close(fd);
  return error;
}

/// Puts `staged` where `folder` is; what was there ends up under the staged name.
Status exchange(const fs::path& staged, const fs::path& folder) {
  std::error_code ignored;
  const bool replaces = fs::exists(folder, ignored);
  const unsigned flags = replaces ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (::renameat2(AT_FDCWD, staged.c_str(), AT_FDCWD, folder.c_str(), flags) != 0) {
    return unavailable(folder, "put the report at");
  }
  return {};
}

/// The folder in which a report is put together, beside its destination.
fs::path staging_of(const fs::path& folder) {
  std::error_code error;
  const fs::path target = fs::absolute(folder, error).lexically_normal();
  const fs::path clean = target.has_filename() ? target : target.parent_path();
  return clean.string() + ".partial-" + std::to_string(::getpid());
}

/// Finds out by trying: simulations take long, and finding out after them would be too late.
Status check_writable(const fs::path& folder) {
  std::error_code error;
  const fs::path staged = staging_of(folder);
  fs::create_directories(staged.parent_path(), error);
  if (!fs::create_directory(staged, error)) return unavailable(staged, "create");
  fs::remove(staged, error);
  return {};
}

}  // namespace

Status check_report_folder(const fs::path& folder) {
  std::error_code error;
  if (folder.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "say where the report goes: --out DIR");
  }
  if (!fs::exists(folder, error) && !error) return check_writable(folder);
  if (!error && fs::is_directory(folder, error) &&
      (fs::is_empty(folder, error) || is_report(folder)) && !error) {
    return check_writable(folder);
  }
  return make_error(ErrorCode::kInvalidArgument,
                    folder.string() +
                        " is neither empty nor an earlier report, and stays as it "
                        "is; choose another folder with --out");
}

Status write_report(const fs::path& folder, const std::vector<ReportFile>& files) {
  KVD_TRY(check_report_folder(folder));
  std::error_code error;
  const fs::path target = fs::absolute(folder, error).lexically_normal();
  const fs::path clean = target.has_filename() ? target : target.parent_path();
  const fs::path staged = staging_of(folder);
  if (!fs::create_directory(staged, error)) return unavailable(staged, "create");
  Status status;
  for (const ReportFile& file : files) {
    if (status.ok()) status = write_synced(staged / file.name, file.content);
  }
  if (status.ok()) status = exchange(staged, clean);
  fs::remove_all(staged, error);
  return status;
}

}  // namespace kvd::sim
