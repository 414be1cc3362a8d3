#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvd/ctl/doctor/facts.hpp"

namespace kvd::ctl::doctor {

enum class Severity : std::uint8_t {
  kOk,
  kWarning,  ///< kvd works, but slower or with less than it could
  kFault     ///< kvd or its engines cannot work so, or somebody can do what he should not
};

struct Finding {
  std::string check;  ///< "sockets", "pages" …: what was looked at
  Severity severity = Severity::kOk;
  std::string text;
  std::string remedy;  ///< "" with kOk
};

/// One finding or more for each check, in the order of kvd's start. Pure.
/// Source: what kvd refuses to start with, or logs: unix_socket.cpp, admin_token.cpp, slabs.cpp.
[[nodiscard]] std::vector<Finding> diagnose(const Facts& facts);

/// Whether no finding is a fault.
[[nodiscard]] bool is_healthy(const std::vector<Finding>& findings);

/// One line a finding, its remedy in the next one.
[[nodiscard]] std::string findings_text(const std::vector<Finding>& findings);
/// {"healthy": …, "findings": [{"check", "severity": "ok"|"warning"|"fault", "text", "remedy"}]}
[[nodiscard]] std::string findings_json(const std::vector<Finding>& findings);

}  // namespace kvd::ctl::doctor
