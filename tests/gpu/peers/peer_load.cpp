// The commands of a peer that measure, or wait where another process writes.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "tests/gpu/peers/peer_state.hpp"
#include "tests/gpu/slots.hpp"
#include "tests/integration/cuda/channel.hpp"

namespace kvd::gpu {
namespace {

using Kernel = Gpu::Kernel;

std::string numbers(std::initializer_list<double> values) {
  std::string text;
  for (const double value : values) text += (text.empty() ? "" : " ") + std::to_string(value);
  return text;
}

/// Runs `step` for `seconds`; answers p50, p99 and the longest in microseconds, and how many.
template <class Step>
Result<Answer> timed(double seconds, Step step) {
  std::vector<double> samples;
  const double end = now_s() + seconds;
  do {
    const double start = now_s();
    KVD_TRY(step());
    samples.push_back((now_s() - start) * 1e6);
  } while (now_s() < end || samples.size() < 5);
  return Answer{numbers({percentile(samples, 0.5), percentile(samples, 0.99),
                         percentile(samples, 1.0), static_cast<double>(samples.size())}),
                {}};
}

// "steps MICROSECONDS MILLISECONDS": kernels of about that length that read device memory with all
// SMs, one after the other, as the steps of a decode.
Result<Answer> steps(PeerState& peer, Words& words, std::vector<UniqueFd>&) {
  const auto length = static_cast<double>(words.number());
  const double seconds = static_cast<double>(words.number()) / 1e3;
  const Bytes bytes = driver_is_fake() ? peer.gpu->grain() : kMiB * 128;  // more than the L2 holds
  if (!peer.slab) {
    KVD_ASSIGN_OR_RETURN(GpuSlab slab, GpuSlab::make(*peer.gpu, bytes));
    peer.slab.emplace(std::move(slab));
  }
  const auto read = [&](std::uint64_t rounds, Bytes of) -> Status {
    KVD_TRY(peer.gpu->launch(Kernel::kRead, peer.gpu->stream().get(), peer.slab->address(), of,
                             rounds));
    return peer.gpu->finish();
  };
  KVD_TRY(read(20, bytes));
  const double start = now_s();
  KVD_TRY(read(20, bytes));
  const double round_us = (now_s() - start) * 1e6 / 20;
  // A step shorter than one round reads a part of the memory.
  const double share = std::min(1.0, length / round_us);
  const Bytes of(std::max<std::int64_t>(
      4096, static_cast<std::int64_t>(share * static_cast<double>(bytes.value)) / 4096 * 4096));
  const auto rounds = static_cast<std::uint64_t>(std::max(1.0, length / round_us));
  return timed(seconds, [&] { return read(rounds, of); });
}

// "small MILLISECONDS BYTES": copies to the device, 4 KiB as an engine's input ids are.
Result<Answer> small(PeerState& peer, Words& words, std::vector<UniqueFd>&) {
  const double seconds = static_cast<double>(words.number()) / 1e3;
  const Bytes size(static_cast<std::int64_t>(words.number()));
  KVD_ASSIGN_OR_RETURN(PinnedMemory host, PinnedMemory::make(*peer.gpu, size));
  KVD_ASSIGN_OR_RETURN(GpuSlab slab, GpuSlab::make(*peer.gpu, peer.gpu->grain()));
  return timed(seconds, [&]() -> Status {
    KVD_TRY(peer.gpu->check(peer.gpu->driver().memcpy_htod_async(
                                slab.address(), host.data(), size.size(), peer.gpu->stream().get()),
                            "a small copy"));
    return peer.gpu->finish();
  });
}

// "watch MILLISECONDS": what a neighbour does all the time, a question and a launch.
Result<Answer> watch(PeerState& peer, Words& words, std::vector<UniqueFd>&) {
  const double seconds = static_cast<double>(words.number()) / 1e3;
  if (!peer.slab) {
    KVD_ASSIGN_OR_RETURN(GpuSlab slab, GpuSlab::make(*peer.gpu, peer.gpu->grain()));
    peer.slab.emplace(std::move(slab));
  }
  return timed(seconds, [&]() -> Status {
    KVD_TRY(peer.gpu->free_memory());
    KVD_TRY(peer.gpu->launch(Kernel::kRead, peer.gpu->stream().get(), peer.slab->address(),
                             Bytes(4096), 1));
    return peer.gpu->finish();
  });
}

// "paint LEAVE SLAB VALUE LIMIT": fills device memory with a value, in slabs, but for LEAVE bytes;
// with LIMIT not more than that. Answers how many bytes.
Result<Answer> paint(PeerState& peer, Words& words, std::vector<UniqueFd>&) {
  const Bytes leave(static_cast<std::int64_t>(words.number()));
  const Bytes slab_bytes(static_cast<std::int64_t>(words.number()));
  const auto value = static_cast<unsigned>(words.number());
  const auto limit = static_cast<std::int64_t>(words.number());
  Bytes painted;
  for (;;) {
    KVD_ASSIGN_OR_RETURN(const Bytes free, peer.gpu->free_memory());
    if (free < leave + slab_bytes || painted + slab_bytes > Bytes(limit)) break;
    auto slab = GpuSlab::make(*peer.gpu, slab_bytes);
    if (!slab.ok()) break;
    KVD_TRY(peer.gpu->check(
        peer.gpu->driver().memset_d32_async(slab->address(), value, slab_bytes.size() / 4,
                                            peer.gpu->stream().get()),
        "painting"));
    peer.painted.push_back(std::move(slab).value());
    painted += slab_bytes;
  }
  KVD_TRY(peer.gpu->finish());
  return Answer{std::to_string(painted.value), {}};
}

// "attach COUNT BYTES": takes COUNT descriptors of slabs from the messages that follow, a few in
// each, and maps them side by side. Answers the seconds from the first message to the last grant.
Result<Answer> attach(PeerState& peer, Words& words, std::vector<UniqueFd>&) {
  const std::uint64_t count = words.number();
  const Bytes bytes(static_cast<std::int64_t>(words.number()));
  const Gpu& gpu = *peer.gpu;
  tests::send_message(peer.socket, "ok ready");
  std::optional<double> start;
  KVD_ASSIGN_OR_RETURN(
      cuda::AddressRange range,
      cuda::AddressRange::reserve(gpu.driver(), bytes * static_cast<std::int64_t>(count)));
  std::vector<cuda::Mapping> mappings;
  while (mappings.size() < count) {
    const tests::Message message = tests::receive_message(peer.socket);
    if (message.fds.empty()) return make_error(ErrorCode::kPeerGone, "no descriptors came");
    if (!start) start = now_s();
    for (const UniqueFd& fd : message.fds) {
      KVD_ASSIGN_OR_RETURN(const cuda::PhysicalMemory memory,
                           cuda::PhysicalMemory::import_fd(gpu.driver(), fd.get(), bytes));
      KVD_ASSIGN_OR_RETURN(
          cuda::Mapping mapping,
          cuda::Mapping::map(range.address() + mappings.size() * bytes.size(), memory));
      mappings.push_back(std::move(mapping));
    }
  }
  KVD_TRY(cuda::grant_access(gpu.driver(), range.address(), range.size(), gpu.device().handle,
                             cuda::Access::kReadWrite));
  const double seconds = now_s() - *start;
  // The first word of each slab is the pattern's, or this is other memory than was sent.
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    KVD_ASSIGN_OR_RETURN(
        const std::uint64_t differ,
        gpu.count(Kernel::kCheck, range.address() + i * bytes.size(), Bytes(4096), i + 1));
    wrong += differ;
  }
  return Answer{numbers({seconds, static_cast<double>(wrong)}), {}};
}

// "page" with a descriptor: the slots (slots.hpp).
Result<Answer> page(PeerState& peer, Words&, std::vector<UniqueFd>& fds) {
  if (fds.empty()) return make_error(ErrorCode::kInvalidArgument, "no descriptor came");
  KVD_ASSIGN_OR_RETURN(PinnedMemory memory,
                       PinnedMemory::adopt(*peer.gpu, fds[0].get(), Bytes(4096)));
  peer.page.emplace(std::move(memory));
  return Answer{};
}

// "event HEX": opens another process's event.
Result<Answer> event(PeerState& peer, Words& words, std::vector<UniqueFd>&) {
  KVD_ASSIGN_OR_RETURN(peer.event, open_event(*peer.gpu, words.text()));
  return Answer{};
}

// "arm host|device|event SEQUENCE": a stream that waits and then writes the answer slot.
Result<Answer> arm(PeerState& peer, Words& words, std::vector<UniqueFd>&) {
  const std::string how = words.text();
  const std::uint64_t sequence = words.number();
  const Gpu& gpu = *peer.gpu;
  CUstream stream = gpu.stream().get();
  if (how == "event") {
    KVD_TRY(gpu.check(gpu.driver().stream_wait_event(stream, peer.event, 0), "an event's wait"));
  } else {
    const CUdeviceptr slot =
        how == "host" ? slot_address(*peer.page, Slot::kSignal) : peer.slab->address();
    KVD_TRY(queue_wait(gpu, stream, slot, sequence));
  }
  KVD_TRY(queue_write(gpu, stream, slot_address(*peer.page, Slot::kAnswer), sequence));
  return Answer{};
}

}  // namespace

std::map<std::string, Command> load_commands() {
  return {{"steps", steps},   {"small", small}, {"watch", watch}, {"paint", paint},
          {"attach", attach}, {"page", page},   {"event", event}, {"arm", arm}};
}

bool still_connected(int socket) {
  pollfd state{socket, POLLIN, 0};
  if (::poll(&state, 1, 0) < 0) return false;
  char byte = 0;
  return (state.revents & POLLHUP) == 0 && ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

}  // namespace kvd::gpu
