#include "client_lib/src/attach/session.hpp"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "client_lib/src/memory/fence.hpp"
#include "ipc/vocabulary/layer_mark.hpp"
#include "ipc/wire/attach_codec.hpp"

namespace kvd::client {
namespace {

constexpr Nanoseconds kGoodbyeTimeout = std::chrono::milliseconds(100);
constexpr Nanoseconds kLongestWayBack = std::chrono::milliseconds(50);
/// A layer_mark has room for iterations below this number.
constexpr std::uint64_t kMaxIteration = std::uint64_t{1} << 48;

/// The daemon's part of the time that is left: its own answer, which names the remedy, should
/// arrive before the caller's deadline.
Nanoseconds daemons_share(Nanoseconds left) {
  const Nanoseconds share = left - std::min(left / 10, kLongestWayBack);
  return std::min(share, Nanoseconds(wire::kMaxTimeoutNs));
}

}  // namespace

Result<std::shared_ptr<Session>> Session::start(const Introduction& introduction,
                                                TimePoint deadline, const Clock& clock) {
  KVD_ASSIGN_OR_RETURN(auto admission, attach(introduction, deadline, clock));
  std::shared_ptr<Session> session(new Session(std::move(admission), clock));
  session->prepare_streams();
  KVD_ASSIGN_OR_RETURN(
      session->keeper_,
      Keeper::start(session->admission_.page, session->admission_.connection, session->slabs_));
  return session;
}

Session::Session(Admission admission, const Clock& clock)
    : clock_(clock), admission_(std::move(admission)), slabs_(admission_.memory()) {
  admission_.commands->listen([this](std::span<const std::byte> reply) { keep(reply); });
}

Session::~Session() {
  // The session went with another rank. The daemon waits to hear that this rank maps nothing any
  // more; without that it keeps the memory back until this process ends.
  const bool ended_by_rank = admission_.in_group && keeper_ != nullptr && keeper_->gone();
  end_waits();
  if (ended_by_rank) leave();
  (void)slabs_.close_and_unmap(kLongestDrain);
  // A stream with hours of work before its wait keeps the page.
  if (stream_fences_ != nullptr && !stream_fences_->close()) admission_.page.leak();
}

void Session::end_waits() {
  if (stream_fences_ != nullptr) poison(page());
}

// Without fences for streams the session works as well: kvd_wait and kvd_layer_done serve the same
// purpose.
void Session::prepare_streams() {
  if (admission_.gpu == nullptr) return;
  auto fences = admission_.gpu->fences_in(&page(), Bytes(shm::kClientPageBytes),
                                          [this](std::uint64_t mark) { ring(mark); });
  if (fences.ok()) {
    stream_fences_ = std::move(*fences);
  } else {
    no_streams_ = fences.error().message;
  }
}

Status Session::check_streams(const char* instead) const {
  if (stream_fences_ != nullptr) return check_poison(page());
  return make_error(ErrorCode::kUnsupported, no_streams_ + ": use " + instead);
}

void Session::note_run(std::uint64_t iteration, const wire::RunEntry& entry) {
  if (entry.ticket > last_ticket_) last_ticket_ = entry.ticket;
  if ((entry.flags & wire::kRunStreamed) != 0) last_streamed_ = iteration;
}

Status Session::wait_on_stream(Ticket ticket, void* stream) {
  KVD_TRY(check_streams("kvd_wait"));
  // The stream could not be told to give up, so it may only wait for what a reply has promised.
  if (ticket.value > last_ticket_) {
    return make_error(ErrorCode::kInvalidArgument,
                      "no step of this session has named ticket " + std::to_string(ticket.value));
  }
  if (page().fence_h2d.load(std::memory_order_acquire) >= ticket.value) return {};
  return stream_fences_->wait(stream, page().fence_h2d, ticket.value);
}

Status Session::wait_layer_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream) {
  KVD_TRY(check_streams("kvd_wait_layer"));
  KVD_ASSIGN_OR_RETURN(const std::uint64_t mark, mark_of(iteration, group));
  if (iteration > last_streamed_) {
    return make_error(ErrorCode::kInvalidArgument, "no step of this session has named iteration " +
                                                       std::to_string(iteration) +
                                                       " with a streamed entry");
  }
  if (page().fence_layers.load(std::memory_order_acquire) >= mark) return {};
  return stream_fences_->wait(stream, page().fence_layers, mark);
}

Status Session::layer_done_on_stream(std::uint64_t iteration, std::uint32_t group, void* stream) {
  KVD_TRY(check_streams("kvd_layer_done"));
  KVD_ASSIGN_OR_RETURN(const std::uint64_t mark, mark_of(iteration, group));
  return stream_fences_->write(stream, page().progress, mark);
}

