#include "planner/tool/command_line.hpp"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>

#include "ipc/vocabulary/bounded_input.hpp"
#include "ipc/vocabulary/nearest.hpp"
#include "planner/tool/decisions.hpp"

namespace kvd::planner {
namespace {

constexpr std::string_view kUsage =
    "usage: kvd-plan latency|place|rotate|admit|deposit|load [--in FILE] [--batch]\n"
    "Reads a JSON snapshot (standard input unless --in), prints the decision kvd would make.\n"
    "What /v1/snapshots/rotate of a running kvd answers holds several: each has its result, on a "
    "line.\n"
    "  --batch  one snapshot a line, one result a line; a bad line prints its error object\n"
    "Exit: 0 with a result, 2 for invalid input. The format: planner/MODEL.md.\n";

struct Options {
  Decide decide = nullptr;
  std::string file;
  bool batch = false;
};

Result<Options> parse(std::span<const std::string_view> arguments) {
  const auto invalid = [](std::string why) {
    return make_error(ErrorCode::kInvalidArgument, std::move(why) + "; see kvd-plan --help");
  };
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto argument = arguments[i];
    if (argument == "--batch") {
      options.batch = true;
    } else if (argument == "--in") {
      if (++i == arguments.size()) return invalid("--in needs a file");
      options.file = arguments[i];
    } else if (const auto decide = decision_named(argument); decide && !options.decide) {
      options.decide = decide;
    } else {
      auto names = decision_names();
      names.insert(names.end(), {"--in", "--batch", "--help", "--version"});
      const std::string meant = misspelt(argument, "argument", names);
      return invalid(meant.empty() ? "unexpected argument \"" + std::string(argument) + "\""
                                   : meant);
    }
  }
  if (!options.decide) return invalid("name a decision");
  return options;
}

// Invalid UTF-8 in an id must not stop the answer.
std::string line(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

constexpr Bytes kMost = 64 * kMiB;  // many times the largest snapshot of 1,024 requests

int each_line(Decide decide, std::istream& in, std::ostream& out) {
  int status = 0;
  for (std::string text;;) {
    const auto read = read_bounded_line(in, text, "the input", kMost);
    if (!read.ok()) {
      out << line(error_json(read.error()));
      return 2;
    }
    if (!*read) return status;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto result = decide_text(decide, text);
    out << line(result.ok() ? *result : error_json(result.error())) << std::flush;
    if (!result.ok()) status = 2;
  }
}

/// A running kvd answers with one document that holds a snapshot for each domain or engine.
std::optional<std::string> lines_of(std::string_view text) {
  const Json whole = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!whole.is_object() || !whole.contains("snapshots") || !whole["snapshots"].is_array()) {
    return std::nullopt;
  }
  std::string lines;
  for (const Json& snapshot : whole["snapshots"]) lines += snapshot.dump() + "\n";
  return lines;
}

int one(Decide decide, std::istream& in, std::ostream& out, std::ostream& err) {
  const auto fail = [&](const Error& error) {
    err << line(error_json(error));
    return 2;
  };
  const auto text = read_bounded(in, "the input", kMost);
  if (!text.ok()) return fail(text.error());
  if (const Status nesting = check_nesting(*text, "the input"); !nesting.ok()) {
    return fail(nesting.error());
  }
  if (const auto lines = lines_of(*text)) {
    std::istringstream each(*lines);
    return each_line(decide, each, out);
  }
  const auto result = decide_text(decide, *text);
  if (!result.ok()) return fail(result.error());
  out << line(*result);
  return 0;
}

}  // namespace

int run_kvd_plan(std::span<const std::string_view> arguments, std::istream& in, std::ostream& out,
                 std::ostream& err) {
  const auto asked = [&](std::string_view name, std::string_view letter) {
    return std::any_of(arguments.begin(), arguments.end(),
                       [&](std::string_view one) { return one == name || one == letter; });
  };
  if (asked("--help", "-h")) {
    out << kUsage;
    return 0;
  }
  if (asked("--version", "-V")) {
    out << "kvd-plan " KVD_VERSION "\n";
    return 0;
  }
  const auto options = parse(arguments);
  if (!options.ok()) {
    err << line(error_json(options.error()));
    return 2;
  }
  std::ifstream file;
  if (!options->file.empty()) {
    file.open(options->file);
    if (!file) {
      err << line(error_json(
          make_error(ErrorCode::kNotFound, "cannot read the file \"" + options->file + "\"")));
      return 2;
    }
  }
  std::istream& source = options->file.empty() ? in : file;
  return options->batch ? each_line(options->decide, source, out)
                        : one(options->decide, source, out, err);
}

}  // namespace kvd::planner
