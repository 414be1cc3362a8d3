#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kvd/tiers/disk/files/layout.hpp"

/// What a block is called on a server, and what its value says: pure. FORMAT.md is the authority.
namespace kvd::remote {

using Groups = std::vector<std::span<std::byte>>;
using ConstGroups = std::vector<std::span<const std::byte>>;

/// The name of the key. `digest` is an outside name, which nobody computes without the cluster
/// secret, so with the class it tells nothing of either. Errors: none. Thread-safe.
[[nodiscard]] std::string key_name(const disk::ClassShape& shape, const disk::Digest& digest);

/// Bytes of a value: a header, then the layer groups one after another.
[[nodiscard]] Bytes value_bytes(const disk::ClassShape& shape);

/// The disk's header, as of slot 0 in a segment of one slot. Errors: those of disk::Layout.
[[nodiscard]] Result<disk::Sector> make_header(const disk::ClassShape& shape,
                                               const disk::BlockKey& key,
                                               const ConstGroups& groups);

/// kNone where the header is the block's, whole and unchanged; `said` is what it says.
[[nodiscard]] disk::Fault read_header(const disk::ClassShape& shape, const disk::BlockKey& key,
                                      const disk::Sector& header, disk::SlotHeader& said);
/// kNone where a group is what read_header() said.
[[nodiscard]] disk::Fault compare(const disk::SlotHeader& said, std::size_t group,
                                  const Groups& groups);

}  // namespace kvd::remote
