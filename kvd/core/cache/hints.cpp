#include "kvd/core/cache/hints.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "ipc/vocabulary/human.hpp"

namespace kvd::core {

namespace {

/// The most blocks that one tick lets go: the control thread has others to serve.
constexpr std::size_t kMostLetGo = 2048;
/// Blocks of prefetches that are read at once: a load that comes now is behind so many.
constexpr std::size_t kMostAtATime = 16;
/// Blocks that prefetches of one engine may still have to look at.
constexpr std::size_t kMostAwaited = 16384;
/// Prefetches that one event looks at.
constexpr std::size_t kMostLookedAt = 4;
/// Nobody computes what is prefetched, so no read of it is too slow but for the disk's own bound.
constexpr double kPrefetchS = 60;

DiskCache::Asked patient(DiskCache::Asked by, std::span<const Digest> chain) {
  by.chain = chain;
  by.taker.spares_retained = true;
  const auto tokens = static_cast<double>(std::max<std::size_t>(1, chain.size()) * by.block_tokens);
  by.prefill_token = planner::Seconds(kPrefetchS / tokens);
  return by;
}

/// Under load.policy `never` nothing below DRAM is worth a wait, however long.
bool reads_anything(const planner::LoadPolicy& policy) {
  planner::LoadCosts costs;
  costs.tokens = Tokens(1);
  costs.prefill_per_token = planner::Seconds(1);
  return policy.patience(costs) > planner::Seconds(0);
}

std::vector<Digest> once_each(std::span<const Digest> digests) {
  std::set<Digest> seen;
  std::vector<Digest> all;
  for (const Digest& digest : digests) {
    if (seen.insert(digest).second) all.push_back(digest);
  }
  return all;
}

}  // namespace

Bytes Hints::most(DomainId domain) const {
  const pool::TierPool& dram = store_.dram;
  const Bytes may_have = dram.config().slab_bytes * std::int64_t{dram.most_slabs(domain)};
  const double share = context_.config.retain.share * static_cast<double>(may_have.value);
  return Bytes(static_cast<std::int64_t>(share));
}

void Hints::retain(const Command& command, const store::KeySpace& space, const CacheBlocks& asked) {
  seen_[space.domain] = context_.now;
  const TimePoint end = asked.retain.count() > 0 ? until(asked.retain) : TimePoint(0);
  if (end == TimePoint(0)) end_prefetch(command.engine, space, asked);
  context_.reply(command, ValueReply{rows_.retain(space, asked.digests, end, most(space.domain))});
}

void Hints::pin(const Command& command, const store::KeySpace& space, const CacheBlocks& asked) {
  const Bytes all = rows_.retained_with(space, asked.digests), most = this->most(space.domain);
  if (all > most) {
    return context_.refuse(command, ErrorCode::kQuotaExceeded,
                           human_size(all) + " of the domain's blocks would be retained, of " +
                               human_size(most) + ": let some go, or raise cache.retain_share");
  }
  seen_[space.domain] = context_.now;
  context_.reply(command, ValueReply{rows_.retain(space, asked.digests, TimePoint::max(), most)});
}

void Hints::unpin(const Command& command, const store::KeySpace& space, const CacheBlocks& asked) {
  end_prefetch(command.engine, space, asked);
  context_.reply(command, ValueReply{rows_.unpin(space, asked.digests)});
}

// What the disk's rule asks for counts as fulfilled: the engine knows better than the rule.
void Hints::demote(const Command& command, const store::KeySpace& space, const CacheBlocks& asked) {
  end_prefetch(command.engine, space, asked);
  const std::uint32_t least =
      std::min(context_.config.disk.admission.least, std::uint32_t{UINT16_MAX});
  context_.reply(command,
                 ValueReply{rows_.demote(space, asked.digests, static_cast<std::uint16_t>(least))});
}

// ---- prefetching --------------------------------------------------------------------------------

std::size_t Hints::waiting(EngineId engine) const {
  std::size_t sum = 0;
  for (const Prefetch& each : waiting_) sum += each.engine == engine ? each.rest().size() : 0;
  return sum + (reading_ && reading_->engine == engine ? reading_->rest().size() : 0);
}

void Hints::prefetch(const Command& command, const DiskCache::Asked& of, Nanoseconds retain) {
  const store::KeySpace& space = of.space;
  const std::vector<Digest> all = once_each(of.chain);
  std::span<const Digest> chain = all;
  const bool is_read = reads_anything(*context_.load);
  std::size_t known = rows_.leading(space, chain), below = 0;
  while (is_read && known < chain.size()) {
    const std::size_t more = disk_.leading(space, chain.subspan(known)).blocks;
    if (more == 0) break;
    known += more;
    below += more;
    known += rows_.leading(space, chain.subspan(known));
  }
  const bool awaits =
      is_read && known < chain.size() && disk_.awaits_answer(patient(of, chain), known);
  if (!awaits) chain = chain.first(known);
  if (waiting(command.engine) + chain.size() > kMostAwaited) {
    return context_.refuse(command, ErrorCode::kWouldBlock,
                           "16384 blocks of this session wait to be prefetched: ask again when "
                           "some of them have come");
  }
  const Bytes left = most(space.domain) - rows_.retained_with(space, chain);
  const auto room = std::max(std::int64_t{0}, left.value / of.taker.slot_bytes.value);
  if (left < Bytes(0) || (below > 0 && room == 0)) {
    return context_.refuse(command, ErrorCode::kQuotaExceeded,
                           "what is prefetched is retained, and the domain retains what it may: "
                           "let some go, or raise cache.retain_share");
  }
  seen_[space.domain] = context_.now;
  rows_.retain_more(space, chain, until(retain));
  if (below > 0 || awaits) {
    Prefetch next{command.engine, of, {chain.begin(), chain.end()}};
    next.by.chain = {};
    next.until = until(retain);
    waiting_.push_back(std::move(next));
  }
  context_.reply(command, ValueReply{std::min(below, static_cast<std::size_t>(room))});
}

void Hints::go_on() {
  std::size_t tries = std::min(kMostLookedAt, waiting_.size());
  for (; tries > 0 && !reading_ && !reads(disk_); --tries) {
    Prefetch next = std::move(waiting_.front());
    waiting_.pop_front();
    if (!read(next)) continue;
    if (next.coming > 0) {
      reading_ = std::move(next);
    } else {
      waiting_.push_back(std::move(next));
    }
  }
}

bool Hints::read(Prefetch& next) {
  const store::KeySpace& space = next.by.space;
  if (next.until <= context_.now) return false;
  // Others may have brought some meanwhile.
  const std::span<const Digest> here = next.rest().first(rows_.leading(space, next.rest()));
  const Bytes left = most(space.domain) - rows_.retained_with(space, here);
  if (left < Bytes(0)) return false;
  rows_.retain_more(space, here, next.until);
  next.done += here.size();
  const auto room = std::max(std::int64_t{0}, left.value / next.by.taker.slot_bytes.value);
  const std::size_t most = std::min(kMostAtATime, static_cast<std::size_t>(room));
  std::size_t count = 0;
  while (count < std::min(most, next.rest().size()) && !rows_.row(space, next.rest()[count])) {
    ++count;
  }
  if (count == 0) return false;
  const DiskCache::Asked asked = patient(next.by, next.rest().first(count));
  DiskCache::Coming coming = disk_.bring(asked);
  if (coming.code == ErrorCode::kNotFound) return disk_.awaits_answer(asked, 0);
  if (coming.code != ErrorCode::kOk) return coming.code == ErrorCode::kWouldBlock;
  next.coming = coming.blocks;
  runs_ = std::move(coming.runs);
  return true;
}

// A block that did not come ends the prefetch: nothing finds those behind it.
void Hints::on_read(std::span<const std::uint64_t> ended) {
  for (const std::uint64_t run : ended) runs_.erase(run);
  if (!reading_ || !runs_.empty()) return;
  Prefetch read = std::move(*std::exchange(reading_, std::nullopt));
  const std::span<const Digest> asked = read.rest().first(std::exchange(read.coming, 0));
  const std::span<const Digest> came = asked.first(rows_.leading(read.by.space, asked));
  if (rows_.retained_with(read.by.space, came) <= most(read.by.space.domain)) {
    rows_.retain_more(read.by.space, came, read.until);
  }
  prefetched_ += came.size() * static_cast<std::uint64_t>(read.by.taker.slot_bytes.value);
  read.done += came.size();
  if (came.size() == asked.size() && !read.rest().empty()) waiting_.push_back(std::move(read));
}

// What is being read comes to DRAM all the same.
template <class Ends>
void Hints::end_those(Ends ends) {
  std::erase_if(waiting_, ends);
  if (!reading_ || !ends(*reading_)) return;
  reading_.reset();
  runs_.clear();
}

void Hints::end(EngineId engine) {
  end_those([engine](const Prefetch& each) { return each.engine == engine; });
}

void Hints::end_prefetch(EngineId engine, const store::KeySpace& space, const CacheBlocks& asked) {
  if (asked.digests.empty()) return;
  end_those([&](const Prefetch& each) {
    return each.engine == engine && each.by.space == space &&
           each.digests.front() == asked.digests.front();
  });
}

// ---- what is over -------------------------------------------------------------------------------

// Pinned blocks have no time, and would outlive all who know of them.
void Hints::let_go_due() {
  for (const auto& [id, session] : requests_.sessions()) seen_[session.info.domain] = context_.now;
  std::erase_if(seen_, [this](const auto& domain) {
    return context_.now - domain.second > context_.config.retain.most;
  });
  const auto time_of = [this](DomainId domain) {
    return seen_.contains(domain) ? context_.now : TimePoint::max();
  };
  rows_.let_go_due(time_of, kMostLetGo);
  const std::uint64_t evicted = store::retained(store_.cache).evicted;
  const std::uint64_t fresh = evicted - std::exchange(told_, evicted);
  if (fresh == 0) return;
  context_.note(Note::Level::kWarning, EngineId(),
                human_size(Bytes(static_cast<std::int64_t>(fresh))) +
                    " of retained blocks made way, as nothing else was left to: enlarge "
                    "pool.dram, or make cache.retain_share smaller");
}

}  // namespace kvd::core
