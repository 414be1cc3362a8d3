#include "tests/unit/client_lib/mini_daemon.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "ipc/transport/ring.hpp"
#include "ipc/wire/attach_codec.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

template <class T>
T must(Result<T> result) {
  if (!result.ok()) ADD_FAILURE() << result.error().to_string();
  return std::move(result).value();
}

void must(const Status& status) {
  if (!status.ok()) ADD_FAILURE() << status.error().to_string();
}

constexpr std::uint8_t kKeyByte = 0x5a;

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "kvd-XXXXXX").string();
  path_ = ::mkdtemp(pattern.data());
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

MiniDaemon::MiniDaemon(const TemporaryFolder& folder, Script script)
    : endpoint_(folder.path("attach.sock")), script_(std::move(script)) {
  listener_ = std::make_unique<transport::AttachListener>(
      must(transport::AttachListener::create(endpoint_)));
  transport::ZmqServerOptions options;
  options.path = folder.path("command.sock");
  commands_ = must(transport::zmq_command_server(options));
  thread_ = std::thread([this] { serve(); });
}

MiniDaemon::~MiniDaemon() {
  stop_ = true;
  thread_.join();
}

MiniDaemon::Seen MiniDaemon::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

bool MiniDaemon::wait_until(const std::function<bool(const Seen&)>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::unique_lock lock(mutex_);
  // It waits in slices: the awaited value may also stand in the client's page, which wakes nobody.
  while (!condition(seen_)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    changed_.wait_for(lock, std::chrono::milliseconds(5));
  }
  return true;
}

void MiniDaemon::change(const std::function<void(Script&)>& edit) {
  const std::lock_guard lock(mutex_);
  edit(script_);
}

std::shared_ptr<shm::ServedClientPage> MiniDaemon::page() const {
  const std::lock_guard lock(mutex_);
  return session_->page;
}

std::span<std::byte> MiniDaemon::region_slab(std::uint64_t region, std::uint32_t position) {
  const std::lock_guard lock(mutex_);
  return regions_.at({region, position}).bytes();
}

std::uint64_t MiniDaemon::take_rings() {
  const std::lock_guard lock(mutex_);
  eventfd_t rings = 0;
  (void)::eventfd_read(session_->bell.get(), &rings);  // none is fine
  return rings;
}

void MiniDaemon::run_next(const wire::RunEntry& entry, std::vector<SlotId> slots) {
  const std::lock_guard lock(mutex_);
  next_ = entry;
  next_slots_ = std::move(slots);
}

void MiniDaemon::serve() {
  while (!stop_) {
    pollfd fds[] = {{listener_->fd(), POLLIN, 0},
                    {commands_->fd(), POLLIN, 0},
                    {session_ ? session_->connection.fd() : -1, POLLIN, 0}};
    ::poll(fds, std::size(fds), 5);
    while (auto connection = must(listener_->accept())) {
      take_frames();  // the last words of the one before
      on_connection(std::move(*connection));
    }
    take_frames();
    take_commands();
  }
}

void MiniDaemon::on_connection(transport::AttachConnection connection) {
  const auto frame = must(connection.receive(kPatience));
  const auto hello = std::get<wire::Hello>(must(wire::decode_attach(frame.bytes())));
  const std::lock_guard lock(mutex_);
  seen_.hellos.push_back(hello);
  changed_.notify_all();
  if (script_.hang_ups > 0) {
    --script_.hang_ups;
    return;
  }
  if (script_.refuse_attach) {
    wire::Refused refused;
    refused.code = static_cast<std::uint16_t>(script_.refuse_attach->code);
    wire::set_text(refused.message, script_.refuse_attach->message);
    must(connection.send(wire::seal(refused)));
    return;
  }
  session_.emplace(
      Session{std::move(connection),
              std::make_shared<shm::ServedClientPage>(must(shm::ServedClientPage::create())),
              must(shm::TableWriter::create(64, 1024)), must(transport::make_bell())});
  wire::Welcome welcome = welcome_for(hello, *session_);
  std::vector<int> fds = {session_->page->fd(), session_->table.fd()};
  if (welcome.class_id != 0) fds.push_back(session_->bell.get());
  must(session_->connection.send(wire::seal(welcome), fds));
}

wire::Welcome MiniDaemon::welcome_for(const wire::Hello& hello, const Session& session) const {
  wire::Welcome welcome;
  welcome.boot_id.fill(script_.boot);
  welcome.session_key.fill(kKeyByte);
  welcome.generation = 1;
  welcome.engine_id = 7;
  welcome.class_id = hello.shape.layers > 0 ? 1 : 0;
  welcome.domain_id = 1;
  welcome.shape = hello.shape;
  if (welcome.class_id != 0) {
    welcome.layer_groups = kGroups;
    welcome.shape.layers_per_block = hello.shape.layers / kGroups;
    welcome.shape.block_tokens = 16;
    welcome.slot_bytes = kSlotBytes.size();
  }
  welcome.slab_bytes = kSlabBytes.size();
  welcome.table_bytes = session.table.size().size();
  welcome.client_page_bytes = shm::kClientPageBytes;
  if (script_.gpu != welcome.device_uuid) {
    welcome.slab_kind = static_cast<std::uint32_t>(wire::SlabKind::kCudaVmm);
    welcome.device_uuid = script_.gpu;
  }
  wire::set_text(welcome.command_endpoint, commands_->endpoint());
  return welcome;
}

