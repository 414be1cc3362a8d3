// E18, E20: which calls wait for a stream that is blocked, and which end a capture under way.
#include "tests/gpu/experiments/experiments.hpp"
#include "tests/gpu/lab.hpp"
#include "tests/gpu/peers/peer.hpp"
#include "tests/gpu/slots.hpp"

namespace kvd::gpu {
namespace {

/// How long a call may take beside a blocked stream before it counts as waiting for it.
double watchdog_s(const Lab& lab) { return lab.quick ? 0.3 : 2; }

struct Named {
  const char* name;
  const char* text;
};
constexpr Named kBlocked[] = {{"create", "cuMemCreate"},
                              {"map", "cuMemMap"},
                              {"grant", "cuMemSetAccess"},
                              {"unmap", "cuMemUnmap"},
                              {"register", "cuMemHostRegister"},
                              {"unregister", "cuMemHostUnregister"},
                              {"stream", "cuStreamCreate"},
                              {"event", "cuEventCreate"},
                              {"query", "cuEventQuery"},
                              {"module", "cuModuleLoadData"},
                              {"info", "cuMemGetInfo"},
                              {"launches", "2000 launches behind the wait"},
                              {"synchronize", "control: cuCtxSynchronize"}};
constexpr Named kCaptured[] = {
    {"register", "cuMemHostRegister"}, {"unregister", "cuMemHostUnregister"},
    {"create", "cuMemCreate"},         {"map", "cuMemMap"},
    {"grant", "cuMemSetAccess"},       {"unmap", "cuMemUnmap"},
    {"query", "cuEventQuery"},         {"synchronize", "cuCtxSynchronize"}};
constexpr const char* kModes[] = {"global", "thread-local", "relaxed"};

/// Whether the call waited until its stream was released.
Result<bool> beside_blocked(const Lab& lab, const Peer& peer, const PinnedMemory& page,
                            const Named& call, std::uint64_t value) {
  KVD_TRY(peer.tell("blocked " + std::string(call.name) + " " + std::to_string(value)));
  const bool waited = !peer.answered(watchdog_s(lab));
  store(slot_word(page, Slot::kSignal), value);
  KVD_ASSIGN_OR_RETURN(const Reply reply, peer.reply());
  KVD_ASSIGN_OR_RETURN(const double us, reply.number(0));
  KVD_TRY(peer.ask("drained"));
  lab.out.figure(std::string(call.text) + " beside a blocked stream", us, "us");
  if (waited) lab.out.note(std::string(call.text) + " waits for a stream that is blocked");
  return waited;
}

/// A capture beside the call, in a thread that is relaxed or is not. False: the driver has none.
Result<bool> beside_capture(const Lab& lab, const Peer& peer, const Named& call, int mode,
                            bool relaxed) {
  const Result<Reply> reply = peer.ask("capture " + std::string(call.name) + " " +
                                       std::to_string(mode) + (relaxed ? " 1" : " 0"));
  if (!reply.ok() && reply.error().message.find("captures nothing") != std::string::npos) {
    return false;
  }
  if (!reply.ok()) return reply.error();
  KVD_ASSIGN_OR_RETURN(const double ended, reply->number(1));
  const std::string what = std::string(call.text) + (relaxed ? " of a relaxed thread" : "") +
                           " beside a " + kModes[mode] + " capture";
  lab.out.figure(what + ": the call works", reply->words[0] == "1" ? 1 : 0, "");
  lab.out.figure(what + ": end of the capture", ended, "CUresult");
  const bool waits = std::string(call.name) == "synchronize";
  if (relaxed && !waits) lab.out.require(what + " leaves it alive", ended == 0);
  return true;
}

}  // namespace

Status waiting_calls(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  KVD_ASSIGN_OR_RETURN(const PinnedMemory page, PinnedMemory::make(*gpu, Bytes(4096)));
  KVD_ASSIGN_OR_RETURN(const Peer peer, Peer::start());
  KVD_TRY(peer.ask("page", {page.fd()}));
  std::uint64_t value = 0;
  bool control = false;
  for (const Named& call : kBlocked) {
    KVD_ASSIGN_OR_RETURN(control, beside_blocked(lab, peer, page, call, ++value));
  }
  lab.out.require("control: waiting for the context waits for the blocked stream", control);
  lab.out.require("every call ended once the stream was released", true);
  return {};
}

Status capture(const Lab& lab) {
  for (const Named& call : kCaptured) {
    KVD_ASSIGN_OR_RETURN(const Peer peer, Peer::start());
    for (int run = 0; run < 6; ++run) {
      KVD_ASSIGN_OR_RETURN(const bool captures,
                           beside_capture(lab, peer, call, run / 2, run % 2 == 1));
      if (captures) continue;
      lab.out.skip("this driver has no stream capture");
      return {};
    }
  }
  return {};
}

}  // namespace kvd::gpu
