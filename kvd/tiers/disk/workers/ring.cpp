#include "kvd/tiers/disk/workers/ring.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace kvd::disk {
namespace {

// The most buffers that the kernel registers with a ring. Each slab is one.
constexpr unsigned kBuffers = 16384;

Error refused(const char* what, int error) {
  return make_error(ErrorCode::kUnavailable,
                    std::string(what) + ": " + std::strerror(error) +
                        "; allow io_uring (seccomp profile, sysctl kernel.io_uring_disabled) to "
                        "use it");
}

}  // namespace

Result<std::unique_ptr<Ring>> Ring::open(unsigned depth) {
  KVD_ASSIGN_OR_RETURN(EventFd event, EventFd::make());
  std::unique_ptr<Ring> ring(new Ring(std::move(event)));
  KVD_TRY(ring->set_up(depth));
  return ring;
}

Status Ring::set_up(unsigned depth) {
  if (const int error = ::io_uring_queue_init(depth, &ring_, 0); error != 0) {
    return refused("no io_uring", -error);
  }
  ready_ = true;
  depth_ = depth;
  io_uring_probe* probe = ::io_uring_get_probe_ring(&ring_);
  constexpr std::array<int, 4> kNeeded = {IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_READ_FIXED,
                                          IORING_OP_WRITE_FIXED};
  const bool able = probe != nullptr && std::all_of(kNeeded.begin(), kNeeded.end(), [&](int op) {
                      return ::io_uring_opcode_supported(probe, op) != 0;
                    });
  ::io_uring_free_probe(probe);
  if (!able) return refused("io_uring without vectored and fixed I/O", EOPNOTSUPP);
  if (const int error = ::io_uring_register_eventfd(&ring_, done_event_.get()); error != 0) {
    return refused("io_uring without eventfd", -error);
  }
  has_buffers_ = ::io_uring_register_buffers_sparse(&ring_, kBuffers) == 0;
  for (unsigned i = has_buffers_ ? kBuffers : 0; i > 0; --i) free_buffers_.push_back(i - 1);
  return {};
}

Ring::~Ring() {
  if (ready_) ::io_uring_queue_exit(&ring_);
}

Status Ring::add_slab(std::span<std::byte> slab) {
  if (!has_buffers_) {
    return make_error(ErrorCode::kUnsupported,
                      "this kernel has no sparse tables of buffers (5.19)");
  }
  const std::lock_guard lock(slabs_mutex_);
  if (free_buffers_.empty()) {
    return make_error(ErrorCode::kOutOfMemory, "the table of registered memory is full");
  }
  const unsigned buffer = free_buffers_.back();
  const iovec memory{slab.data(), slab.size()};
  const __u64 no_tag = 0;
  const int done = ::io_uring_register_buffers_update_tag(&ring_, buffer, &memory, &no_tag, 1);
  if (done != 1) {
    return make_error(ErrorCode::kOutOfMemory,
                      std::string("memory cannot be registered with io_uring: ") +
                          std::strerror(-done) + "; raise RLIMIT_MEMLOCK");
  }
  free_buffers_.pop_back();
  slabs_[reinterpret_cast<std::uintptr_t>(slab.data())] = {slab.size(), buffer};
  return {};
}

bool Ring::remove_slab(std::span<std::byte> slab) {
  const std::lock_guard lock(slabs_mutex_);
  const auto found = slabs_.find(reinterpret_cast<std::uintptr_t>(slab.data()));
  if (found == slabs_.end()) return false;
  const iovec nothing{};
  const __u64 no_tag = 0;
  // If the entry cannot be emptied it stays taken: its pages stay pinned and nothing names them.
  if (::io_uring_register_buffers_update_tag(&ring_, found->second.buffer, &nothing, &no_tag, 1) ==
      1) {
    free_buffers_.push_back(found->second.buffer);
  }
  slabs_.erase(found);
  return true;
}

