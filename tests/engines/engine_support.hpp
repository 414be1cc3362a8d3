#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/unique_fd.hpp"
#include "tests/engines/child_process.hpp"

namespace kvd::test {

/// A `kvd-engine` with a small random model on a free port. It uses the kvd at `endpoint` or,
/// without one, its own memory.
class EngineProcess {
 public:
  /// KV of a token: 4 layers of 512 bytes.
  static constexpr std::uint64_t kTokenBytes = 2048;

  inline static const std::string kModel = "layers=4,hidden=128,heads=4,kv_heads=2,ff=192";

  explicit EngineProcess(const std::string& endpoint, const std::vector<std::string>& options = {},
                         const std::string& model = kModel);

  /// Whether it said that it serves.
  [[nodiscard]] bool wait_ready() { return process_.wait_for_line("ready: ").has_value(); }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] pid_t pid() const { return process_.pid(); }
  void signal(int number) const { process_.signal(number); }
  [[nodiscard]] std::optional<int> wait() { return process_.wait(); }
  [[nodiscard]] std::string log() const { return process_.errors(); }
  [[nodiscard]] nlohmann::json health() const;

 private:
  std::uint16_t port_;
  ChildProcess process_;
};

/// What came back of a request, streamed or whole.
struct Generation {
  int status = 0;  ///< 0: nobody answered
  std::vector<std::uint32_t> tokens;
  std::vector<std::string> digests;
  std::string text;
  std::string finish_reason;
  nlohmann::json usage;
  nlohmann::json error;
  bool done = false;  ///< a stream came to its end

  /// Expects the same tokens from logits with the same bits.
  [[nodiscard]] bool same_bits(const Generation& other) const {
    return tokens == other.tokens && digests == other.digests && !tokens.empty();
  }
};

/// A streamed completion that the test reads as it comes.
class Stream {
 public:
  Stream(std::uint16_t port, nlohmann::json body, const std::string& path = "/v1/completions");
  /// Reads until this many tokens have come; false: the stream ended before.
  [[nodiscard]] bool read_tokens(std::size_t count);
  /// Reads until this many comments have come, which say that the stream is idle.
  [[nodiscard]] bool read_comments(std::size_t count);
  [[nodiscard]] const Generation& so_far() const { return out_; }
  /// Reads to the end.
  [[nodiscard]] Generation finish();
  void hang_up() { socket_.reset(); }

 private:
  bool read_more();
  void take_events();

  UniqueFd socket_;
  std::string unread_;
  bool header_read_ = false;
  bool chunked_ = false;
  std::string body_;
  std::string events_;
  std::size_t comments_ = 0;
  Generation out_;
};

/// Sends one request and reads the answer, whatever it is.
[[nodiscard]] Generation post(std::uint16_t port, const std::string& body,
                              const std::string& path = "/v1/completions");
/// The raw answer to a request text.
[[nodiscard]] Generation ask(std::uint16_t port, const std::string& request);

}  // namespace kvd::test
