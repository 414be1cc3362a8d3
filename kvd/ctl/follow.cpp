#include "kvd/ctl/follow.hpp"

#include "kvd/ctl/cells.hpp"

namespace kvd::ctl {
namespace {

using cells::Json;
using cells::text;

std::string line_of(const Json& event, bool as_json) {
  if (as_json) return event.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  const bool of_engine = event.at("engine").get<std::uint64_t>() != 0;
  return text(event.at("sequence")) + "  " + cells::seconds(event.at("age_s")) + " ago  " +
         text(event.at("level")) + "  " +
         (of_engine ? "engine " + text(event.at("engine")) + ": " : std::string()) +
         text(event.at("text")) + "\n";
}

}  // namespace

Result<std::string> EventFollower::take(std::string_view document) {
  try {
    const Json events = Json::parse(document).at("events");
    const auto number = [](const Json& event) { return event.at("sequence").get<std::uint64_t>(); };
    const std::uint64_t newest = events.empty() ? 0 : number(events.back());
    if (newest < last_) last_ = 0;  // another kvd
    std::string out;
    for (const Json& event : events) {
      const std::uint64_t at = number(event);
      if (at <= last_) continue;
      if (begun_ && !as_json_ && at > last_ + 1) {
        out += "(" + std::to_string(at - last_ - 1) + " events before were lost)\n";
      }
      if (choice_.takes(event)) out += line_of(event, as_json_);
      last_ = at;
      begun_ = true;
    }
    begun_ = true;
    return out;
  } catch (const Json::exception& error) {
    return cells::unknown_answer(error);
  }
}

}  // namespace kvd::ctl
