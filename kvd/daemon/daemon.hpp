#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/transport/attach.hpp"
#include "ipc/transport/command_server.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "kernels/device/device_backend.hpp"
#include "kvd/admin/journal.hpp"
#include "kvd/admin/link/messages.hpp"
#include "kvd/admin/link/snapshot.hpp"
#include "kvd/core/controller.hpp"
#include "kvd/daemon/config.hpp"
#include "kvd/daemon/copy_table.hpp"
#include "kvd/daemon/domains.hpp"
#include "kvd/daemon/group.hpp"
#include "kvd/daemon/inbox.hpp"
#include "kvd/daemon/liveness.hpp"
#include "kvd/daemon/peer.hpp"
#include "kvd/daemon/shell_counters.hpp"
#include "kvd/daemon/slab_renewer.hpp"
#include "kvd/daemon/solver.hpp"
#include "kvd/daemon/translate.hpp"
#include "kvd/daemon/turns.hpp"
#include "kvd/mover/mover.hpp"
#include "kvd/mover/slab_store.hpp"

namespace kvd::daemon {

/// The shell around the Controller: sockets, copies and the steady clock in, effects out. One
/// control thread (the caller of run()) owns all of it; REST, metrics and liveness threads reach it
/// through the inbox.
/// Source: kvd/DESIGN.md "A functional core in a thin shell", "Threads".
class Daemon {
 public:
  /// Obtains the memory and opens the sockets; engines may attach when it returns.
  /// Errors: OutOfMemory with the remedy, Unavailable for a path in use, InvalidArgument.
  static Result<std::unique_ptr<Daemon>> create(Config config, const Clock& clock);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  /// Serves until stop(); then lets copies end, tells every client, and returns within 3 s.
  /// Errors: DeviceError at once when the device is lost; every session has been poisoned then, and
  ///         only a new process can have the device again.
  [[nodiscard]] Status run();
  /// Thread-safe and async-signal-safe.
  void stop();
  /// New SLOs, quotas and log level (SIGHUP). Thread-safe.
  void reload(Config config);

  // For kvd-admin and tests; thread-safe. Errors: DeadlineExceeded when the control thread does not
  // answer in time, Unavailable while the daemon drains.
  [[nodiscard]] Result<core::ControllerStatus> status(Nanoseconds timeout);
  /// Everything there is to show.
  [[nodiscard]] Result<admin::Snapshot> snapshot(Nanoseconds timeout);
  /// Makes the change on the control thread, so that no other change comes in between; in force at
  /// the next step. Answers the whole new tuning. Errors besides: of admin::link::changed().
  [[nodiscard]] Result<core::Tuning> change(const admin::link::Change& change,
                                            std::vector<admin::link::Assignment> assignments,
                                            Nanoseconds timeout);
  /// What the Controller does not know.
  [[nodiscard]] Result<ShellCounters> shell(Nanoseconds timeout);
  /// Whether engines can attach now.
  [[nodiscard]] bool ready() const { return ready_; }
  [[nodiscard]] admin::DaemonInfo info();
  /// The latest happenings, oldest first.
  [[nodiscard]] std::vector<admin::Happening> happenings() const { return journal_.all(); }
  /// Something a person should know of, to the log and the events.
  void warn(const std::string& text) { tell(core::Note::Level::kWarning, EngineId(), text); }

  [[nodiscard]] const Config& config() const { return config_; }

 private:
  /// Frames that one peer may send before the others get their turn.
  static constexpr int kFramesATurn = 64;

  /// What an epoll entry stands for; the low 32 bits carry an engine or a pending connection.
  enum class Source : std::uint32_t {
    kInbox,
    kCopies,
    kCommands,
    kListener,
    kTimer,
    kPending,
    kPeer,
    kBell,
    kProcess,
  };
  struct Pending {
    transport::AttachConnection connection;
    TimePoint deadline;
    uid_t uid;
    std::optional<wire::Hello> hello;
    std::optional<wire::JoinGroup> join;  ///< follows where the hello says so
  };
  struct UnsentSlab {  ///< for want of a descriptor
    core::SendSlab slab;
    TimePoint deadline;
  };
  struct Waiting {  ///< a command that has no reply yet
    EngineId engine;
    transport::PeerId peer;
    ReplyHead head;
  };

  Daemon(Config config, const Clock& clock, Inbox inbox);
  Status open();
  Status open_backend();
  Status open_copy_table();
  Status open_pool();
  Status open_sockets();
  Status add(Source source, std::uint32_t id, int fd, std::uint32_t events = EPOLLIN);

