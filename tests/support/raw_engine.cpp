#include "tests/support/raw_engine.hpp"

#include <fcntl.h>
#include <pthread.h>

#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

Error broken(const char* what) { return make_error(ErrorCode::kInternal, what); }

}  // namespace

Result<RawEngine> RawEngine::attach(const std::string& endpoint, const std::string& name,
                                    const wire::ModelShape& shape, wire::TransportKind transport) {
  KVD_ASSIGN_OR_RETURN(auto connection, transport::connect_attach(endpoint, kPatience));
  wire::Hello hello;
  hello.shape = shape;
  hello.transport = static_cast<std::uint32_t>(transport);
  wire::set_text(hello.name, name);
  KVD_TRY(connection.send(wire::seal(hello)));
  KVD_ASSIGN_OR_RETURN(auto frame, connection.receive(kPatience));
  KVD_ASSIGN_OR_RETURN(const auto message, wire::decode_attach(frame.bytes()));
  if (const auto* refused = std::get_if<wire::Refused>(&message)) {
    return make_error(static_cast<ErrorCode>(refused->code),
                      std::string(wire::text(refused->message)));
  }
  const auto* welcome = std::get_if<wire::Welcome>(&message);
  const bool ring = transport == wire::TransportKind::kRing;
  const std::size_t bells = shape.layers > 0 ? 1 : 0;
  if (!welcome || frame.fds.size() != 2 + (ring ? transport::kRingFds : bells)) {
    return broken("no welcome with its fds");
  }
  KVD_ASSIGN_OR_RETURN(
      auto page, shm::MappedClientPage::map(
                     frame.fds[0].get(), Bytes(static_cast<std::int64_t>(shm::kClientPageBytes))));
  RawEngine engine(std::move(connection), *welcome, std::move(page));
  KVD_TRY(engine.open_commands(frame, ring));
  return engine;
}

Status RawEngine::open_commands(transport::AttachFrame& frame, bool ring) {
  if (!ring) {
    KVD_ASSIGN_OR_RETURN(commands_, transport::zmq_command_client(
                                        std::string(wire::text(welcome_.command_endpoint))));
    return {};
  }
  KVD_ASSIGN_OR_RETURN(ring_, shm::RingMapping::map(frame.fds[2].get()));
  daemon_bell_ = UniqueFd(::fcntl(frame.fds[3].get(), F_DUPFD_CLOEXEC, 0));
  KVD_ASSIGN_OR_RETURN(
      commands_, transport::ring_command_client(std::move(frame.fds[2]), std::move(frame.fds[3])));
  return {};
}

Status RawEngine::keep() {
  KVD_TRY(page_.init_keeper());
  if (::pthread_mutex_lock(&page().keeper) != 0) return broken("the keeper mutex");
  beat();
  return {};
}

wire::Command RawEngine::command_of(const wire::CommandBody& body, std::uint64_t sequence) {
  wire::Command command;
  command.header.frame.version = welcome_.header.version;
  command.header.key = welcome_.session_key;
  command.header.generation = welcome_.generation;
  command.header.sequence = sequence;
  command.header.timeout_ns = Nanoseconds(kPatience).count();
  command.body = body;
  return command;
}

Status RawEngine::call(const wire::CommandBody& body,
                       const std::function<void(wire::CommandHeader&)>& edit) {
  wire::Command command = command_of(body, sequence_ + 1);
  if (edit) edit(command.header);
  KVD_TRY(wire::encode_command(command, frame_));
  Status status = call_bytes(frame_.bytes(), command.header.sequence);
  // A command that is refused before its number counts leaves that number due.
  const bool counted = command.header.sequence == sequence_ + 1 &&
                       status.code() != ErrorCode::kPermissionDenied &&
                       status.code() != ErrorCode::kStaleSession;
  if (counted) ++sequence_;
  return status;
}

Status RawEngine::call_bytes(std::span<const std::byte> frame, std::uint64_t sequence) {
  KVD_ASSIGN_OR_RETURN(const auto answer, commands_->call(frame, sequence, kPatience));
  KVD_ASSIGN_OR_RETURN(reply_, wire::decode_reply(answer));
  if (reply_.code() == ErrorCode::kOk) return {};
  return make_error(reply_.code(), std::string(reply_.message));
}

std::span<const std::byte> RawEngine::next_frame(const wire::CommandBody& body) {
  KVD_CHECK(wire::encode_command(command_of(body, ++sequence_), frame_).ok(), "a frame of ours");
  return frame_.bytes();
}

void RawEngine::acknowledge_slabs() {
  for (;;) {
    const auto frame = connection_.receive();
    if (!frame.ok()) return;
    const auto message = wire::decode_attach(frame->bytes());
    const auto* slab = message.ok() ? std::get_if<wire::MapSlab>(&*message) : nullptr;
    if (!slab) continue;
    wire::SlabMapped answer;
    answer.notice.region = slab->region;
    answer.notice.slab = slab->slab;
    (void)connection_.send(wire::seal(answer), {}, kPatience).ok();
  }
}

AttachAnswer say(const std::string& endpoint, std::span<const std::byte> frame) {
  auto connection = transport::connect_attach(endpoint, kPatience);
  if (!connection.ok()) return {connection.error().code, connection.error().message};
  if (!connection->send(frame).ok()) return {ErrorCode::kPeerGone, "the frame was not taken"};
  const auto answer = connection->receive(kPatience);
  if (!answer.ok()) return {answer.error().code, answer.error().message};
  const auto message = wire::decode_attach(answer->bytes());
  if (!message.ok()) return {ErrorCode::kInternal, message.error().message};
  const auto* refused = std::get_if<wire::Refused>(&*message);
  if (!refused) return {};
  return {static_cast<ErrorCode>(refused->code), std::string(wire::text(refused->message))};
}

}  // namespace kvd::test
