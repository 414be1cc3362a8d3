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
    for (auto& [name, rows] : all.items()) {
      if (!rows.is_array()) continue;
      Json kept = Json::array();
      for (const Json& row : rows) {
        if (choice.takes(row)) kept.push_back(row);
      }
      if (name == "engines" && choice.engine && kept.empty()) {
        return make_error(ErrorCode::kNotFound,
                          "no engine " + std::to_string(*choice.engine) +
                              " is attached; kvdctl engines lists those that are");
      }
      rows = std::move(kept);
    }
    return all.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  } catch (const Json::exception& error) {
    return cells::unknown_answer(error);
  }
}

}  // namespace kvd::ctl