  // loop (daemon.cpp)
  void dispatch(std::uint64_t source);
  void feed(core::Event event) { feed(std::move(event), clock_.now()); }
  void feed(core::Event event, TimePoint at);
  void take_copies();
  void end_after_loss(const Error& error);
  void tick();
  void drain();

  // connections that have not said all (attach.cpp)
  void accept();
  void listen(bool on);
  void on_pending(std::uint32_t id);
  /// Whether all it has to say is there.
  [[nodiscard]] static Result<bool> take_introduction(Pending& pending);
  Pending remove_pending(std::uint32_t id);
  void refuse(transport::AttachConnection& connection, const Error& error);

  // who is let in (admit.cpp)
  [[nodiscard]] Status check_slab_kind(const wire::Hello& hello) const;
  /// Why no session more of the domain is taken, or ok. A group takes the seats of all its ranks
  /// when the first comes, so that no two wait for each other's.
  [[nodiscard]] Status check_room(DomainId domain, pid_t process, std::size_t seats) const;
  /// Whether the domain has a session, ended ones whose process lives on included.
  [[nodiscard]] bool has_peers(DomainId domain) const;
  /// Of those that are made as users come, it may be a new one.
  [[nodiscard]] Result<Domains::Entry> domain_of(const transport::PeerIdentity& identity);
  [[nodiscard]] Result<core::Attach> application_of(const wire::Hello& hello,
                                                    const std::optional<wire::JoinGroup>& join,
                                                    const transport::PeerIdentity& identity,
                                                    const Domains::Entry& domain) const;
  /// With pages, ring and bell of its own, and no engine yet.
  [[nodiscard]] Result<Peer> peer_of(const wire::Hello& hello, const core::Attach& attach,
                                     transport::PeerIdentity identity) const;
  [[nodiscard]] wire::Welcome welcome_of(const Peer& peer, const core::Attach& attach,
                                         ClassId class_id) const;
  Status admit(transport::AttachConnection& connection, const wire::Hello& hello,
               const std::optional<wire::JoinGroup>& join, std::uint16_t version);
  /// Tells the engine that it is in, with all that is its own.
  Status welcome(Peer& peer, const core::Attach& attach, const core::AttachGrant& grant,
                 transport::AttachConnection& connection);
  void seat(Peer peer, const core::Attach& attach);
  Status watch(EngineId engine, int process, int socket, int bell);

  // sessions (sessions.cpp)
  void on_peer(EngineId engine);
  void on_process_end(EngineId engine);
  void drop(EngineId engine, const std::string& why);
  void leave(Peer& peer);
  void end_session(Peer& peer);
  /// The same but for the socket: a goodbye can still be heard.
  void silence(Peer& peer);
  void watch_peer(Peer& peer);
  void beat(Peer& peer, TimePoint now);
  /// By its pidfd: no other process can be hit.
  void kill(const Peer& peer);

  // tensor-parallel groups (groups.cpp)
  /// The grant of the rank, in the group it names or, the first to come, makes.
  [[nodiscard]] Result<core::AttachGrant> enter_group(const wire::JoinGroup& join,
                                                      const core::Attach& attach);
  /// The living group it names; null: there is none yet.
  [[nodiscard]] Group* group_of(const wire::JoinGroup& join, DomainId domain, uid_t uid);
  /// The rank was let in and could not be told so.
  void forget_rank(EngineId group, std::uint32_t rank);
  [[nodiscard]] Status check_group(const Peer& peer, const decltype(core::Command::body)& body);
  /// Those of the engine, of which a group has several, that are not ended; in order of rank.
  template <class F>
  void each_rank(EngineId engine, F visit);
  void on_slab(const Peer& peer, SlabIndex slab, bool mapped);
  void raise_fences(EngineId group);
  void end_group(Peer& first, bool died);
  void hear_goodbye(Peer& peer);
  void end_silenced(Peer& peer);
  void evict_ended_groups(TimePoint now);
  void remove_rank(EngineId rank);

  // commands (commands.cpp)
  /// Whether more may wait.
  bool take_commands();
  void hold_commands();
  /// The same for rings; the silent ones are left asleep, to be woken by their bells.
  bool take_ring_commands();
  [[nodiscard]] bool serve_rings();
  [[nodiscard]] bool serve_ring(EngineId engine);
  [[nodiscard]] bool ring_filled_while_looking();
  void on_bell(EngineId engine);
  void on_command(const transport::Incoming& incoming);
  void trust(Peer& peer, transport::PeerId connection);
  void answer(transport::PeerId peer, const ReplyHead& head,
              const decltype(core::Reply::body)& body, EngineId engine);
  Status send_reply(transport::PeerId to);
  /// The session that a command comes from, proved by its key.
  [[nodiscard]] Result<Peer*> identify(const wire::CommandHeader& header,
                                       const transport::Incoming& incoming);
  [[nodiscard]] Result<Peer*> authenticate(const wire::CommandHeader& header,
                                           const transport::Incoming& incoming);

