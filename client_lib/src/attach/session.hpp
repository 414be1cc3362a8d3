#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client_lib/src/attach/attach.hpp"
#include "client_lib/src/attach/keeper.hpp"
#include "client_lib/src/memory/slab_map.hpp"
#include "ipc/transport/command_client.hpp"
#include "ipc/vocabulary/clock.hpp"
#include "ipc/wire/codec.hpp"

namespace kvd::client {

/// One life with one daemon, from its welcome until either side leaves. A session never comes back:
/// the client starts another one.
/// Owner:   call(), step words and leave(): one thread at a time; the rest is thread-safe
class Session {
 public:
  static Result<std::shared_ptr<Session>> start(const Introduction& introduction,
                                                TimePoint deadline, const Clock& clock);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Sends the command and returns its reply, which stays valid until the next call. If the daemon
  /// reports a failure, the call returns it. DeadlineExceeded, and nothing is sent, while as many
  /// commands are unanswered as a session may send.
  Result<wire::Reply> call(const wire::CommandBody& body, TimePoint deadline);
  /// Sends the command and does not wait. Returns its number. collect() can fetch the reply if the
  /// command was `wanted` and is among the last kMostPosted of these. WouldBlock: too many commands
  /// before it are unanswered.
  Result<std::uint64_t> post(const wire::CommandBody& body, bool wanted, TimePoint deadline);
  /// The reply to a posted command, which can be fetched once; as call(). After DeadlineExceeded it
  /// can be asked for again.
  Result<wire::Reply> collect(std::uint64_t number, TimePoint deadline);
  /// The other half is left to calls, which may give up before kvd has looked at them.
  static constexpr std::size_t kMostPosted = wire::kMostUnanswered / 2;

  /// Tells in the page what a step is about to report. While an iteration runs, the daemon must
  /// keep the table that it reads: the one that the last reply named.
  void begin_step(std::uint64_t finished, std::uint64_t running);
  /// Has block_address() read the table version that a reply named; 0: it stays as it was.
  Status use_table(PlanVersion version);
  [[nodiscard]] PlanVersion table_version() const;
  Result<std::byte*> block_address(std::uint32_t row, std::uint32_t group,
                                   std::uint32_t block) const;

  Status block_addresses(std::uint32_t row, std::uint32_t group,
                         std::span<std::byte*> addresses) const;

  /// The mark that says that `group` is through, or InvalidArgument for a group that the model does
  /// not have.
  [[nodiscard]] Result<std::uint64_t> mark_of(std::uint64_t iteration, std::uint32_t group) const;
  /// Tells in the page that the layer group is done, and rings if the daemon sleeps on it.
  Status layer_done(std::uint64_t iteration, std::uint32_t group);

  /// Enqueues a wait for the ticket in a stream of the session's GPU; see kvd_wait_on_stream().
  Status wait_on_stream(Ticket ticket, void* stream);
  Status wait_layer_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream);
  /// The stream itself does layer_done() when it gets here.
  Status layer_done_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream);

  /// Ends every wait on the page, as the daemon's death would. It has to come before memory goes
  /// that streams may still be about to use.
  void end_waits();
  /// Unmaps what the session mapped and says goodbye in order. Where something stays mapped it says
  /// nothing, which keeps the daemon's count right.
  void leave();

  /// True once this session can serve no call any more. It looks at the socket itself, because the
  /// keeper may not have run since the daemon hung up.
  [[nodiscard]] bool gone();

  [[nodiscard]] const wire::Welcome& welcome() const { return admission_.welcome; }
  [[nodiscard]] Bytes slot_bytes() const {
    return Bytes(static_cast<std::int64_t>(welcome().slot_bytes));
  }
  [[nodiscard]] shm::ClientPage& page() const { return admission_.page.page(); }
  [[nodiscard]] SlabMap& slabs() { return slabs_; }
  [[nodiscard]] const std::shared_ptr<Gpu>& gpu() const { return admission_.gpu; }
  /// Notes what a reply has named; streams wait for nothing else.
  void note_run(std::uint64_t iteration, const wire::RunEntry& entry);

 private:
  Session(Admission admission, const Clock& clock);
  [[nodiscard]] Result<shm::TableRowView> row_with(std::uint32_t row, std::uint32_t group,
                                                   std::size_t blocks) const;
  void prepare_streams();
  /// Why no stream can do it here, naming what to do `instead`; or ok.
  [[nodiscard]] Status check_streams(const char* instead) const;
  void ring(std::uint64_t mark) const;
  wire::Command command_of(const wire::CommandBody& body, Nanoseconds timeout);
  Status check_reply(const wire::Reply& reply);
  Status wait_for_room(TimePoint deadline);
  Result<wire::Reply> decoded(const Result<std::span<const std::byte>>& answer);
  void keep(std::span<const std::byte> reply);

  const Clock& clock_;
  Admission admission_;
  wire::FrameBuffer frame_;
  std::uint64_t sequence_ = 0;
  std::uint64_t answered_ = 0;  ///< replies up to this number have come: they come in order
  /// The replies by number; empty: not answered yet.
  std::map<std::uint64_t, std::vector<std::byte>> posted_;
  std::vector<std::byte> collected_;  ///< what the last reply points into
  std::atomic<std::uint64_t> last_ticket_ = 0;
  /// The last streamed iteration; none before the first.
  std::atomic<std::uint64_t> last_streamed_ = 0;
  bool overlaps_ = false;  ///< the engine steps while an iteration runs
  SlabMap slabs_;
  std::unique_ptr<StreamFences> stream_fences_;  ///< GPU only
  std::string no_streams_ = "this kvd lends host memory, where streams have no part";
  mutable std::mutex table_mutex_;
  PlanVersion version_;
  std::optional<shm::TableView> view_;
  std::unique_ptr<Keeper> keeper_;  ///< last: it uses the others, so it goes first
};

}  // namespace kvd::client