std::optional<unsigned> Ring::buffer_of(const iovec& part) {
  const auto address = reinterpret_cast<std::uintptr_t>(part.iov_base);
  auto after = slabs_.upper_bound(address);
  if (after == slabs_.begin()) return std::nullopt;
  const auto& [base, slab] = *--after;
  if (address + part.iov_len > base + slab.size) return std::nullopt;
  return slab.buffer;
}

bool Ring::fixed(const Operation& operation, std::vector<unsigned>& buffers) {
  const std::lock_guard lock(slabs_mutex_);
  for (const iovec& part : operation.parts) {
    const auto buffer = buffer_of(part);
    if (!buffer) return false;
    buffers.push_back(*buffer);
  }
  return true;
}

std::size_t Ring::open_operation(std::uint64_t id, std::size_t entries) {
  if (unused_.empty()) {
    unused_.push_back(open_.size());
    open_.emplace_back();
  }
  const std::size_t at = unused_.back();
  unused_.pop_back();
  open_[at] = {id, entries, 0, 0};
  return at;
}

void Ring::submit(const Operation& operation) {
  std::vector<unsigned> buffers;
  const auto& parts = operation.parts;
  auto offset = static_cast<std::uint64_t>(operation.offset.value);
  if (!fixed(operation, buffers)) {
    waiting_.push_back({open_operation(operation.id, 1), operation.fd, operation.write, offset,
                        parts.data(), static_cast<unsigned>(parts.size()), std::nullopt});
    return;
  }
  const std::size_t open = open_operation(operation.id, parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    waiting_.push_back({open, operation.fd, operation.write, offset, &parts[i], 1, buffers[i]});
    offset += parts[i].iov_len;
  }
}

void Ring::prepare(io_uring_sqe* sqe, const Entry& entry) {
  if (!entry.buffer) {
    entry.write ? ::io_uring_prep_writev(sqe, entry.fd, entry.parts, entry.count, entry.offset)
                : ::io_uring_prep_readv(sqe, entry.fd, entry.parts, entry.count, entry.offset);
  } else {
    const auto size = static_cast<unsigned>(entry.parts->iov_len);
    const auto buffer = static_cast<int>(*entry.buffer);
    entry.write ? ::io_uring_prep_write_fixed(sqe, entry.fd, entry.parts->iov_base, size,
                                              entry.offset, buffer)
                : ::io_uring_prep_read_fixed(sqe, entry.fd, entry.parts->iov_base, size,
                                             entry.offset, buffer);
  }
  ::io_uring_sqe_set_data64(sqe, entry.open);
}

// What the kernel does not take now (EAGAIN, EBUSY, EINTR) stays in the submission queue for the
// next flush.
void Ring::flush() {
  while (!waiting_.empty() && under_way_ < depth_) {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    if (sqe == nullptr) break;
    prepare(sqe, waiting_.front());
    waiting_.pop_front();
    ++under_way_;
  }
  if (::io_uring_sq_ready(&ring_) > 0) ::io_uring_submit(&ring_);
}

void Ring::settle(const io_uring_cqe& cqe, std::vector<Outcome>& outcomes) {
  --under_way_;
  Open& open = open_[cqe.user_data];
  if (cqe.res < 0) {
    open.error = -cqe.res;
  } else {
    open.moved += cqe.res;
  }
  if (--open.entries > 0) return;
  outcomes.push_back({open.id, open.error != 0 ? -std::int64_t{open.error} : open.moved});
  unused_.push_back(cqe.user_data);
}

void Ring::reap(std::vector<Outcome>& outcomes) {
  done_event_.drain();  // first: requests that end from here on signal again
  io_uring_cqe* cqe = nullptr;
  unsigned head = 0, seen = 0;
  io_uring_for_each_cqe(&ring_, head, cqe) {
    settle(*cqe, outcomes);
    ++seen;
  }
  ::io_uring_cq_advance(&ring_, seen);
}

}  // namespace kvd::disk
