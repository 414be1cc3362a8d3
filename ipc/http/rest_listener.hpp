#pragma once

#include <cpprest/http_msg.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "ipc/http/front.hpp"
#include "ipc/vocabulary/result.hpp"

namespace kvd::http {

/// The outcome of the answer to a request that has none yet; it counts what waits for the client.
[[nodiscard]] std::shared_ptr<const Outcome> outcome_of(const web::http::http_request& request);

/// A listener of cpprestsdk to which Front does the listening: that library's own server can be
/// made to throw on its own threads by 60 bytes, and bounds neither headers nor clients nor time.
/// What reaches `handler` is sound and has its body.
/// Owner:  made and destroyed by one thread; the handler runs on the front's and replies through
///         the library. All listeners of a process share the library's threads.
/// Errors: of Front::start; never throws.
class RestListener {
 public:
  using Handler = std::function<void(const web::http::http_request&)>;

  /// `threads`: of the library; the first listener of a process decides.
  [[nodiscard]] static Result<std::unique_ptr<RestListener>> open(Front::Options options,
                                                                  std::size_t threads,
                                                                  const Handler& handler);
  ~RestListener();
  RestListener(const RestListener&) = delete;
  RestListener& operator=(const RestListener&) = delete;

 private:
  struct Impl;
  explicit RestListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvd::http
