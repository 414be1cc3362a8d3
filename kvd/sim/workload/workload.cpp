#include <algorithm>
#include <cmath>
#include <cstdio>

#include "kvd/sim/run/inputs.hpp"
#include "kvd/sim/workload/announce.hpp"
#include "kvd/sim/workload/generators.hpp"
#include "kvd/sim/workload/merge.hpp"
#include "kvd/sim/workload/trace.hpp"

namespace kvd::sim {
namespace {

Error invalid(const std::string& message) {
  return make_error(ErrorCode::kInvalidArgument, message);
}

/// Stretches the times so that the requests come at `rate`.
Status stretch(Workload& requests, double rate) {
  if (!(rate > 0) || !std::isfinite(rate)) {
    return invalid("the request rate must be above 0 requests a second; use --rate");
  }
  const double lasted = requests.back().time.count();
  if (lasted <= 0)
    return invalid("all requests of the trace come at once: it has no rate to change");
  const double factor = static_cast<double>(requests.size() - 1) / lasted / rate;
  for (Arrival& arrival : requests) arrival.time *= factor;
  return {};
}

Result<Workload> shaped(Workload requests, const WorkloadOptions& options) {
  if (options.cv) return invalid("a trace has its own arrivals: --cv is for gen:NAME");
  if (options.rate) KVD_TRY(stretch(requests, *options.rate));
  if (options.duration) {
    if (!(options.duration->count() > 0))
      return invalid("the duration of arrivals must be above 0 s");
    const auto late = [&](const Arrival& arrival) { return arrival.time > *options.duration; };
    requests.erase(std::find_if(requests.begin(), requests.end(), late), requests.end());
  }
  if (options.requests) {
    if (*options.requests == 0) return invalid("the number of requests must be at least 1");
    requests.resize(std::min(requests.size(), *options.requests));
  }
  return requests;
}

Result<Workload> requests_of(std::string_view source, const WorkloadOptions& options) {
  constexpr std::string_view kGenerated = "gen:";
  if (source.starts_with(kGenerated)) {
    KVD_ASSIGN_OR_RETURN(const Generator generator,
                         generator_named(source.substr(kGenerated.size())));
    return generate(generator, options);
  }
  KVD_ASSIGN_OR_RETURN(Trace trace, read_trace_file(source, options.seed));
  if (!trace.malformed.empty()) {
    std::fprintf(stderr, "kvd-sim: %s: %s\n", std::string(source).c_str(),
                 trace.complaint().c_str());
  }
  return shaped(std::move(trace.requests), options);
}

}  // namespace

Result<Workload> make_workload(std::string_view source, const WorkloadOptions& options) {
  KVD_ASSIGN_OR_RETURN(Workload requests, requests_of(source, options));
  KVD_TRY(announce_lengths(requests, options.max_tokens, options.seed, {&options.context, 1}));
  return requests;
}

std::vector<NamedText> workload_names() {
  std::vector<NamedText> names;
  for (const Generator& generator : generators()) {
    names.push_back({"gen:" + generator.name, generator.description});
  }
  names.push_back({"gen:fixed-PROMPT-OUTPUT", "every request alike"});
  return names;
}

Workload merged(const std::vector<EngineWorkload>& parts) {
  Workload all;
  for (std::uint32_t engine = 0; engine < parts.size(); ++engine) {
    for (Arrival arrival : parts[engine].requests) {
      arrival.engine = engine;
      if (parts[engine].ttft_slo) arrival.ttft_slo = parts[engine].ttft_slo;
      if (parts[engine].tbt_slo) arrival.tbt_slo = parts[engine].tbt_slo;
      if (parts[engine].tpot_slo) arrival.tpot_slo = parts[engine].tpot_slo;
      all.push_back(std::move(arrival));
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Arrival& a, const Arrival& b) { return a.time < b.time; });
  return all;
}

}  // namespace kvd::sim
