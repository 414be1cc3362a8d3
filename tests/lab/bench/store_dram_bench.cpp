#include "tests/lab/bench/store_dram_bench.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/clock.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd_client/client.hpp"
#include "tests/support/daemon_process.hpp"

namespace kvd::bench {
namespace {

constexpr std::uint32_t kDramBlocks = 32;
constexpr std::uint64_t kDramBlock = 2 << 20;
constexpr std::chrono::seconds kDramPatience{30};

[[noreturn]] void end_with(const std::string& why) {
  std::fprintf(stderr, "kvd-bench store: dram_load: %s\n", why.c_str());
  std::exit(1);
}

template <class T>
T value_of(kvd_client::Result<T> result) {
  if (!result.ok()) end_with(result.error().message);
  return std::move(*result);
}

void expect_ok(const kvd_client::Status& status) {
  if (!status.ok()) end_with(status.error().message);
}

/// An engine that places its own blocks, on a kvd whose DRAM has all of them.
class DramLoads {
 public:
  DramLoads() : daemon_(folder_, settings()) {
    if (!daemon_.wait_ready()) end_with("kvd does not start\n" + daemon_.log());
    kvd_client::Options options;
    options.endpoint = daemon_.endpoint();
    options.engine_name = "dram_load";
    client_.emplace(value_of(kvd_client::Client::open(options)));
    region_ = value_of(client_->allocate_region(kDramBlocks * kDramBlock, kDramPatience));
    cache_ = value_of(client_->caches().open(
        {"kvd-bench", 16, kDramBlock, region_.id, kDramBlocks, {{0, kDramBlock, kDramBlock}}},
        kDramPatience));
    std::iota(blocks_.begin(), blocks_.end(), 0u);
    for (std::uint32_t i = 0; i < kDramBlocks; ++i) std::memcpy(digests_[i].data(), &i, sizeof i);
    std::iota(words(source_.data()), words(source_.data()) + kWords, std::uint64_t{1});
    copy();
    copied([&](std::uint64_t& ticket) {
      return client_->caches().store(cache_, digests_, blocks_, true, kDramPatience, ticket);
    });
  }

  /// Loads all of them out of kvd's DRAM, and waits until their ticket is done.
  void load() {
    copied([&](std::uint64_t& ticket) {
      return client_->caches().load(cache_, digests_, blocks_, kDramPatience, ticket);
    });
  }
  /// Copies the same bytes by this thread's memcpy.
  void copy() { std::memcpy(region_.address, source_.data(), source_.size()); }
  void clear() { std::memset(region_.address, 0, source_.size()); }
  void check() const {
    if (std::memcmp(region_.address, source_.data(), source_.size()) != 0) end_with("a wrong byte");
  }

 private:
  static constexpr std::size_t kWords = kDramBlocks * kDramBlock / sizeof(std::uint64_t);

  static test::KvdSettings settings() { return {.hbm = "64MiB", .dram = "128MiB"}; }
  static std::uint64_t* words(std::byte* bytes) { return reinterpret_cast<std::uint64_t*>(bytes); }
  template <class Ask>
  void copied(Ask ask) {
    std::uint64_t ticket = 0;
    expect_ok(ask(ticket));
    expect_ok(client_->caches().wait({&ticket, 1}, kDramPatience));
    if (client_->caches().poll({&ticket, 1})[0] != kvd_client::TicketState::kDone)
      end_with("a copy failed");
  }

  const test::RuntimeFolder folder_;
  test::KvdProcess daemon_;
  std::optional<kvd_client::Client> client_;
  kvd_client::Region region_;
  std::uint64_t cache_ = 0;
  std::vector<std::uint32_t> blocks_ = std::vector<std::uint32_t>(kDramBlocks);
  std::vector<kvd_client::Digest> digests_ = std::vector<kvd_client::Digest>(kDramBlocks);
  std::vector<std::byte> source_ = std::vector<std::byte>(kDramBlocks * kDramBlock);
};

}  // namespace

Row dram_load_row(const Arguments& arguments) {
  const double repetitions = arguments.number("--dram-repetitions", 25);
  if (repetitions < 1 || repetitions > 1e6) end_with("--dram-repetitions is 1 to 1000000");
  DramLoads engine;
  const SteadyClock clock;
  const auto rate = [&](auto work) {
    return [&, work] {
      engine.clear();
      const TimePoint start = clock.now();
      work();
      const double took = to_seconds(clock.now() - start);
      engine.check();
      return kDramBlocks * kDramBlock / took / 1e9;
    };
  };
  return interleaved("dram_load", "GB/s", static_cast<int>(repetitions),
                     rate([&] { engine.load(); }), rate([&] { engine.copy(); }));
}

}  // namespace kvd::bench
