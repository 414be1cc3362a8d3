#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ipc/vocabulary/ids.hpp"
#include "kvd/holder/kept.hpp"
#include "kvd/tiers/kept/state.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/store_node.hpp"

/// A kvd whose memory outlives it, in what imitates systemd's store of descriptors.
namespace kvd::test {

constexpr std::size_t kMostKept = 100;

/// The first of the numbers by which kvd gets descriptors: the highest that there are. All else
/// that the test opens gets the lowest free one, two claims of ports a start among it.
inline int first_handed_over() {
  constexpr long kEnough = 65536;  // the kernel makes a table with as many entries
  return static_cast<int>(std::min(::sysconf(_SC_OPEN_MAX), kEnough) -
                          static_cast<long>(kMostKept));
}

/// What systemd does for a service with FileDescriptorStoreMax.
class DescriptorStore {
 public:
  explicit DescriptorStore(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)), kept_(kMostKept) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path.c_str());
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    thread_ = std::thread([this] { listen(); });
  }
  ~DescriptorStore() {
    ending_ = true;
    thread_.join();
  }
  DescriptorStore(const DescriptorStore&) = delete;
  DescriptorStore& operator=(const DescriptorStore&) = delete;

  /// Has kvd started with all that is kept.
  void hand_over(KvdSettings& settings, const std::string& socket,
                 std::vector<std::string> environment) {
    const std::lock_guard lock(mutex_);
    std::string names;
    const int first = first_handed_over();
    int next = first;
    for (const auto& [name, fd] : kept_.all()) {
      ASSERT_EQ(::fcntl(next, F_GETFD), -1) << "the test has descriptor " << next << " open";
      EXPECT_EQ(::dup2(fd.get(), next), next);
      ++next;
      names += (names.empty() ? "" : ":") + name;
    }
    settings.environment = std::move(environment);
    settings.environment.push_back("NOTIFY_SOCKET=" + socket);
    settings.environment.push_back("FDSTORE=" + std::to_string(kMostKept));
    settings.under = {built_program("kvd-listed"), std::to_string(first),
                      std::to_string(next - first), names.empty() ? "-" : names};
  }
  /// The child has them now.
  void take_back() const {
    const int first = first_handed_over();
    for (int fd = first; fd < first + static_cast<int>(kMostKept); ++fd) ::close(fd);
  }
  [[nodiscard]] UniqueFd find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    for (const auto& [kept, fd] : kept_.all()) {
      if (kept == name) return UniqueFd{::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)};
    }
    return {};
  }
  /// Keeps the file in place of what has the name; none: nothing.
  void replace(const std::string& name, UniqueFd file) {
    const std::lock_guard lock(mutex_);
    kept_.take("FDSTOREREMOVE=1\nFDNAME=" + name, {});
    std::vector<UniqueFd> files;
    if (file.valid()) files.push_back(std::move(file));
    kept_.take("FDSTORE=1\nFDNAME=" + name, std::move(files));
  }
  [[nodiscard]] std::size_t size() {
    const std::lock_guard lock(mutex_);
    return kept_.all().size();
  }

 private:
  void listen() {
    while (!ending_) {
      pollfd wait{socket_.get(), POLLIN, 0};
      if (::poll(&wait, 1, 20) > 0) take();
    }
  }
  void take() {
    char text[4096];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec part{text, sizeof text};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t size = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (size < 0) return;
    std::vector<UniqueFd> descriptors;
    if (const cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(at), sizeof fd);
      descriptors.emplace_back(fd);
    }
    const std::lock_guard lock(mutex_);
    kept_.take({text, static_cast<std::size_t>(size)}, std::move(descriptors));
  }

  UniqueFd socket_;
  std::mutex mutex_;  // guards the next
  holder::Kept kept_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

/// The records of a state file, looked at and not touched.
class Records {
 public:
  explicit Records(const UniqueFd& file) {
    constexpr std::size_t kBytes = kept::kHeaderBytes + 65536 * sizeof(kept::Record);
    void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    EXPECT_NE(memory, MAP_FAILED);
    header_ = static_cast<kept::Header*>(memory);
    records_ =
        reinterpret_cast<kept::Record*>(static_cast<std::byte*>(memory) + kept::kHeaderBytes);
  }
  ~Records() { ::munmap(header_, kept::kHeaderBytes + 65536 * sizeof(kept::Record)); }
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;

