#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvd::bench {

/// A request of an open loop: it is sent at its time, however many others are still open.
struct ServeRequest {
  double at_s = 0;  ///< time since the load began
  std::uint16_t port = 0;
  std::vector<std::uint32_t> prompt = {};
  std::uint64_t new_tokens = 1;
  double ttft_s = 0;  ///< SLOs of the request; 0: none, and tokens come as they are made
  double tbt_s = 0;
};

/// What the client of a request saw.
struct ServeAnswer {
  double sent_s = 0;
  std::vector<double> token_s = {};  ///< when each token reached the client
  bool complete = false;             ///< the stream came to its end
};

/// Sends the requests over /v1/completions (SSE) from one thread, and reads until all have ended or
/// `limit_s` is over. Requests are in order of time.
[[nodiscard]] std::vector<ServeAnswer> serve_load(std::span<const ServeRequest> requests,
                                                  double limit_s);

}  // namespace kvd::bench
