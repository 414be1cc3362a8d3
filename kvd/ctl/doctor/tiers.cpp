#include "kvd/ctl/doctor/tiers.hpp"

#include <nlohmann/json.hpp>
#include <string>

namespace kvd::ctl::doctor {
namespace {

using Json = nlohmann::json;

Json list_in(std::string_view document, const char* key) {
  const Json parsed = Json::parse(document, nullptr, /*allow_exceptions=*/false);
  return parsed.is_object() ? parsed.value(key, Json::array()) : Json::array();
}

constexpr const char* kAgain = "once that is mended kvd goes on by itself: it tries again";

}  // namespace

std::vector<Finding> findings_of_tiers(std::string_view cache, std::string_view remote) {
  std::vector<Finding> findings;
  const auto warn = [&](const char* check, const std::string& text, const Json& why) {
    const std::string reason = why.value("why", "");
    findings.push_back(
        {check, Severity::kWarning, text + (reason.empty() ? "" : ": " + reason), kAgain});
  };
  for (const Json& model : list_in(cache, "disk_models")) {
    if (model.value("state", "") == "refused") {
      const std::string text = "cached blocks of " + model.value("model", "") +
                               " do not go to disk; kvdctl events says why";
      warn("disk", text, model);
    }
  }
  for (const Json& server : list_in(remote, "servers")) {
    const std::string name = server.value("server", "");
    if (!server.value("on", true)) {
      warn("remote", "the remote server " + name + " is off", server);
    } else if (!server.value("why", "").empty()) {
      warn("remote", "nothing is written to the remote server " + name, server);
    }
  }
  return findings;
}

}  // namespace kvd::ctl::doctor
