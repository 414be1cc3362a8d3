#include "tests/lab/grid/axes.hpp"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "ipc/vocabulary/fnv.hpp"
#include "kvd/sim/workload/random.hpp"

namespace kvd::sim::grid {
namespace {

constexpr std::size_t kMostCells = 10'000;

Error invalid(const std::string& message) {
  return make_error(ErrorCode::kInvalidArgument, "the grid's axes: " + message);
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

Lengths lengths_in(const nlohmann::json& json) {
  Lengths out;
  out.source = json.at("source").get<std::string>();
  out.duration_s = json.at("duration_s").get<double>();
  out.ttft_s = json.at("ttft_s").get<double>();
  out.tbt_s = json.at("tbt_s").get<double>();
  return out;
}

ClassPart part_in(const nlohmann::json& json, const char* share) {
  return {json.at(share).get<double>(), json.value("ttft", 1.0), json.value("tbt", 1.0)};
}

/// Reads several parts, or one whose keys stand beside the name.
Classes classes_in(const nlohmann::json& json) {
  Classes out{json.at("name").get<std::string>(), {}};
  if (json.value("strict_share", 0.0) != 0) out.parts.push_back(part_in(json, "strict_share"));
  if (!json.contains("parts")) return out;
  for (const nlohmann::json& part : json["parts"]) out.parts.push_back(part_in(part, "share"));
  return out;
}

/// Reads profiles alone, or an object.
Machine machine_in(const nlohmann::json& json) {
  if (json.is_array()) return {json.get<std::vector<std::string>>(), false};
  Machine out{json.at("profiles").get<std::vector<std::string>>(), false};
  out.apart = json.value("apart", false) && out.profiles.size() > 1;
  return out;
}

// Throws what nlohmann throws where a key is missing or has another type.
Axes axes_in(const nlohmann::json& json) {
  Axes axes;
  axes.seed = json.at("seed").get<std::uint64_t>();
  axes.cells = json.at("cells").get<std::size_t>();
  axes.ids = json.value("ids", axes.ids);
  axes.by_class = json.value("by_class", false);
  for (const nlohmann::json& entry : json.at("machines")) {
    axes.machines.push_back(machine_in(entry));
  }
  for (const nlohmann::json& entry : json.at("lengths")) axes.lengths.push_back(lengths_in(entry));
  for (const nlohmann::json& entry : json.at("classes")) axes.classes.push_back(classes_in(entry));
  axes.cv = json.at("cv").get<std::vector<double>>();
  axes.max_tokens = json.at("max_tokens").get<std::vector<std::string>>();
  axes.load = json.at("load").get<std::vector<double>>();
  axes.hbm = json.at("hbm").get<std::vector<double>>();
  axes.dram = json.at("dram").get<std::vector<double>>();
  return axes;
}

Status check_positive(const char* axis, const std::vector<double>& values) {
  if (values.empty()) return invalid(std::string(axis) + " has no values");
  for (const double value : values) {
    if (!(value > 0 && value <= 1000)) {
      return invalid(std::string(axis) + " must lie above 0 and be at most 1000");
    }
  }
  return {};
}

/// The most engines that each have a class.
std::size_t most_apart(const Axes& axes) {
  std::size_t most = 0;
  for (const Machine& machine : axes.machines) {
    if (machine.apart) most = std::max(most, machine.profiles.size());
  }
  return most;
}

Status check_classes(const Axes& axes, const Classes& classes) {
  const std::size_t engines = most_apart(axes);
  for (const ClassPart& part : classes.parts) {
    if (!(part.share > 0 && part.share < 1) || !(part.ttft > 0) || !(part.tbt > 0)) {
      return invalid(classes.name + " needs shares between 0 and 1 and factors above 0");
    }
    if (engines > 0 && !(part.ttft >= 1)) {
      return invalid(classes.name +
                     " needs factors of at least 1: apart, the first engine has the tightest");
    }
  }
  if (!(rest_of(classes) > 1e-9)) return invalid(classes.name + " needs shares below 1 together");
  if (axes.by_class && classes.parts.empty()) return invalid(classes.name + " needs parts");
  if (engines <= classes.parts.size() + 1) return {};
  return invalid(classes.name + " has fewer classes than a machine has engines that are apart");
}

Status check_axes(const Axes& axes) {
  if (axes.cells < 1 || axes.cells > kMostCells) {
    return invalid("cells must be from 1 to " + std::to_string(kMostCells));
  }
  if (axes.machines.empty() || axes.lengths.empty() || axes.classes.empty() ||
      axes.max_tokens.empty()) {
    return invalid("machines, lengths, classes and max_tokens need a value each");
  }
  for (const Machine& machine : axes.machines) {
    if (machine.profiles.empty()) return invalid("a machine needs a profile");
  }
  for (const Lengths& l : axes.lengths) {
    if (!(l.duration_s > 0) || !(l.ttft_s > 0) || !(l.tbt_s > 0)) {
      return invalid(l.source + " needs a duration and goals above 0");
    }
  }
  for (const Classes& c : axes.classes) KVD_TRY(check_classes(axes, c));
  KVD_TRY(check_positive("cv", axes.cv));
  KVD_TRY(check_positive("load", axes.load));
  KVD_TRY(check_positive("hbm", axes.hbm));
  return check_positive("dram", axes.dram);
}

std::string digest_of(std::string_view text) {
  Fnv1a hash;
  hash.add_bytes(text);
  char out[17];
  std::snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(hash.value()));
  return out;
}

/// Indices of an axis' values, one for each cell.
std::vector<std::size_t> dealt(std::size_t cells, std::size_t values, std::uint64_t seed) {
  std::vector<std::size_t> deck(cells);
  for (std::size_t i = 0; i < cells; ++i) deck[i] = i % values;
  Random random(seed);
  for (std::size_t i = cells; i > 1; --i) {
    const auto other = static_cast<std::size_t>(random.uniform() * static_cast<double>(i));
    std::swap(deck[i - 1], deck[other]);
  }
  return deck;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " + ") + name;
  return text;
}

}  // namespace

