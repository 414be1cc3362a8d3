#pragma once

#include <cstdint>
#include <string>

namespace kvd::test {

/// The body of the answer from a server on this machine; empty: no answer, or not 200.
std::string http_get(std::uint16_t port, const std::string& path);
std::string http_post(std::uint16_t port, const std::string& path, const std::string& body);

}  // namespace kvd::test
