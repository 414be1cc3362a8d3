#pragma once

#include <memory>

#include "kvd/daemon/memory/keeper.hpp"
#include "kvd/daemon/memory/slab_renewer.hpp"
#include "kvd/daemon/sessions/liveness.hpp"
#include "kvd/daemon/workers/remotes.hpp"
#include "kvd/daemon/workers/solver.hpp"

namespace kvd::daemon {

/// The threads that work for the control thread and post what comes of it to the inbox. They end
/// before everything that their posts refer to.
/// Owner: control thread; a null one has ended.
struct Workers {
  std::unique_ptr<Liveness> liveness;
  std::unique_ptr<Solver> solver;
  std::unique_ptr<SlabRenewer> renewer;
  std::unique_ptr<KeptMemory> kept;  ///< what the keeper writes to
  std::unique_ptr<Keeper> keeper;    ///< null, too, where nothing outlives kvd
  /// Null, too, where there is no remote store. It ends with the disks, after the others.
  std::unique_ptr<Remotes> remotes;

  void end() {
    liveness.reset();
    solver.reset();
    renewer.reset();
    keeper.reset();
  }
};

}  // namespace kvd::daemon
