#include "kvd/ctl/settings.hpp"

#include <functional>

#include "kvd/ctl/cells.hpp"

namespace kvd::ctl {
namespace {

using cells::Json;
using cells::text;

Result<std::string> with_both(std::string_view config, std::string_view origins,
                              const std::function<std::string(const Json&, const Json&)>& make) {
  try {
    return make(Json::parse(config), Json::parse(origins));
  } catch (const Json::exception& error) {
    return cells::unknown_answer(error);
  }
}

std::string configured(const Json& live) { return live.is_null() ? "nothing" : text(live); }

/// "[slo.batch]" for "slo.batch.tbt".
std::string table_of(const std::string& key) {
  const std::string path = key.substr(0, key.rfind('.'));
  if (!path.starts_with("domain.")) return "[" + path + "]\n";
  return "[[domain]]\nname = " + Json(path.substr(7)).dump() + "\n";
}

}  // namespace

Result<std::string> settings_table(std::string_view config, std::string_view origins) {
  return with_both(config, origins, [](const Json& values, const Json& who) {
    Table table({"KEY", "VALUE", "SET BY"});
    for (const auto& [key, value] : values.items()) {
      table.add({key, text(value), text(who.at("origins").at(key))});
    }
    std::string out = table.render();
    for (const auto& [key, before] : who.at("live").items()) {
      const std::string now = values.contains(key) ? text(values.at(key)) : "removed";
      out.append("changed live: ").append(key).append(" is ").append(now);
      out.append(", the next start has ").append(configured(before)).append("\n");
    }
    if (!who.at("live").empty()) out += "kvdctl config --save FILE writes this into kvd's file\n";
    return out;
  });
}

Result<std::string> settings_lines(std::string_view config, std::string_view origins) {
  return with_both(config, origins, [](const Json& values, const Json& who) {
    if (who.at("live").empty()) return std::string("# nothing was changed live\n");
    std::string out = "# Changed live. What the file has of it already is to be replaced.\n";
    std::string open;
    for (const auto& [key, before] : who.at("live").items()) {
      if (!values.contains(key)) {
        out += "# " + key + " was removed; it was " + configured(before) + "\n";
        continue;
      }
      if (const std::string table = table_of(key); table != open) out += open = table;
      out += key.substr(key.rfind('.') + 1) + " = " + values.at(key).dump() + "  # was " +
             configured(before) + "\n";
    }
    return out;
  });
}

Result<std::string> settings_json(std::string_view config, std::string_view origins) {
  return with_both(config, origins, [](const Json& values, const Json& who) {
    Json all = {{"config", values}};
    all.update(who);
    return all.dump(2) + "\n";
  });
}

}  // namespace kvd::ctl
