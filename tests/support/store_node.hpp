#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/units.hpp"
#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"

namespace kvd::bench {

/// A kvd with a cache and an engine of this process on it, which runs one request after the other.
/// Each token's part of a block says which token of which prompt it is, and what was found is
/// looked at byte by byte. Ends the program with the log where something does not work.
class StoreNode {
 public:
  /// A block of 16 tokens is one slot of 16 KiB.
  static constexpr kvd_client::ModelShape kShape{4, 4, 16, 256};
  static constexpr std::uint64_t kBlockTokens = 16;

  /// How blocks are written and read where they are a GPU's; none: this process maps them.
  struct Gpu {
    std::function<void(std::byte* to, std::span<const std::byte> from)> write;
    std::function<void(std::span<std::byte> to, const std::byte* from)> read;
  };

  /// Set beside `settings`, so that the cache alone decides and found blocks are always loaded.
  explicit StoreNode(test::KvdSettings settings, Gpu gpu = {});
  /// One engine, on the kvd that listens there.
  explicit StoreNode(const std::string& endpoint, Gpu gpu = {}) : gpu_(std::move(gpu)) {
    attach(endpoint);
  }

  /// The exit status where a byte is wrong; otherwise it is 1.
  static constexpr int kWrongByte = 9;

  /// Computes what is not found of the prompt with this number. Returns the tokens that were found.
  std::uint64_t run(std::uint32_t prompt, std::uint64_t tokens);
  void kill();
  /// Its kvd runs under kvd-holder. Kills it, or tells it to make way for another program, and
  /// waits for the next kvd.
  enum class End : std::uint8_t { kKilled, kUpgraded };
  void replace_held(End end = End::kKilled);
  /// Starts another kvd on the same folder, which engines may attach to soon.
  void start();
  /// The client attaches again by itself. Its earlier requests are gone.
  void attach_again();

  [[nodiscard]] const test::KvdProcess& daemon() const { return *daemon_; }
  [[nodiscard]] kvd_client::Client& client() { return *client_; }

 private:
  [[noreturn]] void give_up(const std::string& why, int status = 1) const;
  void attach(const std::string& endpoint);
  [[nodiscard]] kvd_client::RunEntry granted(std::uint64_t request);
  void fill_or_check(const kvd_client::RunEntry& entry, std::uint32_t prompt);

  std::optional<test::RuntimeFolder> folder_;  ///< of a kvd that is its own
  test::KvdSettings settings_;
  const Gpu gpu_;
  std::optional<test::KvdProcess> daemon_;
  std::optional<kvd_client::Client> client_;
  std::uint64_t last_request_ = 0, iteration_ = 0;
  std::vector<kvd_client::StepReport> reports_;
};

}  // namespace kvd::bench
