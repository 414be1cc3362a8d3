// kvd-bench: figures of the running machine, each beside its floor.
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ipc/vocabulary/nearest.hpp"
#include "ipc/vocabulary/standard_streams.hpp"
#include "tests/lab/bench/bench.hpp"

namespace kvd::bench {
namespace {

// A function-local static: registrations in other files run before main() in no known order.
std::vector<Benchmark>& benchmarks() {
  static std::vector<Benchmark> all;
  return all;
}

int usage(std::FILE* out) {
  std::fprintf(
      out,
      "usage: kvd-bench NAME [--json] [options]\n"
      "Prints value, floor (the same work without kvd, measured in turn with it) and\n"
      "ratio = value / floor; --json as [{\"name\",\"value\",\"floor\",\"ratio\",\"unit\"}].\n"
      "\nNAMEs:\n");
  for (const Benchmark& b : benchmarks()) std::fprintf(out, "  %-14s %s\n", b.name, b.summary);
  return out == stdout ? 0 : 2;
}

std::string json_number(const std::optional<double>& number) {
  if (!number) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", *number);
  return text;
}

void print_json(const std::vector<Row>& rows) {
  std::printf("[");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    std::printf("%s\n  {\"name\":\"%s\",\"value\":%s,\"floor\":%s,\"ratio\":%s,\"unit\":\"%s\"}",
                i == 0 ? "" : ",", row.name.c_str(), json_number(row.value).c_str(),
                json_number(row.floor).c_str(), json_number(row.ratio).c_str(), row.unit.c_str());
  }
  std::printf("\n]\n");
}

void print_table(const std::vector<Row>& rows) {
  std::printf("%-20s %12s %12s %8s  %s\n", "name", "value", "floor", "ratio", "unit");
  const auto cell = [](const std::optional<double>& n) { return n ? json_number(n) : "-"; };
  for (const Row& row : rows) {
    std::printf("%-20s %12s %12s %8s  %s\n", row.name.c_str(), cell(row.value).c_str(),
                cell(row.floor).c_str(), cell(row.ratio).c_str(), row.unit.c_str());
  }
}

int run(int argc, char** argv) {
  if (argc < 2) return usage(stderr);
  const std::string_view name = argv[1];
  if (name == "--help" || name == "-h") return usage(stdout);
  if (name == "--version" || name == "-V") return std::puts("kvd-bench " KVD_VERSION), 0;
  const auto found = std::find_if(benchmarks().begin(), benchmarks().end(),
                                  [&](const Benchmark& b) { return name == b.name; });
  Arguments arguments;
  for (int i = 2; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--help") {
      if (found == benchmarks().end() || found->help == nullptr) return usage(stdout);
      return std::fputs(found->help, stdout) < 0 ? 1 : 0;
    }
    if (std::string_view(argv[i]) == "--json") {
      arguments.json = true;
    } else {
      arguments.rest.emplace_back(argv[i]);
    }
  }
  if (found != benchmarks().end()) return found->run(arguments);
  std::vector<std::string> names{"--help", "--version"};
  for (const Benchmark& b : benchmarks()) names.emplace_back(b.name);
  const std::string meant = misspelt(name, "benchmark", names);
  std::fprintf(stderr, "kvd-bench: %s\n",
               meant.empty() ? ("no benchmark named " + std::string(name)).c_str() : meant.c_str());
  return usage(stderr);
}

}  // namespace

Registration::Registration(Benchmark benchmark) {
  auto& all = benchmarks();
  const auto later = [](const Benchmark& a, const Benchmark& b) {
    return std::strcmp(a.name, b.name) < 0;
  };
  all.insert(std::upper_bound(all.begin(), all.end(), benchmark, later), benchmark);
}

double Arguments::number(std::string_view flag, double otherwise) const {
  const auto at = std::find(rest.begin(), rest.end(), flag);
  if (at == rest.end()) return otherwise;
  const auto text = at + 1;
  double value = 0;
  if (text != rest.end()) {
    const auto end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, value);
    if (error == std::errc() && stop == end) return value;
  }
  std::fprintf(stderr, "kvd-bench: %s needs a number\n", at->c_str());
  std::exit(2);
}

std::optional<std::string> Arguments::text(std::string_view flag) const {
  const auto at = std::find(rest.begin(), rest.end(), flag);
  if (at == rest.end()) return std::nullopt;
  if (at + 1 != rest.end()) return at[1];
  std::fprintf(stderr, "kvd-bench: %s needs a value\n", at->c_str());
  std::exit(2);
}

int print_rows(const std::vector<Row>& rows, bool json) {
  json ? print_json(rows) : print_table(rows);
  return 0;
}

}  // namespace kvd::bench

int main(int argc, char** argv) {
  kvd::open_standard_descriptors();
  return kvd::status_after_output("kvd-bench", kvd::bench::run(argc, argv));
}
