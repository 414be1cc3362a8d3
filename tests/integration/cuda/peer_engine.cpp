// kvd-cuda-engine SOCKET: a process that uses another one's slab. It imports the slab from the
// descriptors of the first message ("hbm [dram]"), sends "ready", then follows orders.
#include <sys/mman.h>
#include <sys/prctl.h>

#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>

#include "kernels/device/cuda/copies/stream.hpp"
#include "kernels/device/cuda/driver/context.hpp"
#include "kernels/device/cuda/driver/error.hpp"
#include "kernels/device/cuda/memory/host_registration.hpp"
#include "kernels/device/cuda/memory/vmm.hpp"
#include "tests/integration/cuda/channel.hpp"
#include "tests/integration/cuda/pattern.hpp"

namespace kvd::tests {
namespace {

using namespace kernels::cuda;

const Bytes kSlab(static_cast<std::int64_t>(kSlabBytes));

/// A shared mapping of `fd`, or of fresh memory when it is -1, registered with the driver.
class SharedMemory {
 public:
  static Result<SharedMemory> map(const Driver& driver, int fd, std::size_t bytes) {
    const int flags = fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (at == MAP_FAILED) return make_error(ErrorCode::kInternal, "cannot map");
    KVD_ASSIGN_OR_RETURN(auto pinned,
                         HostRegistration::make(driver, reinterpret_cast<std::uintptr_t>(at),
                                                Bytes(static_cast<std::int64_t>(bytes))));
    return SharedMemory(at, std::move(pinned));
  }
  void* data() const { return data_; }
  CUdeviceptr on_device() const { return pinned_.device_address(); }

 private:
  SharedMemory(void* data, HostRegistration pinned) : data_(data), pinned_(std::move(pinned)) {}
  void* data_;
  HostRegistration pinned_;
};

class Peer {
 public:
  Status start(const Message& message) {
    KVD_ASSIGN_OR_RETURN(driver_, Driver::load());
    KVD_ASSIGN_OR_RETURN(const Device device, find_device(*driver_, {}));
    KVD_ASSIGN_OR_RETURN(auto context, PrimaryContext::retain(*driver_, device));
    context_.emplace(std::move(context));
    KVD_TRY(check(*driver_, driver_->ctx_set_current(context_->get()), "entering the context"));
    KVD_ASSIGN_OR_RETURN(auto stream, Stream::create(*driver_));
    stream_.emplace(std::move(stream));
    KVD_ASSIGN_OR_RETURN(auto buffer, SharedMemory::map(*driver_, -1, kSlabBytes));
    buffer_.emplace(std::move(buffer));
    if (message.fds.size() > 1) {
      KVD_ASSIGN_OR_RETURN(auto dram,
                           SharedMemory::map(*driver_, message.fds[1].get(), kSlabBytes));
      dram_.emplace(std::move(dram));
    }
    return import(device, message.fds.at(0).get());
  }

  /// "check SALT", "check-dram SALT", "write SALT", "page" (with the page), "wait TICKET",
  /// "passed?", "join".
  std::string obey(const Message& message) {
    const auto blank = message.text.find(' ');
    const std::string verb = message.text.substr(0, blank);
    const auto number =
        blank == std::string::npos ? 0 : std::strtoull(&message.text[blank], nullptr, 10);
    if (verb == "check") {
      const CUresult done = read();
      return answer(done, has_pattern(buffer_->data(), kSlabBytes, number));
    }
    if (verb == "check-dram") {
      return answer(CUDA_SUCCESS, has_pattern(dram_->data(), kSlabBytes, number));
    }
    if (verb == "write") return answer(write(number), true);
    if (verb == "page") return adopt(message.fds.at(0));
    if (verb == "wait") return answer(wait(number), true);
    const CUresult at_end = verb == "join" ? driver_->stream_synchronize(stream_->get())
                                           : driver_->stream_query(stream_->get());
    return answer(at_end, true);
  }

 private:
  static std::string answer(CUresult result, bool right) {
    if (result != CUDA_SUCCESS) return "error " + std::to_string(result);
    return right ? "right" : "wrong";
  }

  Status import(const Device& device, int fd) {
    KVD_ASSIGN_OR_RETURN(const auto memory, PhysicalMemory::import_fd(*driver_, fd, kSlab));
    KVD_ASSIGN_OR_RETURN(auto range, AddressRange::reserve(*driver_, kSlab));
    range_.emplace(std::move(range));
    KVD_ASSIGN_OR_RETURN(auto mapping, Mapping::map(range_->address(), memory));
    mapping_.emplace(std::move(mapping));
    return grant_access(*driver_, mapping_->address(), kSlab, device.handle, Access::kReadWrite);
  }

  // Poisoned first, so that bytes which did not come are no pattern of an earlier read.
  CUresult read() {
    fill_pattern(buffer_->data(), kSlabBytes, ~std::uint64_t{0});
    const CUresult queued = driver_->memcpy_dtoh_async(buffer_->data(), mapping_->address(),
                                                       kSlabBytes, stream_->get());
    return queued == CUDA_SUCCESS ? driver_->stream_synchronize(stream_->get()) : queued;
  }

  CUresult write(std::uint64_t salt) {
    fill_pattern(buffer_->data(), kSlabBytes, salt);
    const CUresult queued = driver_->memcpy_htod_async(mapping_->address(), buffer_->data(),
                                                       kSlabBytes, stream_->get());
    return queued == CUDA_SUCCESS ? driver_->stream_synchronize(stream_->get()) : queued;
  }

  std::string adopt(const UniqueFd& fd) {
    auto page = SharedMemory::map(*driver_, fd.get(), kPageBytes);
    if (!page.ok()) return page.error().to_string();
    page_.emplace(std::move(page).value());
    return "right";
  }

  CUresult wait(std::uint64_t ticket) {
    return driver_->stream_wait_value64(stream_->get(),
                                        page_->on_device() + offsetof(FencePage, fence), ticket,
                                        CU_STREAM_WAIT_VALUE_GEQ);
  }

  const Driver* driver_ = nullptr;
  std::optional<PrimaryContext> context_;
  std::optional<Stream> stream_;
  std::optional<SharedMemory> buffer_, dram_, page_;
  std::optional<AddressRange> range_;
  std::optional<Mapping> mapping_;
};

}  // namespace
}  // namespace kvd::tests

int main(int, char** arguments) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  using namespace kvd::tests;
  const int socket = std::atoi(arguments[1]);
  Peer peer;
  {
    const Message first = receive_message(socket);
    const auto started = peer.start(first);
    send_message(socket, started.ok() ? "ready" : started.error().to_string());
    if (!started.ok()) return 1;
  }
  for (;;) {
    const Message message = receive_message(socket);
    if (message.text.empty()) return 0;
    send_message(socket, peer.obey(message));
  }
}
