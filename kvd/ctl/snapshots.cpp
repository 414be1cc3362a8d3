#include "kvd/ctl/snapshots.hpp"

#include <nlohmann/json.hpp>

namespace kvd::ctl {

Result<std::string> snapshot_lines(std::string_view document) {
  const auto answer = nlohmann::ordered_json::parse(document, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object() || !answer.contains("snapshots") || !answer["snapshots"].is_array()) {
    return make_error(ErrorCode::kInternal,
                      "the daemon's answer holds no snapshots; use the daemon's kvdctl");
  }
  std::string lines;
  for (const auto& snapshot : answer["snapshots"]) lines += snapshot.dump() + "\n";
  return lines;
}

}  // namespace kvd::ctl
