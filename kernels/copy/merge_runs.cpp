#include "kernels/copy/merge_runs.hpp"

#include <algorithm>

namespace kvd::kernels {
namespace {

bool continues(const CopyExtent& run, const CopyExtent& next) {
  if (run.destination + run.length.size() != next.destination) return false;
  if (run.source == 0 || next.source == 0) return run.source == next.source;
  return run.source + run.length.size() == next.source;
}

}  // namespace

std::vector<CopyExtent> merge_runs(std::vector<CopyExtent> extents) {
  if (extents.empty()) return extents;
  std::sort(extents.begin(), extents.end(),
            [](const CopyExtent& a, const CopyExtent& b) { return a.destination < b.destination; });
  std::size_t last = 0;
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (continues(extents[last], extents[i])) {
      extents[last].length += extents[i].length;
    } else {
      extents[++last] = extents[i];
    }
  }
  extents.resize(last + 1);
  return extents;
}

}  // namespace kvd::kernels
