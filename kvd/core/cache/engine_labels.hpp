#pragma once

#include "kvd/core/cache/disk_classes.hpp"
#include "kvd/core/ledger/context.hpp"
#include "kvd/core/ledger/requests.hpp"
#include "kvd/store/store.hpp"

namespace kvd::core {

/// What engines say of their blocks for routers, and what they hear of each other's: labels of the
/// blocks in their caches, and what has changed (store/index/labels.hpp). Sessions of the domain
/// that opened a cache alike hear the same.
///
/// Source: kvd/DESIGN.md "Engines that place by themselves"; ipc/PROTOCOL.md.
///
/// Owner: control thread. Errors: as the replies say. Cost: O(log labels) a block.
class EngineLabels {
 public:
  EngineLabels(Context& context, store::Store& store, Requests& requests, DiskClasses& classes)
      : context_(context), store_(store), requests_(requests), classes_(classes) {}

  void on_label(const Command& command, const LabelBlocks& told);
  void on_changes(const Command& command, const AskChanges& asked);

 private:
  /// The block has got a label: tells Labels its name on disk, and whether it is there.
  void name_on_disk(const store::KeySpace& space, const Digest& digest);

  Context& context_;
  store::Store& store_;
  Requests& requests_;
  DiskClasses& classes_;
};

}  // namespace kvd::core
