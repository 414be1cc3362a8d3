#include "kvd/ctl/top/screen.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <sstream>
#include <utility>

#include "kvd/ctl/cells.hpp"

namespace kvd::ctl::top {
namespace {

using cells::bytes;
using cells::Json;
using cells::seconds;
using cells::text;

std::string number_text(double value) {
  char out[32];
  std::snprintf(out, sizeof out, std::abs(value) >= 99.95 ? "%.0f" : "%.1f", value);
  return out;
}

/// "hbm   [#########++++      ]  45 %  29.8 MiB of 64 MiB, 12 MiB cached"
std::string tier_line(const Json& pool, std::size_t width) {
  const auto capacity = pool.at("capacity_bytes").get<double>();
  const auto cached = pool.at("cached_bytes").get<double>();
  const double used =
      capacity - pool.at("available_bytes").get<double>() - pool.at("missing_bytes").get<double>();
  const double share = capacity > 0 ? used / capacity : 0;
  char percent[16];
  std::snprintf(percent, sizeof percent, "%3.0f %%", 100 * share);
  const std::string numbers = std::string(percent) + "  " + bytes_text(used) + " of " +
                              bytes_text(capacity) + ", " + bytes_text(cached) + " cached";
  const std::size_t room = std::clamp<std::size_t>(width, 70, 120) - 60;
  const auto upto = [&](double part) {
    return static_cast<std::size_t>(
        std::lround(std::clamp(part, 0.0, 1.0) * static_cast<double>(room)));
  };
  const std::size_t full = upto(share);
  const std::size_t kept = capacity > 0 ? upto(share + cached / capacity) - full : 0;
  std::string tier = text(pool.at("tier"));
  tier.resize(6, ' ');
  return tier + "[" + std::string(full, '#') + std::string(kept, '+') +
         std::string(room - full - kept, ' ') + "] " + numbers;
}

std::string requests_line(const Json& requests) {
  std::uint64_t all = 0;
  std::string line;
  for (const auto& [state, count] : requests.items()) {
    all += count.get<std::uint64_t>();
    if (count != 0) line += (line.empty() ? ": " : ", ") + text(count) + " " + state;
  }
  return std::to_string(all) + " requests" + line;
}

std::string goal_text(const Json& goal) {
  return cells::attainment(goal.at("met").get<double>(), goal.at("missed").get<double>(),
                           "none yet");
}

/// The share of goals that all classes of an engine met. An older kvd does not tell it.
std::string goal_of_classes(const Json& engine, const char* goal) {
  double met = 0, missed = 0;
  for (const Json& one : engine.value("classes", Json::array())) {
    met += one.at(goal).at("met").get<double>();
    missed += one.at(goal).at("missed").get<double>();
  }
  return cells::attainment(met, missed, "-");
}

std::string oldest_wait(const Json& engine) {
  double oldest = 0;
  for (const Json& one : engine.value("classes", Json::array()))
    oldest = std::max(oldest, one.at("oldest_wait_s").get<double>());
  return oldest > 0 ? seconds_text(oldest) : "-";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

using Row = std::pair<double, std::vector<std::string>>;

/// Sorts rows, the largest first; equal ones keep their order.
std::vector<std::string> in_order(std::vector<Row> rows, std::vector<std::string> titles) {
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.first > b.first; });
  Table table(std::move(titles));
  for (Row& row : rows) table.add(std::move(row.second));
  return lines_of(table.render());
}

}  // namespace

struct Screen::Overviews {
  Json now;
  Json before;
  std::map<std::uint64_t, Json> engines_before;

  [[nodiscard]] double span() const {
    return before.is_null() ? 0 : now.at("now_s").get<double>() - before.at("now_s").get<double>();
  }
  /// The rate a second; "-" where there is no overview to compare with.
  [[nodiscard]] std::string rate(const std::function<double(const Json&)>& count,
                                 const std::function<std::string(double)>& as_text) const {
    if (span() <= 0) return "-";
    return as_text((count(now) - count(before)) / span());
  }
  [[nodiscard]] double engine_rate(const Json& engine, const char* key) const {
    const auto found = engines_before.find(engine.at("id").get<std::uint64_t>());
    if (found == engines_before.end() || span() <= 0) return 0;
    return (engine.at(key).get<double>() - found->second.at(key).get<double>()) / span();
  }
  [[nodiscard]] std::vector<std::string> engines(Order order) const;
  [[nodiscard]] std::vector<std::string> requests(Order order) const;
  [[nodiscard]] std::string rates() const;
};

std::string Screen::Overviews::rates() const {
  const auto counter = [](const char* path) {
    return [pointer = Json::json_pointer(path)](const Json& overview) {
      return overview.at("status").at("counters").at(pointer).get<double>();
    };
  };
  const auto bytes_a_second = [](double value) { return bytes_text(value) + "/s"; };
  return rate(counter("/tokens"), number_text) + " tokens/s, " +
         rate(counter("/steps"), number_text) + " steps/s; rotations/s " +
         rate(counter("/rotations_out"), number_text) + " out, " +
         rate(counter("/rotations_in"), number_text) + " in; copies " +
         rate(counter("/copy_bytes/d2h"), bytes_a_second) + " out, " +
         rate(counter("/copy_bytes/h2d"), bytes_a_second) + " in";
}

