#include "kvd/sim/workload/trace_rows.hpp"

#include <array>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>

namespace kvd::sim {
namespace {

// More than any request has, but so few that sums cannot overflow.
constexpr std::int64_t kMostTokens = 1'000'000'000;
constexpr double kMostSeconds = 1e9;

constexpr std::array kMooncakeKeys = {"timestamp", "input_length", "output_length"};

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::array<std::string_view, 3>> three_fields(std::string_view row) {
  const auto first = row.find(',');
  const auto second = row.find(',', first == row.npos ? first : first + 1);
  if (second == row.npos || row.find(',', second + 1) != row.npos) return std::nullopt;
  return std::array<std::string_view, 3>{
      row.substr(0, first), row.substr(first + 1, second - first - 1), row.substr(second + 1)};
}

std::optional<Arrival> arrival(double seconds, std::int64_t prompt, std::int64_t output) {
  if (!(seconds >= -kMostSeconds * 100 && seconds <= kMostSeconds * 100)) return std::nullopt;
  if (prompt < 1 || output < 1 || prompt > kMostTokens || output > kMostTokens) return std::nullopt;
  Arrival made;
  made.time = Seconds(seconds);
  made.prompt = Tokens(prompt);
  made.output = Tokens(output);
  return made;
}

/// Seconds since 1970 of "2023-11-16 18:15:46.6805900".
std::optional<double> instant(std::string_view text) {
  if (text.size() < 19 || text[4] != '-' || text[7] != '-' || text[13] != ':' || text[16] != ':') {
    return std::nullopt;
  }
  const auto year = number<int>(text.substr(0, 4));
  const auto month = number<unsigned>(text.substr(5, 2));
  const auto day = number<unsigned>(text.substr(8, 2));
  const auto hour = number<int>(text.substr(11, 2));
  const auto minute = number<int>(text.substr(14, 2));
  const auto second = number<double>(text.substr(17));
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(*year), std::chrono::month(*month),
                                         std::chrono::day(*day)};
  if (!date.ok() || *hour < 0 || *hour > 23 || *minute < 0 || *minute > 59 || *second < 0 ||
      *second >= 61) {
    return std::nullopt;
  }
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return static_cast<double>(days) * 86400 + *hour * 3600 + *minute * 60 + *second;
}

}  // namespace

std::optional<Arrival> azure_row(std::string_view row) {
  const auto fields = three_fields(row);
  if (!fields) return std::nullopt;
  const auto time = instant((*fields)[0]);
  const auto prompt = number<std::int64_t>((*fields)[1]);
  const auto output = number<std::int64_t>((*fields)[2]);
  if (!time || !prompt || !output) return std::nullopt;
  return arrival(*time, *prompt, *output);
}

std::optional<Arrival> lengths_row(std::string_view row) {
  const auto fields = three_fields(row);
  if (!fields) return std::nullopt;
  const auto time = number<std::int64_t>((*fields)[0]);
  const auto prompt = number<std::int64_t>((*fields)[1]);
  const auto output = number<std::int64_t>((*fields)[2]);
  if (!time || !prompt || !output) return std::nullopt;
  return arrival(static_cast<double>(*time) * 1e-9, *prompt, *output);
}

std::optional<Arrival> mooncake_row(std::string_view row) {
  const auto json = nlohmann::json::parse(row, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  for (const char* key : kMooncakeKeys) {
    if (!json.contains(key) || !json[key].is_number()) return std::nullopt;
  }
  for (const char* key : {"input_length", "output_length"}) {
    if (!json[key].is_number_integer()) return std::nullopt;
  }
  auto made =
      arrival(json["timestamp"].get<double>() * 1e-3, json["input_length"].get<std::int64_t>(),
              json["output_length"].get<std::int64_t>());
  if (!made || !json.contains("hash_ids")) return made;
  if (!json["hash_ids"].is_array()) return std::nullopt;
  for (const auto& id : json["hash_ids"]) {
    if (!id.is_number_unsigned()) return std::nullopt;
    made->prefix.push_back(id.get<std::uint64_t>());
  }
  return made;
}

std::string mooncake_keys_missing(std::string_view row) {
  const auto json = nlohmann::json::parse(row, nullptr, /*allow_exceptions=*/false);
  std::string missing;
  for (const char* key : kMooncakeKeys) {
    if (!json.contains(key)) missing += (missing.empty() ? "" : ", ") + std::string(key);
  }
  return missing;
}

}  // namespace kvd::sim