  [[nodiscard]] std::size_t whole(Tier tier) const {
    std::size_t count = 0;
    for (std::uint64_t i = 0; i < header_->used; ++i) {
      const bool there = records_[i].place.tier == static_cast<std::uint32_t>(tier);
      count += records_[i].state != 0 && there ? 1 : 0;
    }
    return count;
  }
  [[nodiscard]] kept::Record* numbered(std::uint32_t number) const {
    for (std::uint64_t i = 0; i < header_->used; ++i) {
      if (records_[i].state != 0 && records_[i].number == number) return &records_[i];
    }
    return nullptr;
  }

 private:
  kept::Header* header_ = nullptr;
  kept::Record* records_ = nullptr;
};

constexpr std::int64_t kSlabBytes = 2 << 20;

inline std::vector<char> bytes_of(const UniqueFd& slab) {
  std::vector<char> bytes(kSlabBytes);
  EXPECT_EQ(::pread(slab.get(), bytes.data(), bytes.size(), 0), kSlabBytes);
  return bytes;
}

/// kvd under the store, killed and started again.
class AdoptingWorld : public ::testing::Test {
 protected:
  void launch() { launch(socket_); }
  /// `socket` is that of the keeper of new descriptors.
  void launch(const std::string& socket) {
    store_.hand_over(settings_, socket, environment_);
    kvd_.emplace(folder_, settings_);
    store_.take_back();
  }
  void start() {
    launch();
    ASSERT_TRUE(kvd_->wait_ready()) << kvd_->log();
  }
  void kill() {
    kvd_->signal(SIGKILL);
    ASSERT_EQ(kvd_->wait(), 128 + SIGKILL);
  }
  [[nodiscard]] double metric(const std::string& name) const {
    return kvd_->metric(name).value_or(-1);
  }
  [[nodiscard]] double dropped(const std::string& reason) const {
    return metric("kvd_kept_dropped_blocks{reason=\"" + reason + "\"}");
  }
  [[nodiscard]] double kept(Tier tier) const {
    return metric("kvd_kept_blocks{tier=\"" + std::string(name(tier)) + "\"}");
  }
  [[nodiscard]] double kept() const { return kept(Tier::kHbm) + kept(Tier::kDram); }
  /// Waits until this many blocks in the tier are written down.
  [[nodiscard]] bool written(std::size_t blocks, Tier tier = Tier::kDram) {
    return poll_until([&] { return records(tier) >= blocks; });
  }
  [[nodiscard]] std::size_t records(Tier tier) {
    const UniqueFd state = store_.find("kvd-state");
    return state.valid() ? Records(state).whole(tier) : 0;
  }
  [[nodiscard]] std::size_t records() { return records(Tier::kHbm) + records(Tier::kDram); }
  /// The earlier kvd's slab that the block's record names.
  [[nodiscard]] UniqueFd slab_of(const kept::Record& record) {
    const bool hbm = record.place.tier == static_cast<std::uint32_t>(Tier::kHbm);
    return store_.find((hbm ? "kvd-hbm-" : "kvd-dram-") + std::to_string(record.place.slab));
  }
  /// Reads one byte of the block with this number, at the place where it is recorded.
  void alter(std::uint32_t number) {
    const UniqueFd state = store_.find("kvd-state");
    const Records records(state);
    const kept::Record* record = records.numbered(number);
    ASSERT_NE(record, nullptr);
    const UniqueFd slab = slab_of(*record);
    const auto at = static_cast<off_t>(record->place.slot * record->place.bytes + 1234);
    char byte = 0;
    ASSERT_EQ(::pread(slab.get(), &byte, 1, at), 1);
    byte = static_cast<char>(byte ^ 4);
    ASSERT_EQ(::pwrite(slab.get(), &byte, 1, at), 1);
  }
  /// Asks with an engine that has ended when this returns.
  [[nodiscard]] std::uint64_t run(std::uint32_t prompt, std::uint64_t tokens) {
    return bench::StoreNode(kvd_->endpoint(), gpu_).run(prompt, tokens);
  }

  const RuntimeFolder folder_;
  const std::string socket_ = folder_.file("notify");
  DescriptorStore store_{socket_};
  KvdSettings settings_{.extra =
                            "[placement]\npolicy = 'none'\n[admission]\npolicy = 'none'\n"
                            "[load]\npolicy = 'always'\n"};
  std::vector<std::string> environment_;  ///< of kvd
  bench::StoreNode::Gpu gpu_;             ///< of the engines
  std::optional<KvdProcess> kvd_;
};

}  // namespace kvd::test