double rest_of(const Classes& classes) {
  double rest = 1;
  for (const ClassPart& part : classes.parts) rest -= part.share;
  return rest;
}

std::string knee_name(const Cell& cell) {
  return cell.lengths.source + " on " + joined(cell.profiles) + " with " + number(cell.hbm) +
         " x HBM";
}

std::string text_of(const Cell& cell) {
  return knee_name(cell) + ", " + number(cell.load) + " x knee, cv " + number(cell.cv) +
         ", max_tokens " + cell.max_tokens + ", " + cell.classes.name +
         (cell.apart ? ", an engine each" : "") + ", DRAM " + number(cell.dram) + " x HBM";
}

Result<Axes> read_axes(std::string_view text) {
  Axes axes;
  try {
    axes = axes_in(nlohmann::json::parse(text));
  } catch (const nlohmann::json::exception& fault) {
    return invalid(fault.what());
  }
  KVD_TRY(check_axes(axes));
  axes.digest = digest_of(text);
  return axes;
}

std::vector<Cell> cells_of(const Axes& axes) {
  std::uint64_t seed = axes.seed;
  const auto deal = [&](std::size_t values) {
    return dealt(axes.cells, values, seed += 0x9e3779b97f4a7c15);
  };
  const auto machines = deal(axes.machines.size());
  const auto lengths = deal(axes.lengths.size());
  const auto classes = deal(axes.classes.size());
  const auto cv = deal(axes.cv.size());
  const auto max_tokens = deal(axes.max_tokens.size());
  const auto load = deal(axes.load.size());
  const auto hbm = deal(axes.hbm.size());
  const auto dram = deal(axes.dram.size());
  std::vector<Cell> cells(axes.cells);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    char id[32];
    std::snprintf(id, sizeof id, "%03zu", i + 1);
    cells[i] = {axes.ids + id,
                axes.machines[machines[i]].profiles,
                axes.lengths[lengths[i]],
                axes.classes[classes[i]],
                axes.cv[cv[i]],
                axes.max_tokens[max_tokens[i]],
                axes.load[load[i]],
                axes.hbm[hbm[i]],
                axes.dram[dram[i]],
                axes.machines[machines[i]].apart};
  }
  return cells;
}

}  // namespace kvd::sim::grid
