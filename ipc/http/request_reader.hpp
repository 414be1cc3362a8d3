#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/vocabulary/units.hpp"

namespace kvd::http {

struct Header {
  std::string name;  ///< in lower case
  std::string value;
};

/// A request that is sound and complete.
struct Request {
  std::string method;
  bool old = false;    ///< HTTP/1.0, whose clients know no chunks
  std::string target;  ///< path and query as sent, begins with '/'
  std::vector<Header> headers;
  std::string body;

  /// The value of a header, by its name in lower case; "" where it is absent.
  [[nodiscard]] const std::string& header(std::string_view name) const;
};

/// Why a request is not served.
struct Refusal {
  int status = 400;
  std::string message;  ///< names the remedy
};

/// Reads one request of HTTP/1.1 or 1.0 from bytes as they come, with little patience: a request
/// line and headers of plain ASCII, a body of announced length, no chunks, no folded or repeated
/// headers. It also refuses what a web page of another site can make a browser send: a foreign Host
/// or Origin, and a body that does not call itself JSON. Only HTTP/1.0, which no browser sends, may
/// leave out the Host. Source: RFC 9112, read as strictly as it allows.
/// Owner:  one thread.
class RequestReader {
 public:
  struct Limits {
    Bytes header = 16 * kKiB;
    Bytes body = 64 * kKiB;
  };
  enum class State : std::uint8_t { kHeader, kBody, kComplete, kRefused };

  explicit RequestReader(Limits limits) : limits_(limits) {}

  /// Takes the next bytes; what follows a complete request is passed over.
  State feed(std::string_view bytes);
  [[nodiscard]] State state() const { return state_; }
  /// The client waits for leave to send its body ("Expect: 100-continue").
  [[nodiscard]] bool waits_for_leave() const;
  /// Whether the answer has no body, also one that refuses.
  [[nodiscard]] bool wants_head_only() const { return request_.method == "HEAD"; }
  /// Precondition: state() is kComplete.
  [[nodiscard]] Request take() { return std::move(request_); }
  /// Precondition: state() is kRefused.
  [[nodiscard]] const Refusal& refusal() const { return refusal_; }

 private:
  State refuse(int status, std::string message);
  State read_header(std::size_t end);
  State check_header();
  State take_body(std::string_view bytes);

  const Limits limits_;
  State state_ = State::kHeader;
  std::string text_;  ///< text of the header, until it is complete
  std::size_t body_size_ = 0;
  Request request_;
  Refusal refusal_;
};

}  // namespace kvd::http
