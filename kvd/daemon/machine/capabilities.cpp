#include "kvd/daemon/machine/capabilities.hpp"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace kvd::daemon {
namespace {

using Sets = std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3>;

Status call(long result, const char* what) {
  if (result >= 0) return {};
  return make_error(ErrorCode::kInternal, std::string("capabilities cannot be given up: ") + what +
                                              ": " + std::strerror(errno));
}

// The bounding set limits what a program of root gets at exec. Only CAP_SETPCAP may change it.
Status bound(std::span<const int> kept) {
  for (int capability = 0; ::prctl(PR_CAPBSET_READ, capability) >= 0; ++capability) {
    if (std::find(kept.begin(), kept.end(), capability) != kept.end()) continue;
    if (::prctl(PR_CAPBSET_DROP, capability) < 0 && errno != EPERM) {
      return call(-1, "PR_CAPBSET_DROP");
    }
  }
  return {};
}

}  // namespace

Status keep_capabilities(std::span<const int> kept, Programs programs) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  Sets sets{};
  KVD_TRY(call(::syscall(SYS_capget, &header, sets.data()), "capget"));
  if (programs == Programs::kNone) KVD_TRY(bound(kept));
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  Sets wanted{};
  for (const int capability : kept) {
    const auto index = static_cast<std::size_t>(CAP_TO_INDEX(capability));
    wanted[index].permitted |= sets[index].permitted & CAP_TO_MASK(capability);
  }
  for (auto& set : wanted) set.effective = set.permitted;
  return call(::syscall(SYS_capset, &header, wanted.data()), "capset");
}

}  // namespace kvd::daemon
