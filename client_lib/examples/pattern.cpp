#include <cstdio>
#include <utility>

#include "client_lib/examples/block_access.hpp"
#include "client_lib/examples/pattern_engine.hpp"
#include "client_lib/examples/pattern_options.hpp"
#include "ipc/vocabulary/standard_streams.hpp"
#include "kvd_client/client.hpp"

/// kvd-pattern: exit status 0 when all requests ended and every byte read was the byte written, 1
/// otherwise. The last line on stdout is the summary as JSON.
namespace {

void print_summary(const kvd_pattern::Summary& summary) {
  std::printf(
      "{\"requests\":%llu,\"tokens\":%llu,\"iterations\":%llu,\"bytes_checked\":%llu,"
      "\"pattern_errors\":%llu,\"rotations_out\":%llu,\"rotations_in\":%llu,\"streamed\":%llu,"
      "\"restarts\":%llu,\"drained\":%llu,\"seconds\":%.3f}\n",
      static_cast<unsigned long long>(summary.requests),
      static_cast<unsigned long long>(summary.tokens),
      static_cast<unsigned long long>(summary.iterations),
      static_cast<unsigned long long>(summary.bytes_checked),
      static_cast<unsigned long long>(summary.pattern_errors),
      static_cast<unsigned long long>(summary.rotations_out),
      static_cast<unsigned long long>(summary.rotations_in),
      static_cast<unsigned long long>(summary.streamed),
      static_cast<unsigned long long>(summary.restarts),
      static_cast<unsigned long long>(summary.drained), summary.seconds);
}

int explain(const kvd_client::Error& error) {
  std::fprintf(stderr, "kvd-pattern: %s: %s\n", kvd_client::name(error.code).data(),
               error.message.c_str());
  return 1;
}

}  // namespace

namespace {

int run(int argc, char** argv) {
  int status = 0;
  const auto options = kvd_pattern::parse_options(argc, argv, status);
  if (!options) return status;
  kvd_client::Options open;
  open.endpoint = options->endpoint;
  open.engine_name = options->name;
  open.shape = options->shape;
  open.memory = kvd_pattern::usable_memory();
  open.streams_layers = true;
  open.group = options->group;
  open.device = options->device;
  if (options->ring) open.transport = kvd_client::Transport::kRing;
  auto client = kvd_client::Client::open(open);
  if (!client.ok()) return explain(client.error());
  kvd_pattern::PatternEngine engine(std::move(*client), *options);
  const auto run = engine.run();
  print_summary(engine.summary());
  if (!run.ok()) return explain(run.error());
  return engine.summary().pattern_errors == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  kvd::open_standard_descriptors();
  return kvd::status_after_output("kvd-pattern", run(argc, argv));
}
