// kvd-cuda-daemon SOCKET: only the memory side of a daemon: a CudaBackend with one slab a tier.
// Sends "ready" with both slabs' descriptors, then follows orders.
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "kernels/device/cuda/cuda_backend.hpp"
#include "tests/integration/cuda/channel.hpp"
#include "tests/integration/cuda/pattern.hpp"

namespace kvd::tests {
namespace {

using kernels::CopyBatch;
using kernels::Direction;
using kernels::Slab;

const Bytes kSlab(static_cast<std::int64_t>(kSlabBytes));

class Peer {
 public:
  explicit Peer(int socket) : socket_(socket) {}

  Status start() {
    kernels::CudaConfig config;
    if (std::getenv("FAKECUDA_STALL") != nullptr) {
      config.stall_limit = std::chrono::seconds(2);
      config.copies =
          kernels::cuda::CopyChoice::kBatch;  // otherwise the trial at the start stands still
    }
    KVD_ASSIGN_OR_RETURN(backend_, kernels::CudaBackend::create(config, clock_));
    KVD_ASSIGN_OR_RETURN(hbm_, backend_->create_slab(Tier::kHbm, kSlab));
    KVD_ASSIGN_OR_RETURN(dram_, backend_->create_slab(Tier::kDram, kSlab));
    KVD_TRY(load(1));
    KVD_ASSIGN_OR_RETURN(const UniqueFd hbm, backend_->export_slab(hbm_.handle));
    KVD_ASSIGN_OR_RETURN(const UniqueFd dram, backend_->export_slab(dram_.handle));
    send_message(socket_, "ready", {hbm.get(), dram.get()});
    return {};
  }

  /// One command: "page" (with the page), "load SALT", "save", "recreate".
  Status obey(Message& message) {
    if (message.text == "page") return adopt(message.fds.at(0));
    if (message.text == "save") return copy(Direction::kDeviceToHost);
    if (message.text == "recreate") return recreate();
    return load(std::strtoull(message.text.c_str() + 5, nullptr, 10));
  }

 private:
  Status load(std::uint64_t salt) {
    fill_pattern(reinterpret_cast<void*>(dram_.address), kSlabBytes, salt);
    return copy(Direction::kHostToDevice);
  }

  Status copy(Direction direction) {
    const bool in = direction == Direction::kHostToDevice;
    CopyBatch batch;
    batch.ticket = Ticket(++ticket_);
    batch.direction = direction;
    batch.extents = {{in ? hbm_.address : dram_.address, in ? dram_.address : hbm_.address, kSlab}};
    if (page_ != nullptr) {
      batch.fence = {reinterpret_cast<std::atomic<std::uint64_t>*>(&page_->fence), ticket_};
    }
    KVD_TRY(backend_->submit(std::move(batch)));
    std::vector<kernels::Completion> completed;
    pollfd ready{backend_->completion_fd(), POLLIN, 0};
    if (::poll(&ready, 1, 30'000) == 1) backend_->poll(completed);
    if (completed.size() != 1) return make_error(ErrorCode::kInternal, "no completion in time");
    return completed.front().status;
  }

  Status adopt(const UniqueFd& fd) {
    void* at = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (at == MAP_FAILED) return make_error(ErrorCode::kInternal, "cannot map the page");
    page_ = static_cast<FencePage*>(at);
    ticket_ = 0;
    return backend_->adopt_page(at, Bytes(kPageBytes));
  }

  Status recreate() {
    if (hbm_.handle) KVD_TRY(backend_->destroy_slab(hbm_.handle));
    hbm_ = {};
    KVD_ASSIGN_OR_RETURN(hbm_, backend_->create_slab(Tier::kHbm, kSlab));
    return {};
  }

  const int socket_;
  SteadyClock clock_;
  std::unique_ptr<kernels::DeviceBackend> backend_;
  Slab hbm_, dram_;
  FencePage* page_ = nullptr;
  std::uint64_t ticket_ = 0;
};

}  // namespace
}  // namespace kvd::tests

int main(int, char** arguments) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  using namespace kvd::tests;
  const int socket = std::atoi(arguments[1]);
  Peer peer(socket);
  if (const auto started = peer.start(); !started.ok()) {
    send_message(socket, started.error().to_string());
    return 1;
  }
  for (;;) {
    Message message = receive_message(socket);
    if (message.text.empty()) return 0;
    const auto done = peer.obey(message);
    send_message(socket, done.ok() ? "done" : done.error().to_string());
  }
}
