#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "tests/unit/kvd/core/byte_node.hpp"

namespace kvd::test {

/// A session with a region of one slab, so of 4 blocks, and a cache over it.
struct Placer {
  Placer(ByteNode& on, DomainId domain, std::int64_t slabs = 1)
      : node(on), id(node.attach(domain)), region(*node.lease(id, slabs)) {
    cache = CacheId(ByteNode::value(node.command(id, ByteNode::over(region))));
  }
  explicit Placer(ByteNode& on) : Placer(on, DomainId(1)) {}

  std::optional<Reply> ask(CacheBlocks::Op op, const std::vector<std::uint32_t>& seeds,
                           std::vector<std::uint32_t> blocks = {}, bool park = false) {
    CacheBlocks asked{cache, op, park, 0, {}, std::move(blocks)};
    for (const std::uint32_t seed : seeds) asked.digests.push_back(ByteNode::digest(seed));
    if (op == CacheBlocks::Op::kStore || op == CacheBlocks::Op::kLoad) asked.ticket = ++ticket;
    return node.command(id, asked);
  }
  /// Fills blocks with what the seeds stand for, and stores them.
  std::optional<Reply> store(const std::vector<std::uint32_t>& seeds, bool park = false) {
    std::vector<std::uint32_t> blocks(seeds.size());
    std::iota(blocks.begin(), blocks.end(), 0);
    for (std::size_t i = 0; i < seeds.size(); ++i) node.fill(region, blocks[i], seeds[i]);
    return ask(CacheBlocks::Op::kStore, seeds, blocks, park);
  }
  std::uint64_t leading(const std::vector<std::uint32_t>& seeds) {
    return ByteNode::value(ask(CacheBlocks::Op::kLookup, seeds));
  }
  std::optional<Reply> hint(CacheBlocks::Op op, const std::vector<std::uint32_t>& seeds,
                            std::int64_t seconds = 0) {
    CacheBlocks asked{cache, op, false, 0, {}, {}};
    asked.retain = std::chrono::seconds(seconds);
    for (const std::uint32_t seed : seeds) asked.digests.push_back(ByteNode::digest(seed));
    return node.command(id, asked);
  }
  /// Returns how many are retained.
  std::uint64_t retain(const std::vector<std::uint32_t>& seeds, std::int64_t seconds) {
    return ByteNode::value(hint(CacheBlocks::Op::kRetain, seeds, seconds));
  }
  [[nodiscard]] SetTicket::State state() const { return node.state(id, ticket); }

  ByteNode& node;
  EngineId id;
  ByteNode::Leased region;
  CacheId cache;
  std::uint64_t ticket = 0;
};

}  // namespace kvd::test
