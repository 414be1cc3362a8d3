#pragma once

#include <fcntl.h>
#include <liburing.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::bench {

/// Reads of one length from one file by a bare io_uring: direct, into registered memory, a fixed
/// number at once. The bytes are not looked at.
class RawUring {
 public:
  /// `memory`: one buffer of `length` bytes after another, as many as there are reads under way.
  RawUring(const std::string& path, std::span<std::byte> memory, std::size_t length)
      : file_(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)),
        memory_(memory),
        length_(length) {
    const iovec all{memory.data(), memory.size()};
    KVD_CHECK(file_.valid() && ::io_uring_queue_init(64, &ring_, 0) == 0 &&
                  ::io_uring_register_buffers(&ring_, &all, 1) == 0,
              "this machine has no io_uring, or no O_DIRECT here: nothing to compare with");
  }
  ~RawUring() { ::io_uring_queue_exit(&ring_); }
  RawUring(const RawUring&) = delete;
  RawUring& operator=(const RawUring&) = delete;

  void read(const std::vector<std::uint64_t>& offsets) {
    const std::size_t places = memory_.size() / length_;
    std::size_t next = 0;
    for (; next < offsets.size() && next < places; ++next) start(next, offsets[next]);
    for (std::size_t done = 0; done < offsets.size(); ++done) {
      io_uring_cqe* cqe = nullptr;
      KVD_CHECK(
          ::io_uring_submit_and_wait(&ring_, 1) >= 0 && ::io_uring_peek_cqe(&ring_, &cqe) == 0,
          "a read ends");
      KVD_CHECK(cqe->res == static_cast<int>(length_), "a read is whole");
      const std::size_t place = cqe->user_data;
      ::io_uring_cqe_seen(&ring_, cqe);
      if (next < offsets.size()) start(place, offsets[next++]);
    }
  }

 private:
  void start(std::size_t place, std::uint64_t offset) {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    ::io_uring_prep_read_fixed(sqe, file_.get(), memory_.data() + place * length_,
                               static_cast<unsigned>(length_), offset, 0);
    ::io_uring_sqe_set_data64(sqe, place);
  }

  UniqueFd file_;
  std::span<std::byte> memory_;
  const std::size_t length_;
  io_uring ring_{};
};

}  // namespace kvd::bench