void MiniDaemon::take_frames() {
  while (session_) {
    const auto frame = session_->connection.receive();
    const std::lock_guard lock(mutex_);
    if (!frame.ok()) {
      if (frame.error().code == ErrorCode::kPeerGone) session_.reset();
      return;
    }
    const auto message = must(wire::decode_attach(frame->bytes()));
    seen_.slabs_acknowledged += std::holds_alternative<wire::SlabMapped>(message) ? 1u : 0u;
    seen_.slabs_unmapped += std::holds_alternative<wire::SlabUnmapped>(message) ? 1u : 0u;
    seen_.goodbyes += std::holds_alternative<wire::Goodbye>(message) ? 1u : 0u;
    changed_.notify_all();
  }
}

void MiniDaemon::take_commands() {
  {
    const std::lock_guard lock(mutex_);
    if (script_.leave_commands) return;
    send_replies();
  }
  while (const auto incoming = commands_->receive()) {
    if (incoming->frame.empty()) continue;
    const auto command = must(wire::decode_command(incoming->frame));
    EXPECT_EQ(command.header.key[0], kKeyByte);
    EXPECT_GT(command.header.timeout_ns, 0);
    const std::lock_guard lock(mutex_);
    seen_.sequences.push_back(command.header.sequence);
    reply_to(incoming->peer, command);
    changed_.notify_all();
  }
}

void MiniDaemon::reply_to(transport::PeerId peer, const wire::Command& command) {
  wire::Reply reply;
  reply.header.boot_id.fill(script_.boot);
  reply.header.generation = command.header.generation;
  reply.header.sequence = command.header.sequence;
  reply.command = wire::type_of(command.body);
  if (script_.refuse_command) {
    reply.header.code = static_cast<std::uint16_t>(script_.refuse_command->code);
    reply.message = script_.refuse_command->message;
  } else if (script_.is_older && (reply.command == wire::MessageType::kGaps ||
                                  reply.command == wire::MessageType::kNeeds ||
                                  reply.command == wire::MessageType::kLayers)) {
    reply.header.code = static_cast<std::uint16_t>(ErrorCode::kUnsupported);
    reply.message = "the type is not known";
  } else if (reply.command == wire::MessageType::kClaim && !script_.takes_back) {
    reply.header.code = static_cast<std::uint16_t>(ErrorCode::kNotFound);
    reply.message = "no such region waits";
  } else {
    reply.body = body_of(command);
  }
  auto& [to, frame] = replies_.emplace_back();
  to = peer;
  must(wire::encode_reply(reply, frame));
  send_replies();
}

void MiniDaemon::send_replies() {
  for (; !replies_.empty() && script_.answers > 0; replies_.pop_front(), --script_.answers) {
    must(commands_->send(replies_.front().first, replies_.front().second.bytes()));
  }
}

wire::ReplyBody MiniDaemon::body_of(const wire::Command& command) {
  if (const auto* allocate = std::get_if<wire::AllocateBody>(&command.body)) {
    return grant_region(*allocate);
  }
  if (const auto* step_command = std::get_if<wire::StepCommand>(&command.body)) {
    return step(*step_command);
  }
  if (const auto* submit = std::get_if<wire::SubmitBody>(&command.body)) {
    seen_.submitted.push_back(submit->request);
  }
  if (const auto* name = std::get_if<wire::NameCommand>(&command.body)) {
    seen_.fingerprints.push_back(name->fingerprint);
    for (const wire::BlockName block : name->blocks) seen_.names.push_back(block);
  }
  if (const auto* named = std::get_if<wire::GapsCommand>(&command.body)) {
    for (const wire::RequestGap gap : named->gaps) seen_.gaps.push_back(gap);
  }
  if (const auto* claim = std::get_if<wire::ClaimBody>(&command.body)) {
    seen_.claimed_regions.push_back(claim->region);
    return wire::AllocateReplyBody{kTakenBack + claim->region, kSlabBytes.size(), 1, 0};
  }
  if (const auto* space = std::get_if<wire::SpaceCommand>(&command.body)) {
    seen_.placed_regions.push_back(space->body.region);
    return wire::ValueReplyBody{50};
  }
  if (const auto* asked = std::get_if<wire::LayersCommand>(&command.body)) {
    seen_.layers = asked->body;
    seen_.placed.clear();
    for (const wire::LayersRequest each : asked->requests) {
      seen_.placed.push_back({each.request, each.tokens, 2, 0});
    }
    return wire::PlaceReply{{asked->body.capacity_blocks, 0, 0}, seen_.placed};
  }
  if (const auto* share = std::get_if<wire::ShareBody>(&command.body)) {
    return wire::ValueReplyBody{share->wanted};
  }
  if (const auto* told = std::get_if<wire::NeedsCommand>(&command.body)) {
    for (const wire::SpaceNeed need : told->needs) seen_.needs.push_back(need);
    return wire::ValueReplyBody{told->body.share.least};
  }
  if (const auto* finish = std::get_if<wire::FinishCommand>(&command.body)) end(finish->body);
  if (const auto* abort = std::get_if<wire::AbortCommand>(&command.body)) end(abort->body);
  if (std::holds_alternative<wire::StatsCommand>(command.body)) {
    wire::StatsReplyBody stats;
    stats.region_bytes = regions_.size() * kSlabBytes.size();
    return stats;
  }
  return std::monostate();
}

