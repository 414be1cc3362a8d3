// E3, E4, E10, E11, E17: memory shared by descriptors when processes die or misbehave.
#include <cstring>
#include <fstream>

#include "tests/gpu/experiments/experiments.hpp"
#include "tests/gpu/lab.hpp"
#include "tests/gpu/machine_facts.hpp"
#include "tests/gpu/peers/peer.hpp"

namespace kvd::gpu {
namespace {

using Kernel = Gpu::Kernel;

Bytes slab_size(const Lab& lab) { return lab.quick ? kMiB * 2 : kMiB * 256; }

std::string command(const std::string& name, Bytes size, const std::string& last) {
  return name + " " + std::to_string(size.value) + " " + last;
}

/// A peer with a slab of pattern `salt`, and the slab's descriptor.
struct Exporter {
  Peer peer;
  UniqueFd fd;
};
Result<Exporter> start_exporter(Bytes size, int salt) {
  KVD_ASSIGN_OR_RETURN(Peer peer, Peer::start());
  KVD_ASSIGN_OR_RETURN(Reply reply, peer.ask(command("slab", size, std::to_string(salt))));
  if (reply.fds.empty()) return make_error(ErrorCode::kInternal, "an exporter sent no descriptor");
  return Exporter{std::move(peer), std::move(reply.fds[0])};
}

/// Checks the slab over and over for `seconds`, killing the exporter after a tenth of it.
/// Returns the rounds that found a wrong word.
Result<std::uint64_t> check_while_killed(const Gpu& gpu, const GpuSlab& slab, Exporter& exporter,
                                         std::uint64_t salt, double seconds) {
  const double start = now_s();
  bool alive = true;
  std::uint64_t wrong = 0;
  do {
    if (alive && now_s() - start > seconds / 10) {
      exporter.fd.reset();
      exporter.peer.kill();
      alive = false;
    }
    KVD_ASSIGN_OR_RETURN(const std::uint64_t differ,
                         gpu.count(Kernel::kCheck, slab.address(), slab.size(), salt));
    wrong += differ != 0 ? 1 : 0;
  } while (alive || now_s() - start < seconds);
  return wrong;
}

Result<double> wrong_words(const Peer& peer, int salt) {
  KVD_ASSIGN_OR_RETURN(const Reply reply, peer.ask("check " + std::to_string(salt)));
  return reply.number(0);
}

/// The slab's bytes, as the host sees them.
Status snapshot(const Gpu& gpu, const GpuSlab& slab, const PinnedMemory& into) {
  KVD_TRY(gpu.check(gpu.driver().memcpy_dtoh_async(into.data(), slab.address(), slab.size().size(),
                                                   gpu.stream().get()),
                    "reading a slab"));
  return gpu.finish();
}

/// One death: whether a byte changed after the writer's pidfd was readable, and whether it wrote at
/// all before.
struct Death {
  bool changed = false, wrote = false;
};
Result<Death> kill_a_writer(const Lab& lab, const Gpu& gpu, const GpuSlab& slab,
                            const PinnedMemory& first, const PinnedMemory& later) {
  KVD_TRY(gpu.launch(Kernel::kFill, gpu.stream().get(), slab.address(), slab.size(), 9));
  KVD_TRY(gpu.finish());
  KVD_ASSIGN_OR_RETURN(const UniqueFd fd, slab.memory().export_fd());
  KVD_ASSIGN_OR_RETURN(Peer writer, Peer::start());
  KVD_TRY(writer.ask(command("import", slab.size(), "w"), {fd.get()}));
  KVD_TRY(writer.ask("rewrite " + std::string(lab.fake ? "50" : "4000000")));
  Death death;
  for (const double end = now_s() + 5; !death.wrote && now_s() < end;) {
    KVD_ASSIGN_OR_RETURN(const std::uint64_t differ,
                         gpu.count(Kernel::kCheck, slab.address(), slab.size(), 9));
    death.wrote = differ != 0;
  }
  writer.kill();
  KVD_TRY(snapshot(gpu, slab, first));
  const double end = now_s() + (lab.quick ? 0.05 : 2);
  do {
    KVD_TRY(snapshot(gpu, slab, later));
    death.changed |= std::memcmp(first.data(), later.data(), slab.size().size()) != 0;
  } while (now_s() < end);
  return death;
}

void note_kernel_log(const Lab& lab) {
  std::ifstream log("/dev/kmsg");
  lab.out.note(log ? "read the kernel's log for Xid lines by hand: dmesg | grep Xid"
                   : "the kernel's log cannot be read by this user: Xid lines not looked for");
}

}  // namespace

Status exporter_killed(const Lab& lab) {
  const Bytes size = slab_size(lab);
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  const double seconds = lab.quick ? 0.3 : 12;
  KVD_ASSIGN_OR_RETURN(Exporter exporter, start_exporter(size, 3));
  KVD_ASSIGN_OR_RETURN(const GpuSlab slab,
                       GpuSlab::import(*gpu, exporter.fd.get(), size, cuda::Access::kReadWrite));
  KVD_ASSIGN_OR_RETURN(const std::uint64_t control,
                       gpu->count(Kernel::kCheck, slab.address(), size, 4));
  lab.out.require("control: another pattern is seen as wrong", control != 0);
  KVD_ASSIGN_OR_RETURN(const std::uint64_t wrong,
                       check_while_killed(*gpu, slab, exporter, 3, seconds));
  lab.out.figure("watched", seconds, "s");
  lab.out.require("no error and every byte intact after the exporter's SIGKILL", wrong == 0);
  KVD_ASSIGN_OR_RETURN(Exporter faulty, start_exporter(size, 5));
  KVD_ASSIGN_OR_RETURN(const GpuSlab second,
                       GpuSlab::import(*gpu, faulty.fd.get(), size, cuda::Access::kReadWrite));
  KVD_ASSIGN_OR_RETURN(const Reply fault, faulty.peer.ask("fault"));
  KVD_ASSIGN_OR_RETURN(const double code, fault.number(0));
  lab.out.figure("the exporter's latched error", code, "CUresult");
  lab.out.require("the exporter's fault is an error there", code != 0);
  KVD_ASSIGN_OR_RETURN(const std::uint64_t wrong_after_fault,
                       check_while_killed(*gpu, second, faulty, 5, lab.quick ? 0.2 : 4));
  lab.out.require("the same for an exporter with a fault of its own", wrong_after_fault == 0);
  note_kernel_log(lab);
  return {};
}

Status only_a_descriptor(const Lab& lab) {
  // No CUDA in this process: nothing but the descriptor keeps the memory.
  const Bytes size = slab_size(lab);
  KVD_ASSIGN_OR_RETURN(Exporter exporter, start_exporter(size, 6));
  exporter.peer.kill();
  lab.out.note("persistence mode: " + ask_smi("persistence_mode") +
               "; setting it takes root, so only this state was tried");
  KVD_ASSIGN_OR_RETURN(const Peer importer, Peer::start());
  const Result<Reply> imported = importer.ask(command("import", size, "w"), {exporter.fd.get()});
  lab.out.require("imported again after its maker's death", imported.ok());
  if (!imported.ok()) return imported.error();
  KVD_ASSIGN_OR_RETURN(const double wrong, wrong_words(importer, 6));
  lab.out.require("every byte as it was", wrong == 0);
  KVD_ASSIGN_OR_RETURN(const double control, wrong_words(importer, 7));
  lab.out.require("control: another pattern is seen as wrong", control != 0);
  return {};
}

Status importer_killed(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  const Bytes size = lab.quick ? kMiB * 2 : kMiB * 64;
  KVD_ASSIGN_OR_RETURN(const GpuSlab slab, GpuSlab::make(*gpu, size));
  KVD_ASSIGN_OR_RETURN(const PinnedMemory first, PinnedMemory::make(*gpu, size));
  KVD_ASSIGN_OR_RETURN(const PinnedMemory later, PinnedMemory::make(*gpu, size));
  int changed = 0, wrote = 0;
  const int rounds = lab.quick ? 1 : 5;
  for (int round = 0; round < rounds; ++round) {
    KVD_ASSIGN_OR_RETURN(const Death death, kill_a_writer(lab, *gpu, slab, first, later));
    changed += death.changed ? 1 : 0;
    wrote += death.wrote ? 1 : 0;
  }
  lab.out.figure("deaths", rounds, "");
  lab.out.require("control: the writer was writing when it was killed", wrote == rounds);
  lab.out.require("no byte changed after its pidfd was readable", changed == 0);
  return {};
}

Status read_only(const Lab& lab) {
  KVD_ASSIGN_OR_RETURN(const auto gpu, Gpu::open());
  const Bytes size = kMiB * 2;
  KVD_ASSIGN_OR_RETURN(const GpuSlab slab, GpuSlab::make(*gpu, size));
  KVD_TRY(gpu->launch(Kernel::kFill, gpu->stream().get(), slab.address(), size, 1));
  KVD_TRY(gpu->finish());
  KVD_ASSIGN_OR_RETURN(const UniqueFd fd, slab.memory().export_fd());
  KVD_ASSIGN_OR_RETURN(const Peer reader, Peer::start());
  KVD_TRY(reader.ask(command("import", size, "r"), {fd.get()}));
  KVD_ASSIGN_OR_RETURN(const Reply written, reader.ask("fill 2"));
  KVD_ASSIGN_OR_RETURN(const double code, written.number(0));
  lab.out.figure("error of a write through a read-only mapping", code, "CUresult");
  lab.out.require("the write is an error in its process", code != 0);
  KVD_ASSIGN_OR_RETURN(const std::uint64_t wrong,
                       gpu->count(Kernel::kCheck, slab.address(), size, 1));
  lab.out.require("nothing was written, and this process sees no error", wrong == 0);
  KVD_ASSIGN_OR_RETURN(const Peer other, Peer::start());
  KVD_TRY(other.ask(command("import", size, "r"), {fd.get()}));
  const bool granted = other.ask("grant").ok();
  lab.out.figure("an importer may grant itself write access", granted ? 1 : 0, "");
  if (!granted) return {};
  KVD_ASSIGN_OR_RETURN(const Reply again, other.ask("fill 2"));
  KVD_ASSIGN_OR_RETURN(const double second_code, again.number(0));
  lab.out.figure("error of its write then", second_code, "CUresult");
  note_kernel_log(lab);
  return {};
}

Status reexport(const Lab& lab) {
  const Bytes size = kMiB * 2;
  KVD_ASSIGN_OR_RETURN(Exporter exporter, start_exporter(size, 8));
  KVD_ASSIGN_OR_RETURN(const Peer middle, Peer::start());
  KVD_TRY(middle.ask(command("import", size, "w"), {exporter.fd.get()}));
  Result<Reply> again = middle.ask("export");
  lab.out.figure("an imported handle can be exported", again.ok() ? 1 : 0, "");
  if (!again.ok()) {
    lab.out.note("the driver refused: " + again.error().message +
                 ": the daemon has to keep one descriptor a slab and pass duplicates");
    return {};
  }
  exporter.fd.reset();
  exporter.peer.kill();
  KVD_ASSIGN_OR_RETURN(const Peer last, Peer::start());
  if (again->fds.empty()) return make_error(ErrorCode::kInternal, "no descriptor came");
  KVD_TRY(last.ask(command("import", size, "w"), {again->fds[0].get()}));
  KVD_ASSIGN_OR_RETURN(const double wrong, wrong_words(last, 8));
  lab.out.require("what a third process imports from it has the right bytes", wrong == 0);
  return {};
}

}  // namespace kvd::gpu
