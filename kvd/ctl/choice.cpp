#include "kvd/ctl/choice.hpp"

#include <algorithm>
#include <array>

namespace kvd::ctl {
namespace {

using cells::Json;

std::ptrdiff_t rank(std::string_view level) {
  constexpr std::array<std::string_view, 3> kLevels{"info", "warning", "error"};
  return std::find(kLevels.begin(), kLevels.end(), level) - kLevels.begin();
}

}  // namespace

bool Choice::takes(const Json& row) const {
  const Json number = row.contains("engine") ? row.at("engine") : row.value("id", Json());
  if (engine && number != *engine) return false;
  if (!level.empty() && row.contains("level") && row.at("level").is_string() &&
      rank(row.at("level").get<std::string>()) < rank(level)) {
    return false;
  }
  return since_s == 0 || !row.contains("age_s") || row.at("age_s").get<double>() <= since_s;
}

Result<std::string> chosen(std::string_view document, const Choice& choice) {
  try {
    Json all = Json::parse(document);
    for (auto& rows : all) {
      if (!rows.is_array()) continue;
      Json kept = Json::array();
      for (const Json& row : rows) {
        if (choice.takes(row)) kept.push_back(row);
      }
      rows = std::move(kept);
    }
    return all.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  } catch (const Json::exception& error) {
    return cells::unknown_answer(error);
  }
}

bool tells_of(std::string_view document, std::uint64_t engine) {
  const Json all = Json::parse(document, nullptr, /*allow_exceptions=*/false);
  const auto has = [&](const Json& rows) {
    return rows.is_array() && std::any_of(rows.begin(), rows.end(), [&](const Json& row) {
             return Choice{.engine = engine}.takes(row);
           });
  };
  return std::any_of(all.begin(), all.end(), has);
}

}  // namespace kvd::ctl
