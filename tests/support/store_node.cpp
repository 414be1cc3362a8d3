#include "tests/support/store_node.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>

#include "ipc/vocabulary/clock.hpp"
#include "tests/support/patience.hpp"

namespace kvd::bench {
namespace {

constexpr std::chrono::seconds kStoreNodePatience{30};

std::vector<std::uint32_t> prompt_of(std::uint32_t number, std::uint64_t tokens) {
  std::vector<std::uint32_t> made(tokens);
  std::iota(made.begin(), made.end(), number * 1'000'003);
  return made;
}

}  // namespace

StoreNode::StoreNode(test::KvdSettings settings, Gpu gpu)
    : settings_(std::move(settings)), gpu_(std::move(gpu)) {
  settings_.extra +=
      "[placement]\npolicy = 'none'\n[admission]\npolicy = 'none'\n[load]\npolicy = 'always'\n";
  start();
  if (!daemon_->wait_ready()) give_up("kvd does not start");
  attach(daemon_->endpoint());
}

void StoreNode::attach(const std::string& endpoint) {
  kvd_client::Options options;
  options.endpoint = endpoint;
  options.engine_name = "store";
  options.shape = kShape;
  options.model = "kvd-bench";
  options.memory = gpu_.read ? kvd_client::kCudaMemory : kvd_client::kHostMemory;
  auto client = kvd_client::Client::open(options);
  if (!client.ok()) give_up(client.error().message);
  client_.emplace(std::move(*client));
}

void StoreNode::give_up(const std::string& why, int status) const {
  std::fprintf(stderr, "kvd-bench store: %s\n%s\n", why.c_str(),
               daemon_ ? daemon_->log().c_str() : "");
  std::exit(status);
}

void StoreNode::start() {
  if (!folder_) folder_.emplace();
  daemon_.emplace(*folder_, settings_);
}

void StoreNode::kill() {
  daemon_->signal(SIGKILL);
  (void)daemon_->wait();
}

void StoreNode::replace_held(End end) {
  const pid_t holder = daemon_->pid(), kvd = test::child_of(holder);
  if (kvd <= 0) give_up("kvd-holder has no kvd");
  end == End::kUpgraded ? ::kill(holder, SIGUSR1) : ::kill(kvd, SIGKILL);
  const bool there = test::poll_until([&] {
    const pid_t next = test::child_of(holder);
    return next > 0 && next != kvd;
  });
  if (!there) give_up("kvd-holder does not start kvd again");
}

// Asks until the new kvd listens, and once more for the requests that were lost with the old one.
void StoreNode::attach_again() {
  const SteadyClock clock;
  const TimePoint until = clock.now() + kStoreNodePatience;
  const auto lost = [&] { return !client_->step({}, 0, 0, kStoreNodePatience).ok(); };
  while (lost()) {
    if (clock.now() > until) give_up("the client does not attach again");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  reports_.clear();
  iteration_ = 0;
}

kvd_client::RunEntry StoreNode::granted(std::uint64_t request) {
  const SteadyClock clock;
  const TimePoint until = clock.now() + kStoreNodePatience;
  while (clock.now() < until) {
    auto step = client_->step(reports_, iteration_, 0, kStoreNodePatience);
    if (!step.ok()) give_up(step.error().message);
    reports_.clear();
    iteration_ = step->iteration;
    for (const kvd_client::RunEntry& entry : step->run) {
      if (entry.request == request) return entry;
    }
    (void)client_->wait_for_room(std::chrono::milliseconds(1));
  }
  give_up("a request is not let in");
}

void StoreNode::fill_or_check(const kvd_client::RunEntry& entry, std::uint32_t prompt) {
  if (entry.ticket != 0 && !client_->wait(entry.ticket, kStoreNodePatience).ok()) {
    give_up("what was found does not come");
  }
  const std::uint64_t end = entry.tokens_present + entry.tokens;
  std::vector<std::byte*> blocks((end + kBlockTokens - 1) / kBlockTokens);
  if (!client_->block_addresses(entry.row, 0, blocks).ok()) give_up("blocks have no address");
  constexpr std::size_t kTokenBytes = kShape.layers * kShape.bytes_per_token_per_layer;
  for (std::uint64_t token = 0; token < end; ++token) {
    std::byte* at = blocks[token / kBlockTokens] + token % kBlockTokens * kTokenBytes;
    std::array<std::uint64_t, kTokenBytes / 8> right;
    std::iota(right.begin(), right.end(), (std::uint64_t{prompt} << 32 | token) * 1024);
    const bool made = token >= entry.tokens_present;
    std::array<std::byte, kTokenBytes> got;
    if (gpu_.read) {
      if (made) gpu_.write(at, std::as_bytes(std::span(right)));
      gpu_.read(got, at);
    } else if (made) {
      std::memcpy(at, right.data(), kTokenBytes);
    }
    if (std::memcmp(gpu_.read ? got.data() : at, right.data(), kTokenBytes) != 0) {
      give_up("a block that was found is wrong", kWrongByte);
    }
  }
}

std::uint64_t StoreNode::run(std::uint32_t prompt, std::uint64_t tokens) {
  const std::vector<std::uint32_t> ids = prompt_of(prompt, tokens);
  kvd_client::Request request{++last_request_, tokens, 1};
  request.content.tokens = ids;
  if (const auto sent = client_->submit(request, kStoreNodePatience); !sent.ok()) {
    give_up(sent.error().message);
  }
  std::optional<std::uint64_t> found;
  for (std::uint64_t done = 0; done < tokens;) {
    const kvd_client::RunEntry entry = granted(request.id);
    if (!found) found = entry.tokens_present;
    fill_or_check(entry, prompt);
    done = entry.tokens_present + entry.tokens;
    reports_.push_back({request.id, done, done >= tokens});
  }
  const auto end = client_->step(std::exchange(reports_, {}), iteration_, 0, kStoreNodePatience);
  if (!end.ok()) give_up(end.error().message);
  iteration_ = end->iteration;
  return *found;
}

}  // namespace kvd::bench
