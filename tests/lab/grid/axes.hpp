#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/result.hpp"

/// `kvd-lab grid`: policies on cells that are drawn from axes, so that nobody picks where a policy
/// is looked at.
namespace kvd::sim::grid {

/// A source of requests, for how long they arrive, and their goals.
struct Lengths {
  std::string source;  ///< as for make_workload()
  double duration_s = 60;
  double ttft_s = 5;
  double tbt_s = 0.1;
};

/// Engines that take turns on one device.
struct Machine {
  std::vector<std::string> profiles;  ///< one for each engine
  /// There is an engine for each class of goals, instead of all classes in each engine: the first
  /// has the requests that no part of the classes takes, the next those of the first part, the last
  /// all that are left.
  bool apart = false;
};

/// A share of the requests, whose goals are those of the lengths times these factors.
struct ClassPart {
  double share = 0;
  double ttft = 1;
  double tbt = 1;
};

/// The classes of goals: these parts, and the rest of the requests, which has the goals of the
/// lengths.
struct Classes {
  std::string name;
  std::vector<ClassPart> parts;
};

/// One point of the grid.
struct Cell {
  std::string id;                     ///< "c017"
  std::vector<std::string> profiles;  ///< one for each engine; they take turns on one device
  Lengths lengths;
  Classes classes;
  double cv = 1;           ///< variation of the gaps between arrivals
  std::string max_tokens;  ///< what requests announce
  double load = 1;         ///< as a multiple of the knee
  double hbm = 1;          ///< as a multiple of the first profile's HBM: below 1 memory is short
  double dram = 1;         ///< as a multiple of HBM
  bool apart = false;      ///< Machine::apart
  /// Engines place their own blocks (Setting::engines_place). No axis sets this.
  bool engines_place = false;
};

/// The share of the requests that no part takes; 0 to 1.
[[nodiscard]] double rest_of(const Classes& classes);

/// "gen:azure on gh200-qwen2.5-32b, cv 4, ...".
[[nodiscard]] std::string text_of(const Cell& cell);
/// The part of the cell that the knee depends on.
[[nodiscard]] std::string knee_name(const Cell& cell);

/// Every value of each axis, and how many cells are drawn from them.
struct Axes {
  std::uint64_t seed = 0;
  std::size_t cells = 0;
  std::string ids = "c";  ///< first letters of the cells' names
  /// Each class of goals is judged by itself (class_verdict.hpp), not only all requests together.
  bool by_class = false;
  std::vector<Machine> machines;
  std::vector<Lengths> lengths;
  std::vector<Classes> classes;
  std::vector<double> cv, load, hbm, dram;
  std::vector<std::string> max_tokens;
  std::string digest;  ///< of the text: results of other axes do not count as results of these
};

/// The axes that kvd-lab brings, as JSON: of machines under load, and of classes of goals.
[[nodiscard]] std::string_view committed_axes();
[[nodiscard]] std::string_view committed_goals();

/// Errors: InvalidArgument naming the key that is missing, empty or out of range.
[[nodiscard]] Result<Axes> read_axes(std::string_view text);

/// Each axis is dealt by itself: all its values equally often, in an order that follows from the
/// seed. So a cell is as likely to get any value of one axis, whatever it has of another.
[[nodiscard]] std::vector<Cell> cells_of(const Axes& axes);

}  // namespace kvd::sim::grid
