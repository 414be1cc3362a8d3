#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client_lib/events/kv_events.hpp"
#include "ipc/vocabulary/result.hpp"

namespace kvd::events {

/// Publishes KV events as vLLM's ZmqEventPublisher does: a socket that is read as its PUB is, and
/// hears who comes (XPUB). Messages are a topic, a number of eight bytes and a batch. A ROUTER
/// socket answers who has missed some.
///
/// Consumers have no use for a publisher whose numbers go back, not even when it starts anew. So
/// they begin at 16 for each second since 1970, and a publisher may have 16 batches a second.
///
/// A replay tells what is there instead of what happened: the first batch that was asked for is
/// all there is, and those after it are empty. Of these at most as many are sent as vLLM keeps.
/// Some consumers take no replay with a gap, so whoever comes is told all there is in a batch.
///
/// Owner: one thread. Errors: of open(), InvalidArgument for an address that others than this
/// machine's programs reach, Unavailable for one that is taken.
class Publisher {
 public:
  struct Config {
    std::string endpoint;  ///< "tcp://127.0.0.1:PORT" or "ipc://PATH"
    std::string replay;    ///< likewise; empty: nobody can ask
    std::string topic;
  };
  [[nodiscard]] static Result<Publisher> open(Config config);
  Publisher(Publisher&&) noexcept;
  Publisher& operator=(Publisher&&) = delete;
  ~Publisher();

  /// Never waits: who does not read loses batches, and asks for them.
  void publish(const std::vector<KvEvent>& events);
  /// Answers consumers' questions for this long. `all` is the whole content, as published so far.
  /// True: somebody has come who needs the whole content in the next batch.
  [[nodiscard]] bool serve(std::chrono::milliseconds patience,
                           const std::function<std::vector<KvEvent>()>& all);

 private:
  struct Sockets;
  Publisher(Config config, std::unique_ptr<Sockets> sockets, std::uint64_t next);
  void answer(const std::function<std::vector<KvEvent>()>& all);
  void replay(const std::string& asker, std::uint64_t from, const std::vector<KvEvent>& all);

  Config config_;
  std::unique_ptr<Sockets> sockets_;
  std::uint64_t next_;
};

}  // namespace kvd::events
