#include "client_lib/engine/serve/announcer.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvd::engine {
namespace {

using namespace std::chrono_literals;

/// How often kvd is asked what has changed, and a publisher with nothing to say shows that it
/// lives.
constexpr auto kAsk = 100ms;
constexpr auto kIdle = 1s;
constexpr kvd_client::Duration kPatience = 1s;
/// Labels that wait for kvd. Beyond that the oldest are dropped.
constexpr std::size_t kMostWaiting = 4096;
/// What a command labels: kvd takes more, and others wait meanwhile.
constexpr std::size_t kMostBlocks = 512, kMostBytes = 192 << 10;

/// kvd would refuse the same again, for whatever reason, and other announcements wait behind it.
bool is_worth_another_try(kvd_client::ErrorCode code) {
  return code == kvd_client::ErrorCode::kUnavailable ||
         code == kvd_client::ErrorCode::kDeadlineExceeded ||
         code == kvd_client::ErrorCode::kWouldBlock;
}

}  // namespace

Announcer::Announcer(kvd_client::Client& client, std::string model, std::uint32_t block_tokens,
                     events::Publisher publisher)
    : caches_(client.caches()),
      model_(std::move(model)),
      block_tokens_(block_tokens),
      view_(block_tokens),
      publisher_(std::move(publisher)),
      thread_([this] { run(); }) {}

Announcer::~Announcer() {
  stop_ = true;
  thread_.join();
}

// ---- labels ----

void Announcer::begin(std::uint64_t request, std::span<const Token> tokens, std::string_view salt) {
  told_.erase(request);
  if (!salt.empty()) return;
  told_.emplace(request, Told{});
  extend(request, tokens);
}

// Each digest follows from the one before it, so a chain may begin at any digest.
void Announcer::extend(std::uint64_t request, std::span<const Token> tokens) {
  const auto known = told_.find(request);
  if (known == told_.end()) return;
  Told& told = known->second;
  told.rest.insert(told.rest.end(), tokens.begin(), tokens.end());
  const std::size_t size = block_tokens_;
  const std::size_t most =
      std::clamp<std::size_t>(kMostBytes / (sizeof(Digest) + sizeof(Token) * size), 1, kMostBlocks);
  while (told.rest.size() >= size) {
    Labels labels;
    const auto end = told.rest.begin() +
                     static_cast<std::ptrdiff_t>(std::min(told.rest.size() / size, most) * size);
    labels.tokens.assign(told.rest.begin(), end);
    told.rest.erase(told.rest.begin(), end);
    digest::BlockChain hash(told.is_first ? digest::vllm_seed() : Digest{told.last});
    std::vector<Digest> chain;
    if (!hash.extend(labels.tokens, Tokens(block_tokens_), {}, chain).ok()) return;
    labels.parent = std::exchange(told.last, chain.back().bytes);
    told.is_first = false;
    for (const Digest& digest : chain) labels.digests.push_back(digest.bytes);
    const std::lock_guard lock(mutex_);
    if (waiting_.size() == kMostWaiting) waiting_.pop_front();
    waiting_.push_back(std::move(labels));
  }
  (void)label();
}

// A cache goes with its session, and the next one may be there already.
std::uint64_t Announcer::label() {
  const std::lock_guard lock(mutex_);
  for (int sessions = 0; sessions < 2; ++sessions) {
    if (cache_ == 0) open();
    kvd_client::ErrorCode code = kvd_client::ErrorCode::kOk;
    while (cache_ != 0 && !waiting_.empty()) {
      const Labels& next = waiting_.front();
      code = caches_.label(cache_, {next.digests, next.tokens, next.parent, {}}, kPatience).code();
      if (is_worth_another_try(code)) break;
      waiting_.pop_front();
      code = kvd_client::ErrorCode::kOk;
    }
    if (code != kvd_client::ErrorCode::kUnavailable) break;
    close();
  }
  return cache_;
}

void Announcer::open() {
  kvd_client::CacheOptions options;
  options.model = model_;
  options.block_tokens = block_tokens_;
  const auto opened = caches_.open(options, kPatience);
  if (opened.ok()) cache_ = *opened;
}

void Announcer::close() { (void)caches_.close(std::exchange(cache_, 0), kPatience); }

// ---- events ----

void Announcer::run() {
  auto published = std::chrono::steady_clock::now() - kIdle;
  bool any_came = false;
  while (!stop_) {
    follow();
    const auto now = std::chrono::steady_clock::now();
    if (any_came || view_.has_news() || now - published >= kIdle) {
      const auto news = view_.take();
      publisher_.publish(any_came ? view_.all() : news);
      published = now;
    }
    any_came = publisher_.serve(kAsk, [this] { return view_.all(); });
  }
}

void Announcer::follow() {
  const std::uint64_t cache = label();
  const kvd_client::Status heard = hear(cache);
  if (heard.ok() || heard.code() == kvd_client::ErrorCode::kDeadlineExceeded) return;
  cursor_ = {};
  view_.clear();
  const std::lock_guard lock(mutex_);
  if (cache_ != 0) close();
  waiting_.clear();  // requests are submitted anew
}

kvd_client::Status Announcer::hear(std::uint64_t cache) {
  for (bool more = true; more && !stop_;) {
    const auto changes = caches_.changes(cache, cursor_, kPatience);
    if (!changes.ok()) return changes.error();
    view_.hear(*changes);
    cursor_ = changes->next;
    more = changes->more;
  }
  return std::monostate();
}

}  // namespace kvd::engine
