#pragma once

#include <sys/types.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace kvd::ctl::doctor {

/// What is in the place of a socket.
enum class SocketState : std::uint8_t {
  kMissing,
  kAnswers,   ///< a process listens
  kStale,     ///< the socket is there, and nobody listens
  kNoSocket,  ///< a file of another kind
  kForbidden  ///< this user may not connect, or may not even look
};

struct SocketFacts {
  std::string path;
  SocketState state = SocketState::kMissing;
  pid_t pid = 0;  ///< who listens; 0: unknown
  uid_t uid = 0;  ///< likewise
};

/// Owner and mode of a file; one that is missing, or that this user may not look at, has none.
struct FileFacts {
  std::string path;
  std::optional<mode_t> mode;
  uid_t uid = 0;
};

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

/// Facts about the running kvd, or kvdctl itself where none runs: a kvd started from the same shell
/// gets the same.
struct ProcessFacts {
  bool is_daemon = false;
  std::optional<std::uint64_t> files;   ///< hard limit of descriptors, which kvd takes
  std::optional<std::uint64_t> locked;  ///< soft limit of locked bytes
  std::uint64_t capabilities = 0;       ///< effective, by bit
  std::optional<bool> realtime;         ///< the daemon's first thread, which answers engines
};

struct PageFacts {
  std::uint64_t hugetlb_free = 0;  ///< pages of 2 MiB, promised ones not among them
  std::string shmem_enabled;       ///< as the kernel writes it; "": not said
};

struct DriverFacts {
  std::string version;        ///< "580.65.06"; "": no NVIDIA driver is loaded
  bool has_library = false;   ///< libcuda.so.1 can be loaded
  bool may_open_gpu = false;  ///< this user may use /dev/nvidiactl
};

/// What the admin interface said of itself.
struct AdminFacts {
  std::string url;
  std::string version;  ///< of the daemon; "": it did not say
  int status = 0;       ///< of HTTP; 0: no answer
  std::string own_version;
  std::string attach = {};   ///< where its engines attach; "": it did not say
  std::string command = {};  ///< likewise
  int unseen = 0;            ///< attached engines whose processes it does not see
  std::string live = {};     ///< settings changed live; "" or "0": none
};

/// Everything a diagnosis rests on.
struct Facts {
  FileFacts folder;
  FileFacts token;
  SocketFacts attach;
  SocketFacts command;
  ProcessFacts process;
  PageFacts pages;
  DriverFacts driver;
  AdminFacts admin;
  uid_t user = 0;  ///< who asks
};

/// Where to look. `root` goes before /proc, /sys and /dev.
struct Places {
  std::string root;
  std::string attach;   ///< socket
  std::string command;  ///< likewise
};

/// Looks at this machine, the admin interface aside. What cannot be read is left at its default.
/// Connects to the sockets and hangs up. Thread: any.
[[nodiscard]] Facts look(const Places& places);

}  // namespace kvd::ctl::doctor
