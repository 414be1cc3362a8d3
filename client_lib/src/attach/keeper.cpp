#include "client_lib/src/attach/keeper.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <chrono>
#include <cstring>
#include <future>
#include <string>
#include <utility>
#include <variant>

#include "client_lib/src/memory/fence.hpp"
#include "client_lib/src/memory/mapping_hold.hpp"
#include "client_lib/src/memory/signals_blocked.hpp"
#include "ipc/wire/attach_codec.hpp"

namespace kvd::client {
namespace {

constexpr std::chrono::milliseconds kHeartbeat{100};
/// The daemon reads its attach sockets all the time; if it does not for this long, it is stuck.
constexpr Nanoseconds kAnswerTimeout = std::chrono::seconds(1);

}  // namespace

Keeper::Keeper(shm::ClientPage& page, transport::AttachConnection& connection, SlabMap& slabs,
               UniqueFd stop)
    : page_(page), connection_(connection), slabs_(slabs), stop_(std::move(stop)) {}

Result<std::unique_ptr<Keeper>> Keeper::start(shm::MappedClientPage& page,
                                              transport::AttachConnection& connection,
                                              SlabMap& slabs) {
  KVD_TRY(page.init_keeper());
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return make_error(ErrorCode::kUnavailable, "out of file descriptors");
  std::unique_ptr<Keeper> keeper(new Keeper(page.page(), connection, slabs, std::move(stop)));
  std::promise<int> locked;
  {
    const AllSignalsBlocked blocked;
    keeper->thread_ = std::thread(
        [raw = keeper.get(), &locked] { raw->run([&](int error) { locked.set_value(error); }); });
  }
  if (const int error = locked.get_future().get(); error != 0) {
    return make_error(ErrorCode::kInternal,
                      std::string("the keeper mutex cannot be locked: ") + std::strerror(error));
  }
  return keeper;
}

Keeper::~Keeper() {
  ::eventfd_write(stop_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void Keeper::declare_gone() {
  poison(page_);
  slabs_.forsake();
  gone_.store(true, std::memory_order_release);
}

void Keeper::run(const std::function<void(int)>& locked) {
  const int error = pthread_mutex_lock(&page_.keeper);
  // The first beat says that the mutex is held: from now on the death of its owner means something.
  if (error == 0) beat();
  locked(error);
  if (error != 0) return;
  serve();
  pthread_mutex_unlock(&page_.keeper);
}

void Keeper::serve() {
  pollfd watched[] = {{connection_.fd(), POLLIN | POLLRDHUP, 0}, {stop_.get(), POLLIN, 0}};
  for (;;) {
    // Frames map and unmap memory, so they wait until the engine's captures are over.
    watched[0].events = MappingHold::of_process().held() ? POLLRDHUP : POLLIN | POLLRDHUP;
    if (::poll(watched, std::size(watched), static_cast<int>(kHeartbeat.count())) < 0) continue;
    if (watched[1].revents != 0) return;
    const bool hung_up = (watched[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    if (!gone() && watched[0].revents != 0 && !take_frames(hung_up)) declare_gone();
    if (gone()) watched[0].fd = -1;
    if (!check_poison(page_).ok()) release_fences(page_);
    beat();
  }
}

void Keeper::beat() { page_.heartbeat.fetch_add(1, std::memory_order_release); }

bool Keeper::take_frames(bool hung_up) {
  const auto change = MappingHold::of_process().begin_change();
  if (change == nullptr) return !hung_up;
  for (;;) {
    const auto frame = connection_.receive();
    if (!frame.ok()) {
      // A frame that this side cannot read was dropped; the session goes on without it.
      if (frame.error().code == ErrorCode::kInvalidArgument) continue;
      return frame.error().code == ErrorCode::kWouldBlock;
    }
    const Status status = handle(*frame);
    if (!status.ok() && status.code() == ErrorCode::kPeerGone) return false;
    // The daemon counts on a slab that is not here, so requests would wait for it for ever.
    if (slabs_.failure()) return false;
  }
}

Status Keeper::handle(const transport::AttachFrame& frame) {
  KVD_ASSIGN_OR_RETURN(const auto message, wire::decode_attach(frame.bytes()));
  if (const auto* slab = std::get_if<wire::MapSlab>(&message)) {
    if (frame.fds.size() != 1) return make_error(ErrorCode::kInvalidArgument, "slab without fd");
    KVD_TRY(slabs_.map(*slab, frame.fds[0]));
    wire::SlabMapped answer;
    answer.notice.region = slab->region;
    answer.notice.slab = slab->slab;
    return connection_.send(wire::seal(answer), {}, kAnswerTimeout);
  }
  if (const auto* unmap = std::get_if<wire::UnmapSlab>(&message)) {
    // Regions are pinned: only the engine gives them back.
    if (unmap->notice.region != 0) return {};
    slabs_.unmap(SlabIndex(unmap->notice.slab));
    wire::SlabUnmapped answer{unmap->notice};
    return connection_.send(wire::seal(answer), {}, kAnswerTimeout);
  }
  return {};
}

}  // namespace kvd::client
