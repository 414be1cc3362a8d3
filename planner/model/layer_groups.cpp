#include "planner/model/layer_groups.hpp"

namespace kvd::planner {

StepModel in_groups(const StepModel& model, std::size_t per_group) {
  StepModel groups;
  for (std::size_t l = 0; l < model.layers(); ++l) {
    if (l % per_group == 0) groups.compute.emplace_back(0);
    groups.compute.back() += model.compute[l];
  }
  groups.per_block = model.per_block * static_cast<double>(per_group);
  groups.per_transfer = model.per_transfer;
  return groups;
}

}  // namespace kvd::planner
