#include "kvd/sim/workload/predict.hpp"

#include <algorithm>
#include <cmath>

#include "kvd/sim/workload/random.hpp"

namespace kvd::sim {
namespace {

constexpr double kMostError = 10;
constexpr double kMostTokens = 1e9;

}  // namespace

Status predict_lengths(Workload& workload, double error, std::uint64_t seed) {
  // This form fails for NaN.
  if (!(error >= 0 && error <= kMostError)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the error of predicted lengths must be from 0 to 10");
  }
  Random random(seed ^ 0xd1b54a32d192ed03);
  for (Arrival& arrival : workload) {
    const double factor = std::exp(error * random.normal());
    const double tokens = static_cast<double>(arrival.output.value) * factor;
    arrival.predicted = Tokens(std::llround(std::clamp(tokens, 1.0, kMostTokens)));
  }
  return {};
}

}  // namespace kvd::sim
