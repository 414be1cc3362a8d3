#pragma once

#include <memory>

#include "ipc/transport/command_server.hpp"
#include "kvd/daemon/base/event_log.hpp"
#include "kvd/daemon/base/inbox.hpp"
#include "kvd/daemon/base/poller.hpp"
#include "kvd/daemon/config/config.hpp"
#include "kvd/daemon/config/domains.hpp"
#include "kvd/daemon/memory/device.hpp"
#include "kvd/daemon/memory/keeper.hpp"
#include "kvd/daemon/memory/kept_memory.hpp"
#include "kvd/daemon/service/acceptor.hpp"
#include "kvd/daemon/service/commands.hpp"
#include "kvd/daemon/service/effects.hpp"
#include "kvd/daemon/service/rings.hpp"
#include "kvd/daemon/service/session_maker.hpp"
#include "kvd/daemon/sessions/event_feed.hpp"
#include "kvd/daemon/sessions/groups.hpp"
#include "kvd/daemon/sessions/replies.hpp"
#include "kvd/daemon/sessions/session_ends.hpp"
#include "kvd/daemon/sessions/session_frames.hpp"
#include "kvd/daemon/sessions/session_table.hpp"
#include "kvd/daemon/workers/copies.hpp"
#include "kvd/daemon/workers/disks.hpp"
#include "kvd/daemon/workers/slab_sender.hpp"
#include "kvd/daemon/workers/workers.hpp"

namespace kvd::daemon {

/// What the parts have in common with other threads.
struct Shared {
  Inbox& inbox;  ///< what other threads post, in order
  EventLog& log;
  const Clock& clock;  ///< the only source of time
};

/// All that the control thread owns, put together. Each part is given parts above it and none
/// below. Workers post their results to the inbox.
/// Owner: control thread.
struct Parts {
  /// What the machine has to give, and can refuse.
  struct Opened {
    Config config;  ///< with what reload() changed of it; the tuning is the Controller's
    Poller poller;
    Domains domains;
    std::unique_ptr<KeptMemory> kept;
    std::unique_ptr<Device> device;
    std::unique_ptr<core::Controller> controller;
    std::unique_ptr<remote::RemoteTier> remote;  ///< null: none
    transport::AttachListener listener;
    std::unique_ptr<transport::CommandServer> server;
  };

  /// Obtains the memory and opens the sockets; nothing is served yet.
  /// Errors: those of Device::open, of the Controller and of the sockets.
  static Result<std::unique_ptr<Parts>> open(Config config, const Shared& shared, BootId boot,
                                             KeptDescriptors kept);
  ~Parts();
  /// Ends disks and remote servers before the memory goes, and writes the disks' checkpoints.
  void end_disks();
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  // The order is that of construction, and backwards that of destruction: what uses another part
  // stands below it, so that nothing is called after its end.
  Config config;
  Poller poller;                                     ///< what the control thread sleeps on
  Domains domains;                                   ///< whose engine is whose
  std::unique_ptr<Device> device;                    ///< slabs, movers, copies under way
  std::unique_ptr<transport::CommandServer> server;  ///< commands that come over ZeroMQ
  EventFeed events;                                  ///< to the Controller, and effects back
  SessionTable sessions;
  Groups groups;     ///< ranks that are one engine
  Replies replies;   ///< which command a reply is for
  Workers workers;   ///< solver, renewer, liveness: threads that post to the inbox
  SessionEnds ends;  ///< silence before release: safety rule 2
  SessionFrames frames;
  Copies copies;                 ///< fences are raised here: safety rule 1
  std::unique_ptr<Disks> disks;  ///< null: none, or they have ended
  SlabSender slabs;
  Effects effects;    ///< each effect to the part that carries it out
  Commands commands;  ///< who may say what
  Rings rings;
  SessionMaker maker;
  Acceptor acceptor;

 private:
  Parts(Opened opened, const Shared& shared, BootId boot);
  /// Has missing slabs made.
  void make_missing(EventLog& log);
  /// The renewer has made memory for the slab.
  void put_slab(EventLog& log, const SlabRenewer::Job& job, const kernels::Slab& memory);
  [[nodiscard]] Workers start_workers(const Shared& shared, BootId boot,
                                      std::unique_ptr<KeptMemory> kept);
  [[nodiscard]] std::unique_ptr<Disks> make_disks(const Shared& shared);
};

}  // namespace kvd::daemon