void MiniDaemon::end(const wire::TargetBody& target) {
  const bool is_region = target.kind == static_cast<std::uint32_t>(wire::TargetKind::kRegion);
  (is_region ? seen_.finished_regions : seen_.ended).push_back(target.target);
}

wire::ReplyBody MiniDaemon::grant_region(const wire::AllocateBody& body) {
  wire::AllocateReplyBody granted;
  granted.region = ++last_region_;
  granted.slab_bytes = kSlabBytes.size();
  granted.count =
      static_cast<std::uint32_t>(pieces(Bytes(static_cast<std::int64_t>(body.amount)), kSlabBytes));
  // Out of order on purpose: positions, not arrival, say where a slab goes.
  for (std::uint32_t i = granted.count; i-- > script_.withhold_slabs;) {
    wire::MapSlab frame;
    frame.region = granted.region;
    frame.slab = 100 + i;
    frame.position = i;
    frame.count = granted.count;
    regions_.insert_or_assign({granted.region, i}, send(frame));
  }
  return granted;
}

wire::ReplyBody MiniDaemon::step(const wire::StepCommand& command) {
  seen_.steps.push_back(command.body);
  seen_.reports.insert(seen_.reports.end(), command.reports.begin(), command.reports.end());
  wire::StepReply reply;
  run_.clear();
  if (next_) {
    run_.push_back(*std::exchange(next_, std::nullopt));
    ++session_->iteration;
    const shm::TableRowSource row{RequestId(run_[0].request), Tokens(1),
                                  static_cast<std::uint32_t>(next_slots_.size() / kGroups), kGroups,
                                  next_slots_};
    must(session_->table.publish(PlanVersion(session_->iteration), std::span(&row, 1),
                                 session_->page->using_version()));
  }
  reply.run = run_;
  reply.body.iteration = session_->iteration;
  reply.body.table_version = session_->iteration;
  return reply;
}

bool MiniDaemon::rung() {
  const std::lock_guard lock(mutex_);
  eventfd_t rings = 0;
  return session_ && ::eventfd_read(session_->bell.get(), &rings) == 0;
}

shm::SharedMapping MiniDaemon::send_slab(std::uint32_t slab) {
  const std::lock_guard lock(mutex_);
  wire::MapSlab frame;
  frame.slab = slab;
  return send(frame);
}

void MiniDaemon::send_slab(std::uint32_t slab, const UniqueFd& memory) {
  const std::lock_guard lock(mutex_);
  wire::MapSlab frame;
  frame.slab = slab;
  frame.bytes = kSlabBytes.size();
  const int fds[] = {memory.get()};
  must(session_->connection.send(wire::seal(frame), fds));
}

void MiniDaemon::send_short_slab(std::uint32_t slab) {
  const std::lock_guard lock(mutex_);
  const UniqueFd file = must(shm::create_memfd("test-slab", kSlotBytes));
  wire::MapSlab frame;
  frame.slab = slab;
  frame.bytes = kSlabBytes.size();
  const int fds[] = {file.get()};
  must(session_->connection.send(wire::seal(frame), fds));
}

shm::SharedMapping MiniDaemon::send(wire::MapSlab frame) {
  const UniqueFd file = must(shm::create_memfd("test-slab", kSlabBytes));
  frame.bytes = kSlabBytes.size();
  const int fds[] = {file.get()};
  must(session_->connection.send(wire::seal(frame), fds));
  return must(shm::SharedMapping::map(file.get(), kSlabBytes, shm::Access::kReadWrite));
}

void MiniDaemon::ask_unmap(std::uint32_t slab) {
  const std::lock_guard lock(mutex_);
  wire::UnmapSlab frame;
  frame.notice.slab = slab;
  must(session_->connection.send(wire::seal(frame)));
}

}  // namespace kvd::test
