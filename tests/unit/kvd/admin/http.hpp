#pragma once

#include <cstdint>
#include <string>

#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::admin {

/// A connection to a loopback port, with 10 s limits; invalid when nobody listens.
[[nodiscard]] UniqueFd connected(std::uint16_t port);

/// Sends raw text to a loopback port and returns all that comes back until the peer closes; ""
/// when nobody answers. Gives up after 10 s without a byte.
[[nodiscard]] std::string http_exchange(std::uint16_t port, const std::string& text);

/// Sends raw text and hangs up. Whether it could connect and send.
bool http_send(std::uint16_t port, const std::string& text);

}  // namespace kvd::admin
