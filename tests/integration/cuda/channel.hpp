#pragma once

#include <string>
#include <vector>

#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::tests {

/// What the two ends of a test say to each other: a line of text and some descriptors.
struct Message {
  std::string text;  ///< empty: the other end is gone, or said nothing in time
  std::vector<UniqueFd> fds;
};

/// Over a SOCK_SEQPACKET socket. False when the other end is gone.
bool send_message(int socket, const std::string& text, const std::vector<int>& fds = {});
/// Waits up to 30 s.
Message receive_message(int socket);

}  // namespace kvd::tests