Result<wire::Reply> Session::call(const wire::CommandBody& body, TimePoint deadline) {
  KVD_TRY(wait_for_room(deadline));
  const Nanoseconds left = deadline - clock_.now();
  if (left <= Nanoseconds(0)) {
    return make_error(ErrorCode::kDeadlineExceeded, "no time is left to ask the daemon");
  }
  KVD_TRY(wire::encode_command(command_of(body, daemons_share(left)), frame_));
  ++sequence_;
  const auto answer =
      admission_.commands->call(frame_.bytes(), sequence_, left, admission_.connection.fd());
  if (!answer.ok() && answer.error().code == ErrorCode::kWouldBlock) {
    --sequence_;  // the daemon has not seen this one: the next command takes its number
    return make_error(ErrorCode::kDeadlineExceeded, answer.error().message);
  }
  return decoded(answer);
}

/// kvd drops a session that sends more than it may. Abandoned calls count until their answers come.
Status Session::wait_for_room(TimePoint deadline) {
  while (sequence_ - answered_ >= wire::kMostUnanswered) {
    const Nanoseconds left = std::max(Nanoseconds(0), deadline - clock_.now());
    const auto oldest = admission_.commands->await(answered_ + 1, left, admission_.connection.fd());
    if (!oldest.ok()) return decoded(oldest).error();
    keep(*oldest);
  }
  return {};
}

Result<std::uint64_t> Session::post(const wire::CommandBody& body, bool wanted,
                                    TimePoint deadline) {
  KVD_TRY(admission_.commands->take_replies());
  if (sequence_ - answered_ >= kMostPosted) {
    return make_error(ErrorCode::kWouldBlock, "kvd has not answered the commands before this one");
  }
  const Nanoseconds left = std::max(Nanoseconds(0), deadline - clock_.now());
  KVD_TRY(wire::encode_command(command_of(body, daemons_share(left)), frame_));
  const Status sent = admission_.commands->post(frame_.bytes());
  if (sent.code() == ErrorCode::kWouldBlock) return sent.error();
  ++sequence_;
  if (!sent.ok()) {
    keeper_->declare_gone();
    return sent.error();
  }
  if (wanted) posted_[sequence_];
  if (posted_.size() > kMostPosted) posted_.erase(posted_.begin());
  return sequence_;
}

Result<wire::Reply> Session::collect(std::uint64_t number, TimePoint deadline) {
  const auto posted = posted_.find(number);
  if (posted == posted_.end()) {
    return make_error(ErrorCode::kNotFound, "no reply to this command is kept");
  }
  if (posted->second.empty()) {
    const Nanoseconds left = std::max(Nanoseconds(0), deadline - clock_.now());
    const auto answer = admission_.commands->await(number, left, admission_.connection.fd());
    const bool is_late = !answer.ok() && answer.error().code == ErrorCode::kDeadlineExceeded;
    if (!is_late) posted_.erase(posted);
    return decoded(answer);
  }
  collected_ = std::move(posted->second);
  posted_.erase(posted);
  return decoded(std::span<const std::byte>(collected_));
}

void Session::keep(std::span<const std::byte> reply) {
  const auto number = wire::peek_reply_sequence(reply);
  answered_ = std::max(answered_, std::min(number.value_or(0), sequence_));
  const auto posted = number ? posted_.find(*number) : posted_.end();
  if (posted != posted_.end()) posted->second.assign(reply.begin(), reply.end());
}

Result<wire::Reply> Session::decoded(const Result<std::span<const std::byte>>& answer) {
  if (!answer.ok()) {
    // The daemon answers an abandoned command, but nobody takes that answer. After any other
    // failure it is unknown whether the command came through, and so which sequence the daemon
    // expects.
    if (answer.error().code != ErrorCode::kDeadlineExceeded) keeper_->declare_gone();
    return answer.error();
  }
  KVD_ASSIGN_OR_RETURN(auto reply, wire::decode_reply(*answer));
  answered_ = std::max(answered_, std::min(reply.header.sequence, sequence_));
  KVD_TRY(check_reply(reply));
  return reply;
}

wire::Command Session::command_of(const wire::CommandBody& body, Nanoseconds timeout) {
  wire::Command command;
  command.header.frame.version = welcome().header.version;
  command.header.key = welcome().session_key;
  command.header.generation = welcome().generation;
  command.header.sequence = sequence_ + 1;
  command.header.timeout_ns = timeout.count();
  command.body = body;
  return command;
}