std::vector<std::string> Screen::Overviews::engines(Order order) const {
  std::vector<Row> rows;
  for (const Json& e : now.at("engines").at("engines")) {
    const double rate = engine_rate(e, "tokens");
    const auto memory = e.at("hbm_bytes").get<double>() + e.at("region_bytes").get<double>();
    const double key = order == Order::kMemory ? memory : order == Order::kRate ? rate : 0;
    const bool known = span() > 0;
    rows.push_back(
        {key,
         {text(e.at("id")), text(e.at("name")), text(e.at("domain")), text(e.at("state")),
          text(e.at("requests")), bytes(e.at("hbm_bytes")), bytes(e.at("dram_bytes")),
          bytes(e.at("region_bytes")), known ? number_text(rate) : "-",
          known ? number_text(engine_rate(e, "steps")) : "-", text(e.at("rotations_out")),
          text(e.at("rotations_in")), goal_of_classes(e, "ttft"), goal_of_classes(e, "tbt"),
          oldest_wait(e), seconds(e.at("idle_s"))}});
  }
  return in_order(std::move(rows),
                  {"ID", "NAME", "DOMAIN", "STATE", "REQUESTS", "HBM", "DRAM", "REGION", "TOK/S",
                   "STEP/S", "OUT", "IN", "TTFT MET", "TBT MET", "OLDEST WAIT", "IDLE"});
}

std::vector<std::string> Screen::Overviews::requests(Order order) const {
  std::vector<Row> rows;
  for (const Json& r : now.at("requests").at("requests")) {
    const auto lag = r.at("vlt_s").get<double>();
    const double key = order == Order::kMemory ? r.at("hbm_bytes").get<double>()
                       : order == Order::kLag  ? lag
                                               : 0;
    const Json& deposit = r.at("deposit_tokens");
    rows.push_back({key,
                    {text(r.at("engine")), text(r.at("request")), cells::slo_class(r),
                     text(r.at("state")), text(r.at("prompt_tokens")), text(r.at("tokens")),
                     bytes(r.at("hbm_bytes")), bytes(r.at("dram_bytes")), seconds_text(lag),
                     deposit.is_null() ? "-" : text(deposit), text(r.at("rotations")),
                     seconds(r.at("age_s")), cells::goal(r), cells::late(r), cells::why(r)}});
  }
  return in_order(std::move(rows),
                  {"ENGINE", "REQUEST", "CLASS", "STATE", "PROMPT", "TOKENS", "HBM", "DRAM", "LAG",
                   "DEPOSIT", "ROTATIONS", "AGE", "GOAL", "LATE", "WHY IT WAITS"});
}

Screen::Screen() : overviews_(std::make_unique<Overviews>()) {}
Screen::~Screen() = default;

Status Screen::take(std::string_view overview) {
  try {
    auto next = std::make_unique<Overviews>();
    next->now = Json::parse(overview);
    const Json& past = overviews_->now;
    const auto boot = [](const Json& o) { return o.at("status").at("boot_id"); };
    if (!past.is_null() && boot(past) == boot(next->now)) next->before = past;
    if (!next->before.is_null()) {
      for (const Json& e : next->before.at("engines").at("engines")) {
        next->engines_before[e.at("id").get<std::uint64_t>()] = e;
      }
    }
    std::swap(overviews_, next);
    try {  // shown once, it can be shown again
      (void)head(80);
      (void)overviews_->engines(order_);
      (void)overviews_->requests(order_);
      return {};
    } catch (const Json::exception&) {
      std::swap(overviews_, next);
      throw;
    }
  } catch (const Json::exception& error) {
    return cells::unknown_answer(error);
  }
}

std::vector<std::string> Screen::head(std::size_t width) const {
  if (overviews_->now.is_null()) return {};
  const Json& status = overviews_->now.at("status");
  const Json& counters = status.at("counters");
  const Json& policy = status.at("policy");
  std::vector<std::string> lines = {
      "kvd " + text(status.at("version")) + ", " + text(status.at("backend")) + ", up " +
      seconds(status.at("uptime_s")) + "; " + text(policy.at("rotation")) + ", " +
      text(policy.at("placement")) + ", " + text(policy.at("admission"))};
  for (const Json& pool : status.at("pools")) lines.push_back(tier_line(pool, width));
  const char* drains = status.at("drains").get<bool>() ? "OUT OF SERVICE, " : "";
  lines.push_back(drains + text(status.at("engines")) + " engines, " +
                  requests_line(status.at("requests")));
  lines.push_back(overviews_->rates());
  lines.push_back("goals met: TTFT " + goal_text(counters.at("ttft")) + ", TBT " +
                  goal_text(counters.at("tbt")));
  return lines;
}

std::vector<std::string> Screen::rows() const {
  if (overviews_->now.is_null()) return {};
  return list_ == List::kEngines ? overviews_->engines(order_) : overviews_->requests(order_);
}

}  // namespace kvd::ctl::top
