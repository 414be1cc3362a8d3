#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ipc/vocabulary/digest.hpp"
#include "kvd/store/index/digest_table.hpp"
#include "kvd/store/memory/key.hpp"

namespace kvd::store {

/// What routers are told of a cached block, besides the tiers that have it.
struct Label {
  Digest digest;
  Digest parent;  ///< the block before it; zeros: it is the first
  std::string lora;
  std::vector<std::uint32_t> tokens;
  friend bool operator==(const Label&, const Label&) = default;
};

/// The tiers that have a block, one bit each, by index(CacheTier).
using TierSet = std::uint32_t;
constexpr TierSet bit(CacheTier tier) { return TierSet{1} << index(tier); }

/// Labels of cached blocks, in the order in which the blocks came and went: whoever has seen all
/// changes up to a number asks for those after it. A block has one place in that order, that of its
/// last change, so what has changed twice is told once.
///
/// A label comes before its block or after it, and is kept a while after the block has gone, so
/// that the loss is told, and so that a block that comes back soon has its label. Where so many
/// have gone that some are forgotten, whoever has not heard of those starts over.
///
/// Only blocks that an engine labels have labels: what has none is told to nobody.
///
/// Source: kvd. Owner: control thread. Errors: none. Cost: O(log labels); nothing where there are
/// none. Memory: kMostBytes a domain.
class Labels {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;  ///< of a domain's labels
  static constexpr std::size_t kMostGone = 16384;  ///< labels of a space whose blocks no tier has
  static constexpr std::size_t kMostSpaces = 8;    ///< of a domain

  explicit Labels(const TableSecret& secret) : life_((secret[0] ^ secret[3]) | 1) {}

  // ---- what happens to blocks ----
  /// The tier has the block from now on, or has it no more.
  void moved(const KeySpace& space, const Digest& digest, CacheTier tier, bool there) {
    if (!spaces_.empty()) move(space, digest, tier, there);
  }
  /// The same for a disk, which calls blocks by other names.
  void moved_on_disk(const Digest& name, bool there) {
    if (!names_.empty()) move_on_disk(name, there);
  }
  /// What the disk calls the block, and whether the disk has it.
  void name(const KeySpace& space, const Digest& digest, const Digest& on_disk, bool there) {
    if (spaces_.empty()) return;
    set_name(space, digest, on_disk);
    moved(space, digest, CacheTier::kDisk, there);
  }

  // ---- labels ----
  /// `tiers`: the memories that have the block now; name() says the same of a disk. The first label
  /// that a block gets is kept. False: the domain has as many labels as it may have, all of blocks
  /// that are there.
  bool add(const KeySpace& space, Label label, TierSet tiers);

  /// How much of a space's changes somebody has seen. A new cursor is all zeros.
  struct Cursor {
    std::uint64_t life = 0;  ///< of the daemon
    std::uint64_t start = 0;
    std::uint64_t position = 0;
    friend bool operator==(const Cursor&, const Cursor&) = default;
  };
  struct Change {
    Label label;  ///< without tokens where no tier has the block
    TierSet tiers = 0;
  };
  struct Changes {
    Cursor next;
    bool over = false;  ///< it starts over: what was told before these is void
    bool more = false;  ///< ask again
    std::vector<Change> all;
  };
  /// What has changed since, at most so many blocks and tokens, but one block at least.
  [[nodiscard]] Changes since(const KeySpace& space, const Cursor& seen, std::size_t most_blocks,
                              std::size_t most_tokens) const;

  // ---- reading ----
  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] std::size_t bytes(DomainId domain) const;
  /// Empty while sums and orders are those of a walk over all labels; else the fault in words.
  [[nodiscard]] std::string validate() const;

 private:
  struct Held {
    Label label;
    TierSet tiers = 0;
    bool told = false;  ///< some tier has had it
    std::optional<Digest> name;
  };
  using Number = std::uint64_t;
  struct Space {
    std::map<Number, Held> by_change;
    std::map<Digest, Number> by_digest;
    std::set<Number> gone;  ///< those that no tier has
    Number floor = 0;       ///< losses up to this one may be forgotten
  };

  [[nodiscard]] static std::size_t bytes_of(const Label& label);
  void move(const KeySpace& space, const Digest& digest, CacheTier tier, bool there);
  void move_on_disk(const Digest& name, bool there);
  void set_name(const KeySpace& space, const Digest& digest, const Digest& on_disk);
  /// The space, which is made where it is new; null: the domain has too many.
  Space* open(const KeySpace& space);
  /// The label has changed.
  void change(Space& space, Number number, TierSet tiers);
  /// Forgets the label that has been without a block the longest. False: there is none.
  bool forget_one(const KeySpace& key, Space& space);

  std::uint64_t life_;
  Number last_ = 0;
  std::map<KeySpace, Space> spaces_;
  std::map<Digest, std::pair<KeySpace, Digest>> names_;
  std::map<DomainId, std::size_t> bytes_;
};

}  // namespace kvd::store
