#include "kvd/core/cache/retaining.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "ipc/vocabulary/human.hpp"

namespace kvd::core {

namespace {

/// The most blocks that one tick lets go: the control thread has others to serve.
constexpr std::size_t kMostLetGo = 2048;

}  // namespace

std::uint64_t Retaining::retain(const store::KeySpace& space, const CacheBlocks& asked) {
  const Config::Retain& bounds = context_.config.retain;
  const pool::TierPool& dram = store_.dram;
  const Bytes may_have = dram.config().slab_bytes * std::int64_t{dram.most_slabs(space.domain)};
  const auto most = static_cast<std::int64_t>(bounds.share * static_cast<double>(may_have.value));
  const Nanoseconds time = std::min(asked.retain, bounds.most);
  const TimePoint until = time.count() > 0 ? context_.now + time : TimePoint(0);
  return rows_.retain(space, asked.digests, until, Bytes(most));
}

void Retaining::let_go_due() {
  rows_.let_go_due(context_.now, kMostLetGo);
  const std::uint64_t evicted = store::retained(store_.cache).evicted;
  const std::uint64_t fresh = evicted - std::exchange(told_, evicted);
  if (fresh == 0) return;
  context_.note(Note::Level::kWarning, EngineId(),
                human_size(Bytes(static_cast<std::int64_t>(fresh))) +
                    " of retained blocks made way, as nothing else was left to: enlarge "
                    "pool.dram, or make cache.retain_share smaller");
}

}  // namespace kvd::core