Status Session::check_reply(const wire::Reply& reply) {
  const bool another_daemon = reply.header.boot_id != welcome().boot_id;
  if (another_daemon || reply.code() == ErrorCode::kStaleSession) {
    keeper_->declare_gone();
    return make_error(ErrorCode::kUnavailable,
                      "the daemon does not know this session any more; call again to attach anew");
  }
  if (reply.code() == ErrorCode::kOk) return {};
  return make_error(reply.code(), std::string(reply.message));
}

void Session::begin_step(std::uint64_t finished, std::uint64_t running) {
  overlaps_ = running != 0;
  if (overlaps_) page().using_version.store(table_version().value, std::memory_order_seq_cst);
  page().iteration_finished.store(finished, std::memory_order_release);
}

Status Session::use_table(PlanVersion version) {
  if (!version || !admission_.table) return {};
  if (!overlaps_) page().using_version.store(version.value, std::memory_order_seq_cst);
  KVD_ASSIGN_OR_RETURN(const auto view, admission_.table->at(version));
  const std::lock_guard lock(table_mutex_);
  version_ = version;
  view_ = view;
  return {};
}

PlanVersion Session::table_version() const {
  const std::lock_guard lock(table_mutex_);
  return version_;
}

// The caller holds table_mutex_.
Result<shm::TableRowView> Session::row_with(std::uint32_t row, std::uint32_t group,
                                            std::size_t blocks) const {
  if (!view_) return make_error(ErrorCode::kNotFound, "no block table yet: call step first");
  KVD_ASSIGN_OR_RETURN(const auto found, view_->row(row));
  if (group < found.groups && blocks <= found.blocks) return found;
  return make_error(ErrorCode::kNotFound, "row " + std::to_string(row) + " has " +
                                              std::to_string(found.groups) + " groups of " +
                                              std::to_string(found.blocks) + " blocks");
}

Result<std::byte*> Session::block_address(std::uint32_t row, std::uint32_t group,
                                          std::uint32_t block) const {
  const std::lock_guard lock(table_mutex_);
  KVD_ASSIGN_OR_RETURN(const auto found, row_with(row, group, std::size_t{block} + 1));
  return slabs_.slot_address(found.slot(group, block), slot_bytes());
}

Status Session::block_addresses(std::uint32_t row, std::uint32_t group,
                                std::span<std::byte*> addresses) const {
  const std::lock_guard lock(table_mutex_);
  KVD_ASSIGN_OR_RETURN(const auto found, row_with(row, group, addresses.size()));
  const auto slots = found.slots.subspan(std::size_t{group} * found.blocks, addresses.size());
  return slabs_.slot_addresses(slots, slot_bytes(), addresses);
}

Result<std::uint64_t> Session::mark_of(std::uint64_t iteration, std::uint32_t group) const {
  if (group < welcome().layer_groups && iteration < kMaxIteration) {
    return layer_mark(iteration, group + 1);
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "iteration " + std::to_string(iteration) + ", layer group " +
                        std::to_string(group) + ": groups are 0 to " +
                        std::to_string(welcome().layer_groups) + ", exclusive");
}

Status Session::layer_done(std::uint64_t iteration, std::uint32_t group) {
  KVD_ASSIGN_OR_RETURN(const std::uint64_t mark, mark_of(iteration, group));
  page().progress.store(mark, std::memory_order_seq_cst);
  ring(mark);
  return check_poison(page());
}

// Called after the progress word has got the mark: the daemon announces its sleep, then looks at
// the word.
void Session::ring(std::uint64_t mark) const {
  std::uint64_t wanted = page().progress_wanted.load(std::memory_order_seq_cst);
  const bool asleep =
      wanted != 0 && wanted <= mark && page().progress_wanted.compare_exchange_strong(wanted, 0);
  if (asleep) ::eventfd_write(admission_.bell.get(), 1);
}

bool Session::gone() {
  // When a call has failed because of the poison, the session must count as gone, though the keeper
  // is not done with it yet. The socket of a group that has ended stays open for the goodbye.
  if (!check_poison(page()).ok()) keeper_->declare_gone();
  // With a ring the keeper's word is enough, and saves a system call for each command: the keeper
  // notices the hang-up by itself, and a call that began before it ends with it.
  if (admission_.transport == wire::TransportKind::kRing) return keeper_->gone();
  pollfd socket{admission_.connection.fd(), POLLRDHUP, 0};
  if (!keeper_->gone() && ::poll(&socket, 1, 0) > 0) keeper_->declare_gone();
  return keeper_->gone();
}

void Session::leave() {
  if (!slabs_.close_and_unmap(kLongestDrain)) return;
  wire::Goodbye goodbye;
  // If the daemon does not take the goodbye, the closed socket tells it the same.
  (void)admission_.connection.send(wire::seal(goodbye), {}, kGoodbyeTimeout);
}

}  // namespace kvd::client
