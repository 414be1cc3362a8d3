#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"
#include "tests/lab/report/page.hpp"

namespace kvd::sim {

class Lab;

enum class Agreement { kSame, kDiffers, kNotSimulated };
[[nodiscard]] const char* name(Agreement agreement);

/// A statement of a paper, beside the result here. `why` is written by hand, and only where the
/// cause was looked for and found.
struct Finding {
  std::string paper;
  std::string ours;
  Agreement agreement = Agreement::kSame;
  std::string why = {};
};

/// A figure of a paper as kvd-sim makes it.
struct Figure {
  std::string id;
  std::string title;
  std::vector<std::string> notes;
  std::vector<Finding> findings;
  std::vector<TextTable> tables;
  std::vector<Chart> charts;
  nlohmann::ordered_json data;  ///< what --json prints
  bool beyond = false;          ///< from no paper: the findings answer questions of this project
};

/// A figure by name, and how to make it.
struct FigureMaker {
  const char* id;
  const char* part;   ///< heading under which a report shows it
  const char* title;  ///< with the figure's number in its paper
  Result<Figure> (*make)(Lab& lab);
};

/// Every figure, in the order of the report.
[[nodiscard]] const std::vector<FigureMaker>& figure_makers();

/// Agreement for a claim that held, or did not.
[[nodiscard]] inline Agreement agreement(bool holds) {
  return holds ? Agreement::kSame : Agreement::kDiffers;
}

}  // namespace kvd::sim
