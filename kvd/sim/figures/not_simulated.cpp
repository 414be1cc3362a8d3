#include "kvd/sim/figures/makers.hpp"

/// Figures for which kvd-sim has no way yet, each with what is in the way.
namespace kvd::sim::figures {
namespace {

Figure without(std::vector<std::string> claims, const std::string& reason) {
  Figure figure;
  for (std::string& claim : claims) {
    figure.findings.push_back({std::move(claim), "", Agreement::kNotSimulated, reason});
  }
  figure.data = {{"not_simulated", reason}};
  return figure;
}

}  // namespace

Result<Figure> of_fig13(Lab&) {
  return without({"SRTF lowers mean and P95 TTFT of OrbitFlow by 40 and 24 %",
                  "SRTF lowers TPOT attainment by 4.8 %, throughput by 8 %"},
                 "the engine gives its four seats in order of arrival, before kvd sees a request: "
                 "srtf has nobody to choose from");
}

Result<Figure> of_fig14c(Lab&) {
  return without({"pausing the longest request beats the shortest and a random one"},
                 "kvd pauses the request with the most blocks and deposit; no other victim can be "
                 "chosen to compare with");
}

}  // namespace kvd::sim::figures
