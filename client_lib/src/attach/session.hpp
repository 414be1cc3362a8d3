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

/// One life with one daemon, from its welcome until either side leaves. Never comes back: the
/// client starts another one.
/// Owner:   call(), step words and leave(): one thread at a time; the rest thread-safe
class Session {
 public:
  static Result<std::shared_ptr<Session>> start(const Introduction& introduction,
                                                TimePoint deadline, const Clock& clock);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Sends the command and returns its reply, which stays valid until the next call. A failure
  /// named by the daemon is this call's failure. DeadlineExceeded, and nothing is sent, while
  /// as many commands are not answered as a session may send.
  Result<wire::Reply> call(const wire::CommandBody& body, TimePoint deadline);
  /// Sends the command and does not wait. Returns its number. Of the last kMostPosted that were
  /// `wanted` the reply is kept for collect(). WouldBlock: so many before it are not answered.
  Result<std::uint64_t> post(const wire::CommandBody& body, bool wanted, TimePoint deadline);
  /// The reply to a posted command, once; as call().
  Result<wire::Reply> collect(std::uint64_t number, TimePoint deadline);
  /// The other half is left to calls, which may give up before kvd has looked at them.
  static constexpr std::size_t kMostPosted = wire::kMostUnanswered / 2;

  /// Tells in the page what a step is about to report. While an iteration runs, the daemon must
  /// keep the table it reads: the one the last reply named.
  void begin_step(std::uint64_t finished, std::uint64_t running);
  /// Makes the table version that a reply named the one that block_address() reads; 0: as before.
  Status use_table(PlanVersion version);
  [[nodiscard]] PlanVersion table_version() const;
  Result<std::byte*> block_address(std::uint32_t row, std::uint32_t group,
                                   std::uint32_t block) const;

  Status block_addresses(std::uint32_t row, std::uint32_t group,
                         std::span<std::byte*> addresses) const;

  /// The mark for `group` being through, or InvalidArgument for one the model does not have.
  [[nodiscard]] Result<std::uint64_t> mark_of(std::uint64_t iteration, std::uint32_t group) const;
  /// Tells in the page that the layer group is done, and rings where the daemon sleeps on it.
  Status layer_done(std::uint64_t iteration, std::uint32_t group);

  /// Enqueues a wait for the ticket in a stream of the session's GPU; see kvd_wait_on_stream().
  Status wait_on_stream(Ticket ticket, void* stream);
  Status wait_layer_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream);
  /// layer_done() by the stream, when it has come here.
  Status layer_done_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream);

  /// Ends every wait on the page, as the daemon's death would: before memory goes that streams may
  /// still be on their way to.
  void end_waits();
  /// Unmaps what the session mapped and says goodbye in order; keeps silent, and with it the
  /// daemon's count right, where something stays mapped.
  void leave();

  /// True once this session can serve no call any more. Looks at the socket itself, as the keeper
  /// may not have had its turn since the daemon hung up.
  [[nodiscard]] bool gone();

  [[nodiscard]] const wire::Welcome& welcome() const { return admission_.welcome; }
  [[nodiscard]] Bytes slot_bytes() const {
    return Bytes(static_cast<std::int64_t>(welcome().slot_bytes));
  }
  [[nodiscard]] shm::ClientPage& page() const { return admission_.page.page(); }
  [[nodiscard]] SlabMap& slabs() { return slabs_; }
  [[nodiscard]] const std::shared_ptr<Gpu>& gpu() const { return admission_.gpu; }
  /// What a reply has named; streams wait for nothing else.
  void note_run(std::uint64_t iteration, const wire::RunEntry& entry);

 private:
  Session(Admission admission, const Clock& clock);
  [[nodiscard]] Result<shm::TableRowView> row_with(std::uint32_t row, std::uint32_t group,
                                                   std::size_t blocks) const;
  void prepare_streams();
  /// Why no stream can do `instead` here, or ok.
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
  std::uint64_t answered_ = 0;  ///< up to this one the replies have come: they come in order
  std::map<std::uint64_t, std::vector<std::byte>> posted_;  ///< by number; empty: not answered yet
  std::vector<std::byte> collected_;                        ///< what the last reply points into
  std::atomic<std::uint64_t> last_ticket_ = 0;
  std::atomic<std::uint64_t> last_streamed_ = 0;  ///< iteration; none before the first is streamed
  bool overlaps_ = false;                         ///< the engine steps while an iteration runs
  SlabMap slabs_;
  std::unique_ptr<StreamFences> stream_fences_;  ///< GPU only
  std::string no_streams_ = "this kvd lends host memory, where streams have no part";
  mutable std::mutex table_mutex_;
  PlanVersion version_;
  std::optional<shm::TableView> view_;
  std::unique_ptr<Keeper> keeper_;  ///< last: it uses the others, so it goes first
};

}  // namespace kvd::client
