#include "kvd/sim/workload/trace.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "ipc/vocabulary/units.hpp"
#include "kvd/sim/workload/random.hpp"
#include "kvd/sim/workload/trace_rows.hpp"

namespace kvd::sim {
namespace {

using Row = std::optional<Arrival> (*)(std::string_view);

struct Format {
  Row row = nullptr;
  bool has_header = true;
  Seconds jitter{0};
};

Result<Format> format_of(std::string_view first_line, const std::string& name) {
  if (first_line == "TIMESTAMP,ContextTokens,GeneratedTokens") return Format{azure_row};
  if (first_line == "arrival_time_ns,input_toks,output_toks") return Format{lengths_row};
  if (first_line.starts_with('{')) {
    const std::string missing = mooncake_keys_missing(first_line);
    if (missing.empty()) return Format{mooncake_row, false, kMooncakeGrid};
    return make_error(ErrorCode::kInvalidArgument,
                      name +
                          ": JSON lines of a trace have timestamp (ms), input_length and "
                          "output_length (Mooncake); the first one here lacks " +
                          missing);
  }
  return make_error(ErrorCode::kInvalidArgument,
                    name +
                        ": not a trace that kvd-sim knows. Its first line must be "
                        "TIMESTAMP,ContextTokens,GeneratedTokens (Azure), "
                        "arrival_time_ns,input_toks,output_toks (lengths), or a JSON object "
                        "(Mooncake)");
}

std::string_view trimmed(const std::string& line) {
  std::string_view text = line;
  while (!text.empty() && (text.back() == '\r' || text.back() == ' ')) text.remove_suffix(1);
  return text;
}

/// Takes a row in, or notes that it makes no sense.
void take(std::string_view text, std::size_t line, const Format& format, Random& random,
          Trace& trace) {
  ++trace.rows;
  auto arrival = format.row(text);
  if (!arrival) {
    trace.malformed.push_back(line);
    return;
  }
  arrival->time += format.jitter * random.uniform();
  trace.requests.push_back(std::move(*arrival));
}

void order_from_zero(Workload& requests) {
  std::stable_sort(requests.begin(), requests.end(),
                   [](const Arrival& a, const Arrival& b) { return a.time < b.time; });
  const Seconds start = requests.front().time;
  for (Arrival& arrival : requests) arrival.time -= start;
}

Status check(const Trace& trace, const std::string& name) {
  const auto most = kMalformedShare * static_cast<double>(trace.rows);
  if (static_cast<double>(trace.malformed.size()) > most) {
    return make_error(ErrorCode::kInvalidArgument,
                      name + ": " + trace.complaint() +
                          " of malformed rows; more than 1 % is too "
                          "many to go on. Repair the file or take another");
  }
  if (trace.requests.empty()) {
    return make_error(ErrorCode::kInvalidArgument, name + ": no requests in it");
  }
  return {};
}

constexpr Bytes kMostTrace = kGiB;

}  // namespace

std::string Trace::complaint() const {
  if (malformed.empty()) return "";
  return std::to_string(malformed.size()) + " of " + std::to_string(rows) +
         " rows left out, the first at line " + std::to_string(malformed.front());
}

Result<Trace> read_trace(std::istream& in, const std::string& name, std::uint64_t seed) {
  std::string line;
  if (!std::getline(in, line)) {
    return make_error(ErrorCode::kInvalidArgument, name + ": no requests in it");
  }
  KVD_ASSIGN_OR_RETURN(const Format format, format_of(trimmed(line), name));
  Random random(seed);
  Trace trace;
  std::size_t number = 1;
  if (!format.has_header) take(trimmed(line), number, format, random, trace);
  while (std::getline(in, line)) {
    ++number;
    if (!trimmed(line).empty()) take(trimmed(line), number, format, random, trace);
  }
  KVD_TRY(check(trace, name));
  order_from_zero(trace.requests);
  return trace;
}

Result<Trace> read_trace_file(const std::filesystem::path& file, std::uint64_t seed) {
  const char* variable = std::getenv("KVD_TRACES");
  const std::filesystem::path folder = variable != nullptr ? variable : "../shared/traces";
  for (const auto& candidate : {file, folder / file}) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(candidate, error)) continue;
    if (std::filesystem::file_size(candidate, error) > kMostTrace.size() && !error) {
      return make_error(ErrorCode::kInvalidArgument,
                        candidate.string() +
                            " is larger than 1 GiB, the most that is read: take "
                            "its first lines");
    }
    std::ifstream in(candidate);
    if (in) return read_trace(in, candidate.string(), seed);
  }
  return make_error(ErrorCode::kNotFound,
                    "cannot read the trace \"" + file.string() + "\", here or in " +
                        folder.string() + " (KVD_TRACES); gen:NAME makes a workload without one");
}

}  // namespace kvd::sim
