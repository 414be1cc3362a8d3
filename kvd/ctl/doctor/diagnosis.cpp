#include "kvd/ctl/doctor/diagnosis.hpp"

#include <linux/capability.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>

namespace kvd::ctl::doctor {
namespace {

/// kvd holds a descriptor for each slab and a few for each engine; it takes the hard limit.
constexpr std::uint64_t kEnoughFiles = 65536;
/// NVIDIA drivers, by their first number: the oldest that CUDA 13's programs run with, and the
/// first that needs not compile kvd's kernels itself.
constexpr int kOldestDriver = 525;
constexpr int kBestDriver = 580;

Finding ok(std::string check, std::string text) {
  return {std::move(check), Severity::kOk, std::move(text), ""};
}
Finding warning(std::string check, std::string text, std::string remedy) {
  return {std::move(check), Severity::kWarning, std::move(text), std::move(remedy)};
}
Finding fault(std::string check, std::string text, std::string remedy) {
  return {std::move(check), Severity::kFault, std::move(text), std::move(remedy)};
}

Finding check_folder(const Facts& facts) {
  const FileFacts& folder = facts.folder;
  if (!folder.mode) return ok("folder", folder.path + " is not there; kvd makes it");
  if (!S_ISDIR(*folder.mode)) {
    return fault("folder", folder.path + " is no folder",
                 "remove it, or set paths.runtime_dir to another one");
  }
  if ((*folder.mode & (S_IWGRP | S_IWOTH)) != 0) {
    return fault("folder", folder.path + " may be written by others, who can replace the sockets",
                 "chmod go-w " + folder.path);
  }
  const bool another = facts.attach.state == SocketState::kAnswers && folder.uid != 0 &&
                       folder.uid != facts.attach.uid;
  if (another) {
    return fault("folder",
                 folder.path + " belongs to uid " + std::to_string(folder.uid) +
                     ", who is neither root nor kvd's user and can replace the sockets",
                 "chown it to kvd's user");
  }
  return ok("folder", folder.path + " may be written by its owner only");
}

/// A kvd answers kvdctl, and engines would not find it.
Finding check_missing(const Facts& facts) {
  const SocketFacts& socket = facts.attach;
  const AdminFacts& admin = facts.admin;
  if (admin.status == 0) {
    return warning("sockets", "no kvd runs: " + socket.path + " is not there",
                   "start kvd (systemctl start kvd), or name its folder with --runtime-dir");
  }
  if (admin.attach == socket.path) {
    return fault("sockets", "kvd runs, and its socket " + socket.path + " was removed",
                 "wait a second: kvd makes it anew, or " + admin.url +
                     "/readyz says why it cannot; then restart kvd");
  }
  const std::string where = admin.attach.empty() ? "at another path" : "at " + admin.attach;
  return fault("sockets",
               "the kvd of " + admin.url + " listens " + where + ", not at " + socket.path,
               admin.attach.empty()
                   ? "set KVD_ENDPOINT to its attach socket (kvdctl status, with --token-file)"
                   : "set KVD_ENDPOINT=" + admin.attach +
                         " for engines, or name the address of "
                         "the other kvd with --url");
}

Finding check_attach(const Facts& facts) {
  const SocketFacts& socket = facts.attach;
  switch (socket.state) {
    case SocketState::kAnswers:
      return ok("sockets", "kvd listens at " + socket.path + " (pid " + std::to_string(socket.pid) +
                               ", uid " + std::to_string(socket.uid) + ")");
    case SocketState::kForbidden:
      return fault("sockets",
                   "uid " + std::to_string(facts.user) + " may not connect to " + socket.path,
                   "join the group that `stat " + facts.folder.path +
                       "` shows (kvd, where it was installed as a package), and log in again");
    case SocketState::kStale:
      return fault("sockets", socket.path + " is left from a kvd that ended: engines find nobody",
                   "start kvd: it replaces the file (systemctl start kvd)");
    case SocketState::kNoSocket:
      return fault("sockets", socket.path + " is no socket: kvd does not start with it",
                   "remove it, or set paths.runtime_dir to another folder");
    case SocketState::kMissing:
      return check_missing(facts);
  }
  return {};
}

/// Says something only where engines find one kvd while kvdctl asks another.
void check_kvd(const Facts& facts, std::vector<Finding>& findings) {
  const AdminFacts& admin = facts.admin;
  const bool two = facts.attach.state == SocketState::kAnswers && !admin.attach.empty() &&
                   admin.attach != facts.attach.path;
  if (two) {
    findings.push_back(warning("sockets",
                               "engines attach at " + facts.attach.path + ", and the kvd of " +
                                   admin.url + " is another one: it listens at " + admin.attach,
                               "name the admin address of the first one with --url, or set "
                               "KVD_ENDPOINT=" +
                                   admin.attach));
  }
  if (admin.unseen > 0) {
    findings.push_back(warning("processes",
                               "kvd does not see the processes of engines (" +
                                   std::to_string(admin.unseen) +
                                   " attached): it cannot end one that hangs",
                               "run kvd with hostPID: true (docker: --pid host)"));
  }
}

/// Says something only where it differs from the attach socket.
void check_command(const Facts& facts, std::vector<Finding>& findings) {
  const bool attach = facts.attach.state == SocketState::kAnswers;
  const bool command = facts.command.state == SocketState::kAnswers;
  if (attach && !command) {
    findings.push_back(
        fault("sockets", "kvd listens, but not at " + facts.command.path, "restart kvd"));
  } else if (!attach && command) {
    findings.push_back(
        fault("sockets",
              "a process listens at " + facts.command.path + ", but not at " + facts.attach.path,
              "end pid " + std::to_string(facts.command.pid)));
  }
}

Finding check_token(const FileFacts& token) {
  if (!token.mode) return ok("token", token.path + " is not there, or not to be seen by this user");
  if (!S_ISREG(*token.mode)) {
    return fault("token", token.path + " is no plain file: kvd does not start with it",
                 "remove it; kvd makes a new one");
  }
  if ((*token.mode & 077) != 0) {
    return fault("token", token.path + " may be read by others: kvd does not start with it",
                 "remove it; kvd makes a new one");
  }
  return ok("token", token.path + " is its owner's alone");
}

std::string whose(const ProcessFacts& process) {
  return process.is_daemon ? "kvd's" : "this shell's";
}

Finding check_files(const ProcessFacts& process) {
  if (!process.files) {
    return warning("files", "the limit of descriptors cannot be read", "mount /proc");
  }
  if (*process.files == kUnlimited)
    return ok("files", whose(process) + " descriptors are unlimited");
  const std::string text =
      whose(process) + " limit of descriptors is " + std::to_string(*process.files);
  // A kvd that needs more than it has does not start.
  if (process.is_daemon || *process.files >= kEnoughFiles) return ok("files", text);
  return warning(
      "files", text + "; each slab needs one, each engine a few",
      "set LimitNOFILE=" + std::to_string(kEnoughFiles) + " in the unit, or raise ulimit -Hn");
}

Finding check_locked(const Facts& facts) {
  const ProcessFacts& process = facts.process;
  if (facts.driver.version.empty())
    return ok("memlock", "not needed: nothing is pinned without a GPU");
  const bool capable = (process.capabilities >> CAP_IPC_LOCK & 1) != 0;
  if (capable) return ok("memlock", "CAP_IPC_LOCK lets kvd pin memory");
  if (process.locked == kUnlimited)
    return ok("memlock", whose(process) + " locked memory is unlimited");
  return warning("memlock",
                 whose(process) +
                     " locked memory is limited, and there is no CAP_IPC_LOCK: the driver may "
                     "refuse to pin pool.dram",
                 "set LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited");
}

Finding check_answers(const ProcessFacts& process) {
  if (!process.realtime) return ok("realtime", "no kvd runs that could be looked at");
  if (*process.realtime) return ok("realtime", "kvd answers engines before other programs");
  return warning("realtime", "kvd's answers wait for a core where engines use them all",
                 "give it CAP_SYS_NICE, or LimitRTPRIO=1 and no RestrictRealtime, unless "
                 "engine.realtime = \"never\" is meant");
}

bool shmem_is_huge(const std::string& setting) {
  const std::size_t open = setting.find('[');
  return open != std::string::npos && !setting.substr(open).starts_with("[never]") &&
         !setting.substr(open).starts_with("[deny]");
}

Finding check_pages(const PageFacts& pages) {
  if (shmem_is_huge(pages.shmem_enabled)) {
    return ok("pages",
              "transparent huge pages are on for shared memory (" + pages.shmem_enabled + ")");
  }
  const std::string remedy =
      "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, and restart kvd";
  if (pages.hugetlb_free > 0) {
    return warning("pages",
                   std::to_string(pages.hugetlb_free) +
                       " hugetlb pages are free, which only a single domain without per_user gets; "
                       "others get pages of 4 KiB",
                   remedy);
  }
  return warning("pages", "pools get pages of 4 KiB: copies are slower, and maps larger", remedy);
}

int major(const std::string& version) {
  int value = 0;
  std::from_chars(version.data(), version.data() + version.size(), value);
  return value;
}

Finding check_driver(const DriverFacts& driver) {
  if (driver.version.empty()) return ok("driver", "no NVIDIA driver is loaded: backend host");
  const std::string text = "NVIDIA driver " + driver.version;
  if (major(driver.version) < kOldestDriver) {
    return fault("driver", text + " is too old for backend cuda",
                 "install driver 580 or newer (525 at least), or set backend = \"host\"");
  }
  if (!driver.has_library) {
    return fault("driver", text + " is loaded, and libcuda.so.1 is not to be found",
                 "install the driver's library (in a container: the NVIDIA container toolkit)");
  }
  if (!driver.may_open_gpu) {
    return fault("driver", text + " is loaded, and this user may not open /dev/nvidiactl",
                 "run nvidia-modprobe as root, or pass the device to the container");
  }
  if (major(driver.version) >= kBestDriver) return ok("driver", text);
  return warning("driver", text + " compiles kvd's kernels at their first use, which takes longer",
                 "install driver 580 or newer");
}

Finding check_admin(const Facts& facts) {
  const AdminFacts& admin = facts.admin;
  const bool runs = facts.attach.state == SocketState::kAnswers;
  if (admin.status == 0 && !runs)
    return ok("admin", "no kvd runs, and none answers at " + admin.url);
  if (admin.status == 0) {
    return fault("admin", "kvd runs, and does not answer at " + admin.url,
                 "name its address with --url; where it is that one, see `journalctl -u kvd`");
  }
  if (admin.version.empty()) {
    return warning("admin", admin.url + " answers with HTTP status " + std::to_string(admin.status),
                   "give the token of kvd's runtime folder: --token-file");
  }
  if (admin.version != admin.own_version) {
    return warning("admin", "kvd is " + admin.version + ", kvdctl is " + admin.own_version,
                   "restart kvd after an upgrade, and use the kvdctl that came with it");
  }
  if (!admin.live.empty() && admin.live != "0") {
    return warning("admin", admin.live + " settings were changed live, and end with this kvd",
                   "keep them: kvdctl config --save FILE");
  }
  return ok("admin", "kvd and kvdctl are " + admin.version);
}

}  // namespace

std::vector<Finding> diagnose(const Facts& facts) {
  std::vector<Finding> findings{check_folder(facts), check_attach(facts)};
  check_command(facts, findings);
  check_kvd(facts, findings);
  for (const Finding& finding :
       {check_token(facts.token), check_files(facts.process), check_locked(facts),
        check_answers(facts.process), check_pages(facts.pages), check_driver(facts.driver),
        check_admin(facts)}) {
    findings.push_back(finding);
  }
  return findings;
}

bool is_healthy(const std::vector<Finding>& findings) {
  return std::none_of(findings.begin(), findings.end(),
                      [](const Finding& f) { return f.severity == Severity::kFault; });
}

}  // namespace kvd::ctl::doctor
