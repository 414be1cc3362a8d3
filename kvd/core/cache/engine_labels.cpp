#include "kvd/core/cache/engine_labels.hpp"

#include <string>
#include <utility>

#include "kvd/core/cache/engine_caches.hpp"

namespace kvd::core {

namespace {

/// The most blocks of one command: the control thread has others to serve.
constexpr std::size_t kMostLabelled = 1024;
/// What fits one reply.
constexpr std::size_t kMostChanges = 1024, kMostTokensTold = 24576;

}  // namespace

void EngineLabels::on_label(const Command& command, const LabelBlocks& told) {
  const EngineCache* cache = cache_of(context_, requests_, command, told.cache);
  if (cache == nullptr) return;
  const std::size_t each = cache->block_tokens;
  if (told.digests.size() > kMostLabelled || each > kMostTokensTold ||
      told.tokens.size() != told.digests.size() * each) {
    return context_.refuse(command, ErrorCode::kInvalidArgument,
                           "labels of more than 1024 blocks, or of more than 24576 tokens a "
                           "block, or not of all their tokens");
  }
  store::Labels& labels = store_.cache.labels();
  std::uint64_t kept = 0;
  Digest parent = told.parent;
  for (const Digest& digest : told.digests) {
    const auto tokens = told.tokens.begin() + static_cast<std::ptrdiff_t>(kept * each);
    const store::TierSet tiers = store::tiers_of(store_.cache, cache->space, digest);
    store::Label label{digest, parent, told.lora, {}};
    label.tokens.assign(tokens, tokens + static_cast<std::ptrdiff_t>(each));
    if (!labels.add(cache->space, std::move(label), tiers)) break;
    name_on_disk(cache->space, digest);
    parent = digest;
    ++kept;
  }
  context_.reply(command, ValueReply{kept});
}

void EngineLabels::name_on_disk(const store::KeySpace& space, const Digest& digest) {
  const DiskClasses::Disk* disk = context_.config.disk.name ? classes_.find(space) : nullptr;
  if (disk == nullptr) return;
  const Digest name = classes_.name(space, digest);
  const bool there =
      disk->directory && disk->directory->find(classes_.label(space.domain), name).has_value();
  store_.cache.labels().name(space, digest, name, there);
}

void EngineLabels::on_changes(const Command& command, const AskChanges& asked) {
  const EngineCache* cache = cache_of(context_, requests_, command, asked.cache);
  if (cache == nullptr) return;
  store_.cache.follow();
  context_.reply(command, store_.cache.labels().since(cache->space, asked.seen, kMostChanges,
                                                      kMostTokensTold));
}

}  // namespace kvd::core
