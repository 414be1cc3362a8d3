// What a peer can be told; see Peer. Answers are "ok …" or an error's text.
#include <sys/prctl.h>

#include <charconv>
#include <csignal>
#include <map>
#include <sstream>

#include "tests/gpu/lab.hpp"
#include "tests/gpu/peers/peer.hpp"
#include "tests/gpu/peers/peer_state.hpp"
#include "tests/integration/cuda/channel.hpp"

namespace kvd::gpu {
namespace {

using Kernel = Gpu::Kernel;

// "slab BYTES SALT": makes a slab with a pattern; answers its descriptor.
Result<Answer> make_slab(PeerState& peer, Words& words, std::vector<UniqueFd>&) {
  const std::uint64_t bytes = words.number(), salt = words.number();
  KVD_ASSIGN_OR_RETURN(GpuSlab slab,
                       GpuSlab::make(*peer.gpu, Bytes(static_cast<std::int64_t>(bytes))));
  peer.slab.emplace(std::move(slab));
  KVD_TRY(peer.gpu->launch(Kernel::kFill, peer.gpu->stream().get(), peer.slab->address(),
                           peer.slab->size(), salt));
  KVD_TRY(peer.gpu->finish());
  KVD_ASSIGN_OR_RETURN(UniqueFd fd, peer.slab->memory().export_fd());
  return Answer{{}, std::move(fd)};
}

// "import BYTES r|w" with a descriptor.
Result<Answer> import_slab(PeerState& peer, Words& words, std::vector<UniqueFd>& fds) {
  const std::uint64_t bytes = words.number();
  const auto access = words.text() == "r" ? cuda::Access::kRead : cuda::Access::kReadWrite;
  if (fds.empty()) return make_error(ErrorCode::kInvalidArgument, "no descriptor came");
  peer.slab.reset();
  KVD_ASSIGN_OR_RETURN(
      GpuSlab slab,
      GpuSlab::import(*peer.gpu, fds[0].get(), Bytes(static_cast<std::int64_t>(bytes)), access));
  peer.slab.emplace(std::move(slab));
  return Answer{};
}

// "export": the slab's descriptor, whoever made it.
Result<Answer> export_slab(PeerState& peer, Words&, std::vector<UniqueFd>&) {
  KVD_ASSIGN_OR_RETURN(UniqueFd fd, peer.slab->memory().export_fd());
  return Answer{{}, std::move(fd)};
}

// "grant": write access, whatever the mapping had.
Result<Answer> grant(PeerState& peer, Words&, std::vector<UniqueFd>&) {
  KVD_TRY(cuda::grant_access(peer.gpu->driver(), peer.slab->address(), peer.slab->size(),
                             peer.gpu->device().handle, cuda::Access::kReadWrite));
  return Answer{};
}

// "check SALT": how many words differ from the pattern.
Result<Answer> check(PeerState& peer, Words& words, std::vector<UniqueFd>&) {
  KVD_ASSIGN_OR_RETURN(
      const std::uint64_t wrong,
      peer.gpu->count(Kernel::kCheck, peer.slab->address(), peer.slab->size(), words.number()));
  return Answer{std::to_string(wrong), {}};
}

/// Runs kFill and answers what came of it, as the driver's number.
Result<Answer> fill_at(PeerState& peer, CUdeviceptr at, Bytes size, std::uint64_t salt) {
  KVD_TRY(peer.gpu->launch(Kernel::kFill, peer.gpu->stream().get(), at, size, salt));
  CUresult result = CUDA_ERROR_NOT_READY;
  for (const double end = now_s() + 20; result == CUDA_ERROR_NOT_READY && now_s() < end;) {
    result = peer.gpu->driver().stream_query(peer.gpu->stream().get());
  }
  return Answer{std::to_string(static_cast<int>(result)), {}};
}

// "fill SALT"
Result<Answer> fill(PeerState& peer, Words& words, std::vector<UniqueFd>&) {
  return fill_at(peer, peer.slab->address(), peer.slab->size(), words.number());
}

// "fault": writes where nothing is.
Result<Answer> fault(PeerState& peer, Words&, std::vector<UniqueFd>&) {
  return fill_at(peer, CUdeviceptr{0x1000}, Bytes(4096), 1);
}

// "rewrite ROUNDS": starts to write the slab over and over; does not wait.
Result<Answer> rewrite(PeerState& peer, Words& words, std::vector<UniqueFd>&) {
  KVD_TRY(peer.gpu->launch(Kernel::kRewrite, peer.gpu->stream().get(), peer.slab->address(),
                           peer.slab->size(), words.number()));
  return Answer{};
}

// "context": CUDA started and one copy made; answers nothing.
Result<Answer> context(PeerState& peer, Words&, std::vector<UniqueFd>&) {
  KVD_ASSIGN_OR_RETURN(PinnedMemory host, PinnedMemory::make(*peer.gpu, Bytes(4096)));
  KVD_ASSIGN_OR_RETURN(GpuSlab slab, GpuSlab::make(*peer.gpu, peer.gpu->grain()));
  KVD_TRY(peer.gpu->check(peer.gpu->driver().memcpy_htod_async(slab.address(), host.data(), 4096,
                                                               peer.gpu->stream().get()),
                          "the first copy"));
  KVD_TRY(peer.gpu->finish());
  return Answer{};
}

const std::map<std::string, Command>& commands() {
  static const std::map<std::string, Command> kAll = [] {
    std::map<std::string, Command> all = {
        {"slab", make_slab}, {"import", import_slab}, {"export", export_slab},
        {"grant", grant},    {"check", check},        {"fill", fill},
        {"fault", fault},    {"rewrite", rewrite},    {"context", context}};
    all.merge(load_commands());
    all.merge(call_commands());
    return all;
  }();
  return kAll;
}

Result<Answer> obey(PeerState& peer, const std::string& text, std::vector<UniqueFd>& fds) {
  Words words(text);
  const auto command = commands().find(words.text());
  if (command == commands().end()) {
    return make_error(ErrorCode::kInvalidArgument, "no such command: " + text);
  }
  if (!peer.gpu) {
    KVD_ASSIGN_OR_RETURN(peer.gpu, Gpu::open());
  }
  return command->second(peer, words, fds);
}

}  // namespace

int run_peer(int socket) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  PeerState peer;
  peer.socket = socket;
  for (;;) {
    tests::Message message = tests::receive_message(socket);
    if (message.text.empty()) {
      if (!still_connected(socket)) return 0;
      continue;
    }
    const Result<Answer> answer = obey(peer, message.text, message.fds);
    std::string text = answer.ok() ? "ok " + answer->text : answer.error().to_string();
    text.resize(std::min<std::size_t>(text.size(), 250));  // what the other end takes
    std::vector<int> fds;
    if (answer.ok() && answer->fd.valid()) fds.push_back(answer->fd.get());
    if (!tests::send_message(socket, text, fds)) return 0;
  }
}

}  // namespace kvd::gpu
