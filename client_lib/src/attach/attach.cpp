#include "client_lib/src/attach/attach.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>
#include <utility>
#include <variant>

#include "ipc/transport/ring.hpp"
#include "ipc/vocabulary/hex.hpp"
#include "ipc/wire/attach_codec.hpp"

namespace kvd::client {
namespace {

constexpr const char* kSystemEndpoint = "/run/kvd/attach.sock";

wire::Hello hello_of(const Introduction& introduction) {
  wire::Hello hello;
  hello.transport = static_cast<std::uint32_t>(introduction.transport);
  hello.shape = introduction.shape;
  wire::set_text(hello.name, introduction.name);
  hello.previous_boot = introduction.previous_boot.bytes;
  hello.orphaned_bytes = introduction.orphaned.size();
  hello.slab_kinds = introduction.slab_kinds;
  hello.abilities = introduction.streams_layers ? wire::kStreamsLayers : 0;
  if (introduction.group) hello.abilities |= wire::kJoinsGroup;
  return hello;
}

Result<wire::Welcome> welcome_of(const transport::AttachFrame& frame) {
  KVD_ASSIGN_OR_RETURN(const auto message, wire::decode_attach(frame.bytes()));
  if (const auto* refused = std::get_if<wire::Refused>(&message)) {
    return make_error(static_cast<ErrorCode>(refused->code),
                      std::string(wire::text(refused->message)));
  }
  if (const auto* welcome = std::get_if<wire::Welcome>(&message)) return *welcome;
  return make_error(ErrorCode::kInternal, "the daemon answered the attach with another message");
}

Bytes bytes_of(std::uint64_t count) { return Bytes(static_cast<std::int64_t>(count)); }

/// Duplicates the descriptor of the daemon's bell, which is the last one that came.
Result<UniqueFd> bell_of(const transport::AttachFrame& frame) {
  UniqueFd bell(::fcntl(frame.fds.back().get(), F_DUPFD_CLOEXEC, 0));
  if (bell.valid()) return bell;
  return make_error(ErrorCode::kUnavailable, "no file descriptor left: raise RLIMIT_NOFILE");
}

/// Commands go over the address in the welcome, or over the ring that came with it.
Result<std::unique_ptr<transport::CommandClient>> commands_of(wire::TransportKind transport,
                                                              transport::AttachFrame& frame,
                                                              const wire::Welcome& welcome) {
  if (transport == wire::TransportKind::kZmq) {
    return transport::zmq_command_client(std::string(wire::text(welcome.command_endpoint)));
  }
  UniqueFd* const ring = &frame.fds[frame.fds.size() - transport::kRingFds];
  return transport::ring_command_client(std::move(ring[0]), std::move(ring[1]));
}

std::size_t fds_of(wire::TransportKind transport, const wire::Welcome& welcome) {
  const std::size_t pages = welcome.table_bytes > 0 ? 2 : 1;
  if (transport == wire::TransportKind::kRing) return pages + transport::kRingFds;
  return pages + (welcome.class_id != 0 ? 1 : 0);
}

Error unusable(const wire::Welcome& welcome, const std::string& why) {
  return make_error(ErrorCode::kUnsupported, "this kvd lends memory of GPU " +
                                                 uuid_text(welcome.device_uuid) +
                                                 ", which this process cannot use: " + why);
}

/// The GPU that the welcome names; none where slabs are host memory.
Result<std::shared_ptr<Gpu>> gpu_of(const Introduction& introduction,
                                    const wire::Welcome& welcome) {
  const auto kind = static_cast<wire::SlabKind>(welcome.slab_kind);
  if ((introduction.slab_kinds & wire::slab_kind_bit(kind)) == 0) {
    return make_error(ErrorCode::kInternal,
                      "the daemon lends a kind of memory that this engine did not ask for");
  }
  if (kind != wire::SlabKind::kCudaVmm || !introduction.maps) return std::shared_ptr<Gpu>();
  if (introduction.device && *introduction.device != welcome.device_uuid) {
    return unusable(welcome, "the session before was on GPU " + uuid_text(*introduction.device) +
                                 "; close the client and open another one");
  }
  auto gpu = Gpu::find(welcome.device_uuid);
  if (gpu.ok()) return gpu;
  return unusable(welcome, gpu.error().message +
                               "; let this process see that GPU (CUDA_VISIBLE_DEVICES, the "
                               "container's devices) or attach to another kvd");
}

Result<Admission> admission_of(const Introduction& introduction,
                               transport::AttachConnection connection,
                               transport::AttachFrame& frame, Nanoseconds left) {
  KVD_ASSIGN_OR_RETURN(const auto welcome, welcome_of(frame));
  if (frame.fds.size() != fds_of(introduction.transport, welcome)) {
    return make_error(ErrorCode::kInternal, "the daemon's welcome came without its memory");
  }
  KVD_ASSIGN_OR_RETURN(auto page, shm::MappedClientPage::map(frame.fds[0].get(),
                                                             bytes_of(welcome.client_page_bytes)));
  auto gpu = gpu_of(introduction, welcome);
  if (!gpu.ok()) {
    wire::Goodbye goodbye;  // already admitted, so leave in order; nothing is mapped
    (void)connection.send(wire::seal(goodbye), {}, left);
    return gpu.error();
  }
  Admission admission{std::move(connection),
                      welcome,
                      std::move(page),
                      std::nullopt,
                      std::move(*gpu),
                      {},
                      nullptr,
                      introduction.transport,
                      introduction.group.has_value(),
                      introduction.maps};
  if (welcome.class_id != 0) {
    KVD_ASSIGN_OR_RETURN(admission.bell, bell_of(frame));
  }
  KVD_ASSIGN_OR_RETURN(admission.commands, commands_of(introduction.transport, frame, welcome));
  if (welcome.table_bytes > 0) {
    KVD_ASSIGN_OR_RETURN(admission.table,
                         shm::TableReader::map(frame.fds[1].get(), bytes_of(welcome.table_bytes)));
  }
  return admission;
}

/// Errors: PeerGone where the daemon hung up; otherwise as attach().
Result<Admission> attach_once(const Introduction& introduction, TimePoint deadline,
                              const Clock& clock) {
  KVD_ASSIGN_OR_RETURN(auto connection,
                       transport::connect_attach(introduction.endpoint, deadline - clock.now()));
  wire::Hello hello = hello_of(introduction);
  KVD_TRY(connection.send(wire::seal(hello), {}, deadline - clock.now()));
  if (introduction.group) {
    wire::JoinGroup join = *introduction.group;
    const Status sent = connection.send(wire::seal(join), {}, deadline - clock.now());
    // A daemon that hung up after the hello gives the reason in what it sent before.
    if (!sent.ok() && sent.code() != ErrorCode::kPeerGone) return sent.error();
  }
  KVD_ASSIGN_OR_RETURN(auto frame, connection.receive(deadline - clock.now()));
  return admission_of(introduction, std::move(connection), frame, deadline - clock.now());
}

}  // namespace

std::string resolve_endpoint(const std::string& chosen) {
  if (!chosen.empty()) return chosen;
  if (const char* set = std::getenv("KVD_ENDPOINT"); set != nullptr && *set != '\0') return set;
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (::geteuid() == 0 || runtime == nullptr || *runtime != '/') return kSystemEndpoint;
  // A user's own daemon goes first; without one the machine's daemon is meant.
  std::string own = std::string(runtime) + "/kvd/attach.sock";
  struct stat info {};
  return ::stat(own.c_str(), &info) == 0 ? own : kSystemEndpoint;
}

Result<Admission> attach(const Introduction& introduction, TimePoint deadline, const Clock& clock) {
  // The pause is shorter than a daemon's restart, and it spreads out engines that were refused
  // together.
  std::uniform_int_distribution<int> milliseconds(5, 50);
  std::minstd_rand random(std::random_device{}());
  bool hung_up = false;
  while (true) {
    auto admission = attach_once(introduction, deadline, clock);
    const ErrorCode code = admission.ok() ? ErrorCode::kOk : admission.error().code;
    hung_up = hung_up || code == ErrorCode::kPeerGone;
    const bool late = hung_up && code == ErrorCode::kDeadlineExceeded;
    if (code != ErrorCode::kPeerGone && !late) return admission;
    const Nanoseconds pause = std::chrono::milliseconds(milliseconds(random));
    if (late || clock.now() + pause >= deadline) {
      return make_error(ErrorCode::kUnavailable,
                        "kvd hung up before it answered: it ends, or too many attach at once; "
                        "attach again");
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace kvd::client
