#include "kvd/ctl/doctor/load.hpp"

#include <string>

#include "kvd/ctl/cells.hpp"

namespace kvd::ctl::doctor {

Result<std::vector<Finding>> findings_of_load(std::string_view document) {
  try {
    const auto all = cells::Json::parse(document);
    std::vector<Finding> findings;
    for (const auto& one : all.at("findings")) {
      findings.push_back(
          {"load", Severity::kWarning, cells::text(one.at("text")), cells::text(one.at("remedy"))});
    }
    if (!findings.empty()) return findings;
    return std::vector<Finding>{{"load", Severity::kOk, "no request waits past its goal", ""}};
  } catch (const cells::Json::exception& error) {
    return make_error(ErrorCode::kInvalidArgument,
                      std::string("the daemon's answer is not what this kvdctl knows (") +
                          error.what() + "); use the daemon's kvdctl");
  }
}

}  // namespace kvd::ctl::doctor
