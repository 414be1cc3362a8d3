#include "tests/lab/bench/copy_table.hpp"

#include <algorithm>
#include <map>

namespace kvd::bench {
namespace {

constexpr double kNoise = 0.98;
constexpr double kNearPeak = 0.85;

using CellRow = std::vector<CopyCell>;  // cells of one direction and count

/// The smallest segment from which `holds` is true for all cells.
template <class Holds>
Bytes from_which(CellRow row, Holds holds) {
  std::sort(row.begin(), row.end(),
            [](const CopyCell& a, const CopyCell& b) { return a.segment > b.segment; });
  Bytes from;
  for (const CopyCell& cell : row) {
    if (!holds(cell)) break;
    from = cell.segment;
  }
  return from;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + '"';
}

}  // namespace

std::vector<Crossover> crossovers(const std::vector<CopyCell>& cells) {
  std::map<std::pair<std::string, std::uint32_t>, CellRow> rows;
  std::map<std::string, double> peaks;
  for (const CopyCell& cell : cells) {
    rows[{cell.direction, cell.count}].push_back(cell);
    peaks[cell.direction] = std::max(peaks[cell.direction], cell.engine);
  }
  std::vector<Crossover> found;
  for (const auto& [key, row] : rows) {
    const double enough = peaks[key.first] * kNearPeak;
    found.push_back(
        {key.first, key.second,
         from_which(row, [](const CopyCell& c) { return c.engine >= c.kernels * kNoise; }),
         from_which(row, [&](const CopyCell& c) { return c.engine >= enough; })});
  }
  return found;
}

std::string to_toml(const CopyOrigin& origin, const std::vector<Crossover>& rows) {
  std::string text =
      "# Written by kvd-bench copy --matrix; kvd reads it as copy.table. Bytes; 0: no segment that "
      "was\n# measured is large enough. engine_from: the copy engine is not slower than the "
      "kernel.\n# peak_from: it reaches 85 % of the direction's peak.\n";
  text += "source = " + quoted(origin.source) + "\ndevice = " + quoted(origin.device) +
          "\nuuid = " + quoted(origin.uuid) + "\ndriver = " + std::to_string(origin.driver) + "\n";
  for (const Crossover& row : rows) {
    text += "\n[[crossover]]\ndirection = " + quoted(row.direction) +
            "\ncount = " + std::to_string(row.count) +
            "\nengine_from = " + std::to_string(row.engine_from.value) +
            "\npeak_from = " + std::to_string(row.peak_from.value) + "\n";
  }
  return text;
}

}  // namespace kvd::bench
