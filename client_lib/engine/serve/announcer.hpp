#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "client_lib/engine/model/hyperparameters.hpp"
#include "client_lib/events/publisher.hpp"
#include "client_lib/events/view.hpp"
#include "ipc/digest/block_chain.hpp"
#include "kvd_client/client.hpp"

namespace kvd::engine {

/// Labels the blocks of the engine's requests, and publishes what becomes of them and of those that
/// other engines with the same model label: kvd tells (kvd_client::Caches::changes).
///
/// Blocks are labelled before they are named, so an engine that dies leaves none that others find
/// and no router hears of.
///
/// Owner: begin(), extend() and end() are the scheduler's; each waits for a command of kvd. What
/// has happened is followed by a thread of its own. Errors: none; a kvd that is gone has nothing.
class Announcer {
 public:
  /// `client` outlives it. `model` as in its options.
  Announcer(kvd_client::Client& client, std::string model, std::uint32_t block_tokens,
            events::Publisher publisher);
  ~Announcer();
  Announcer(const Announcer&) = delete;
  Announcer& operator=(const Announcer&) = delete;

  /// A request and its first tokens. A salted one is never labelled: others must not learn of it.
  void begin(std::uint64_t request, std::span<const Token> tokens, std::string_view salt);
  void extend(std::uint64_t request, std::span<const Token> tokens);
  void end(std::uint64_t request) { told_.erase(request); }

 private:
  /// A request's last full block, and the tokens behind it.
  struct Told {
    kvd_client::Digest last{};
    bool is_first = true;  ///< there is no full block yet
    std::vector<Token> rest;
  };
  struct Labels {
    kvd_client::Digest parent{};
    std::vector<kvd_client::Digest> digests;
    std::vector<Token> tokens;
  };

  void run();
  void follow();
  /// Opens the cache where it is not open, and labels what waits. Returns the cache; 0: kvd is
  /// gone.
  std::uint64_t label();
  void open();  ///< under mutex_, as close()
  void close();
  [[nodiscard]] kvd_client::Status hear(std::uint64_t cache);

  kvd_client::Caches caches_;
  const std::string model_;
  const std::uint32_t block_tokens_;
  std::map<std::uint64_t, Told> told_;

  std::mutex mutex_;  ///< guards these two
  std::deque<Labels> waiting_;
  std::uint64_t cache_ = 0;  ///< 0: none is open

  kvd_client::CacheCursor cursor_;
  events::View view_;
  events::Publisher publisher_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;  ///< last: it uses the others
};

}  // namespace kvd::engine
