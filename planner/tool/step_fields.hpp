#pragma once

#include "planner/model/latency.hpp"
#include "planner/tool/fields.hpp"

namespace kvd::planner {

/// Reads layers, compute_s, link_blocks_per_s and transfer_s, which latency and place share.
[[nodiscard]] StepModel read_step_model(Fields& fields);
/// The elements of an array of layers, ascending. It is a fault if an element is no layer or is
/// named twice.
[[nodiscard]] std::vector<std::int32_t> read_layers(Fields& fields, const char* key,
                                                    std::size_t layers);
/// A request's id, which must be distinct among `seen`.
[[nodiscard]] std::string read_id(Fields& fields, std::set<std::string>& seen);
[[nodiscard]] std::vector<double> in_seconds(const std::vector<Seconds>& times);

}  // namespace kvd::planner