  // effects (effects.cpp)
  void perform(const core::Reply& reply);
  void perform(const core::PublishTable& table);
  void perform(const core::CopySlots& copy);
  void perform(const core::StreamLayers& stream);
  void perform(const core::EndStream& end);
  void perform(const core::SolvePlacement& problem);
  void perform(const core::Scrub& scrub);
  void perform(const core::RenewSlab& renew);
  void perform(const core::SendSlab& slab);
  /// False for want of a descriptor.
  [[nodiscard]] bool send_slab(const core::SendSlab& slab);
  void send_waiting_slabs();
  void give_up(const core::SendSlab& slab);
  void open_renewer();
  void perform(const core::AskUnmap& ask);
  void perform(const core::Evict& evict);
  void perform(const core::Note& note);
  /// To the log and to the events a user can ask for.
  void tell(core::Note::Level level, EngineId engine, const std::string& text);

  [[nodiscard]] core::ControllerStatus status_now();
  [[nodiscard]] ShellCounters shell_now() const;
  /// Quotas that the pool has no room for stay as they are, tier by tier.
  void take_quotas(const Config& config);

  template <class T>
  Result<T> ask(std::function<T()> question, Nanoseconds timeout);
  [[nodiscard]] Peer* find(EngineId engine);
  /// Also one whose group has ended: it is still told so.
  [[nodiscard]] Peer* connected(EngineId engine);

  Config config_;  ///< with what reload() changed of it; the tuning is the Controller's
  const Clock& clock_;
  const TimePoint started_;
  BootId boot_;

  Inbox inbox_;
  const Nanoseconds ring_spin_;
  UniqueFd epoll_;
  UniqueFd timer_;
  std::shared_ptr<kernels::DeviceBackend> backend_;  ///< page leases refer to it
  std::optional<admin::GpuInfo> gpu_;
  CopySizes copy_;
  std::unique_ptr<mover::SlabStore> slabs_;
  std::array<std::string, kTiers> page_kinds_;  ///< of the slabs as the pool was opened
  std::unique_ptr<mover::Mover> mover_;
  std::unique_ptr<core::Controller> controller_;
  std::unique_ptr<transport::AttachListener> listener_;
  std::unique_ptr<transport::CommandServer> commands_;
  Turns turns_;  ///< commands that came over ZeroMQ
  /// The command server has to be read: its descriptor was readable, or not all had their turn.
  bool commands_due_ = true;

  Domains domains_;
  std::map<EngineId, Peer> peers_;
  std::map<EngineId, Group> groups_;
  std::map<Generation, EngineId> generations_;
  /// Engines whose rings the control thread looks at by itself. Such an engine does not ring its
  /// bell, since its ring is not marked as asleep.
  std::vector<EngineId> awake_rings_;
  std::map<std::uint32_t, Pending> pending_;
  std::uint32_t last_pending_ = 0;
  bool listening_ = true;            ///< false while no descriptor is free for a connection
  std::uint64_t attach_paused_ = 0;  ///< times it was switched off for that
  std::deque<UnsentSlab> unsent_;    ///< sent at a later tick, in this order
  std::vector<core::Reply> held_;    ///< grants of regions with slabs in unsent_
  std::deque<std::pair<core::Event, TimePoint>> events_;  ///< fed while another is carried out
  bool feeding_ = false;
  std::map<core::ReplyTo, Waiting> waiting_;
  std::uint64_t last_reply_to_ = 0;
  /// Copies in flight that will write a fence; its page is kept until they ended.
  struct Fenced {
    EngineId engine;
    std::shared_ptr<PageLease> page;
  };
  std::map<Ticket, Fenced> fences_;
  std::map<Ticket, Fenced> streams_;  ///< the same for streams of layers
  std::vector<core::CopyFinished> copies_;
  wire::FrameBuffer reply_frame_;
  std::uint64_t stale_commands_ = 0;

  admin::Journal journal_;
  std::unique_ptr<Liveness> liveness_;
  std::unique_ptr<Solver> solver_;
  std::unique_ptr<SlabRenewer> renewer_;
  std::atomic<bool> ready_ = false;
  std::atomic<bool> stopping_ = false;
};

template <class F>
void Daemon::each_rank(EngineId engine, F visit) {
  for (auto it = peers_.lower_bound(engine); it != peers_.end(); ++it) {
    if (it->second.speaks_for() != engine) return;
    if (!it->second.ended) visit(it->second);
  }
}

}  // namespace kvd::daemon
