#include "kvd/sim/run/knee.hpp"

#include <cmath>
#include <string>

namespace kvd::sim {
namespace {

constexpr int kMostDoublings = 20;

}  // namespace

Result<Knee> find_knee(const std::function<Result<double>(double rate)>& attainment, double start,
                       double threshold, double precision) {
  if (!(start > 0) || !std::isfinite(start)) {
    return make_error(ErrorCode::kInvalidArgument, "the first rate to try must be above 0");
  }
  Knee knee;
  const auto meets = [&](double rate) -> Result<bool> {
    KVD_ASSIGN_OR_RETURN(const double met, attainment(rate));
    knee.points.push_back({rate, met});
    return met >= threshold;
  };
  KVD_ASSIGN_OR_RETURN(const bool up, meets(start));
  double low = start, high = start;
  bool between = false;
  for (int i = 0; i < kMostDoublings && !between; ++i) {
    const double next = up ? high * 2 : low / 2;
    KVD_ASSIGN_OR_RETURN(const bool met, meets(next));
    between = met != up;
    if (up) {
      low = between ? high : next;
      high = next;
    } else {
      high = between ? low : next;
      low = next;
    }
  }
  if (!between) {
    return make_error(ErrorCode::kNotFound,
                      std::string("the threshold is ") + (up ? "met" : "missed") +
                          " at every rate tried: there is no knee on this workload");
  }
  while (high > low * (1 + precision)) {
    const double middle = std::sqrt(low * high);
    KVD_ASSIGN_OR_RETURN(const bool met, meets(middle));
    (met ? low : high) = middle;
  }
  knee.rate = low;
  return knee;
}

}  // namespace kvd::sim
