#include "tests/lab/grid/ledger.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

namespace kvd::sim::grid {
namespace fs = std::filesystem;
namespace {

Error unavailable(const fs::path& file, const char* what) {
  return make_error(ErrorCode::kUnavailable, std::string("cannot ") + what + " " + file.string() +
                                                 ": " + std::strerror(errno) +
                                                 "; choose another folder with --out");
}

Error foreign(const fs::path& file, const std::string& why) {
  return make_error(ErrorCode::kInvalidArgument,
                    file.string() + " " + why + "; choose another folder with --out");
}

}  // namespace

Result<Ledger> Ledger::open(const fs::path& file, const Json& header) {
  Ledger ledger(file);
  std::error_code error;
  if (fs::exists(file, error) && fs::file_size(file, error) > 0) {
    KVD_TRY(ledger.read(header));
  } else {
    KVD_TRY(ledger.append(header));
  }
  return ledger;
}

Status Ledger::read(const Json& header) {
  std::ifstream in(file_, std::ios::binary);
  if (!in) return unavailable(file_, "read");
  std::stringstream all;
  all << in.rdbuf();
  const std::string text = all.str();
  const std::size_t whole = text.rfind('\n') + 1;  // npos + 1 is 0
  std::error_code error;
  if (whole < text.size()) fs::resize_file(file_, whole, error);
  if (error) return foreign(file_, "cannot be cut to whole lines");
  std::istringstream lines(text.substr(0, whole));
  bool first = true;
  for (std::string line; std::getline(lines, line); first = false) {
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_discarded() || !json.is_object())
      return foreign(file_, "has a line that is no JSON");
    if (first && json != header) return foreign(file_, "holds results of another grid or policy");
    if (!first) lines_[json.value("name", "")] = json;
  }
  return first ? append(header) : Status();
}

Status Ledger::append(const Json& line) {
  std::ofstream out(file_, std::ios::binary | std::ios::app);
  out << line.dump() << "\n" << std::flush;
  return out ? Status() : Status(unavailable(file_, "write"));
}

Status Ledger::add(const std::string& name, const Json& line) {
  Json named = {{"name", name}};
  named.update(line);
  KVD_TRY(append(named));
  lines_[name] = std::move(named);
  return {};
}

}  // namespace kvd::sim::grid
