#include "kvd/holder/kept.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

namespace kvd::holder {
namespace {

UniqueFd file() { return UniqueFd(::memfd_create("kept", MFD_CLOEXEC)); }

std::vector<UniqueFd> one(UniqueFd fd) {
  std::vector<UniqueFd> list;
  list.push_back(std::move(fd));
  return list;
}

TEST(HolderKept, KeepsWhatIsStoredUnderItsNameUntilThatIsRemoved) {
  Kept kept(3);
  kept.take("FDSTORE=1\nFDPOLL=0\nFDNAME=a", one(file()));
  kept.take("FDNAME=b\nFDSTORE=1", one(file()));
  ASSERT_EQ(kept.all().size(), 2u);
  EXPECT_EQ(kept.all()[0].first, "a");
  EXPECT_EQ(kept.all()[1].first, "b");
  EXPECT_EQ(::fcntl(kept.all()[0].second.get(), F_GETFD), FD_CLOEXEC);
  kept.take("FDSTOREREMOVE=1\nFDNAME=a", {});
  ASSERT_EQ(kept.all().size(), 1u);
  EXPECT_EQ(kept.all()[0].first, "b");
}

TEST(HolderKept, KeepsAFileOnceAndNoMoreThanTold) {
  Kept kept(2);
  const UniqueFd same = file();
  for (int i = 0; i < 3; ++i) {
    kept.take("FDSTORE=1\nFDNAME=a", one(UniqueFd(::dup(same.get()))));
  }
  EXPECT_EQ(kept.all().size(), 1u);
  for (int i = 0; i < 3; ++i) kept.take("FDSTORE=1\nFDNAME=a", one(file()));
  EXPECT_EQ(kept.all().size(), 2u);
}

TEST(HolderKept, RefusesNamesThatWouldBreakTheList) {
  Kept kept(5);
  for (const std::string& name : {std::string("a:b"), std::string("a b"), std::string(256, 'a')}) {
    kept.take("FDSTORE=1\nFDNAME=" + name, one(file()));
  }
  EXPECT_TRUE(kept.all().empty());
  kept.take("STATUS=1", one(file()));
  kept.take("XFDSTORE=1", one(file()));
  EXPECT_TRUE(kept.all().empty());
}

/// A socket whose last close() waits for an hour: a peer does not read what was sent.
struct Lingering {
  UniqueFd listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd sender{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd reader;

  Lingering() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size);
    EXPECT_EQ(::connect(sender.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    reader = UniqueFd(::accept(listener.get(), nullptr, nullptr));
    const std::vector<char> much(1 << 16);
    while (::send(sender.get(), much.data(), much.size(), MSG_DONTWAIT) > 0) {
    }
    const linger hour{1, 3600};
    EXPECT_EQ(::setsockopt(sender.get(), SOL_SOCKET, SO_LINGER, &hour, sizeof hour), 0);
  }
  [[nodiscard]] bool is_over() const {
    pollfd entry{reader.get(), POLLRDHUP, 0};
    return ::poll(&entry, 1, 0) > 0 && (entry.revents & POLLHUP) != 0;
  }
};

TEST(HolderKept, WaitsForNoDescriptorThatTakesLongToClose) {
  Kept kept(1);
  Lingering refused, removed;
  kept.take("STATUS=nothing to keep", one(std::move(refused.sender)));
  kept.take("FDSTORE=1\nFDNAME=a", one(std::move(removed.sender)));
  kept.take("FDSTOREREMOVE=1\nFDNAME=a", {});
  EXPECT_TRUE(kept.all().empty());
  EXPECT_FALSE(refused.is_over() || removed.is_over()) << "nobody has waited for it";
}

TEST(HolderKept, HearsOnceThatTheProgramIsReady) {
  Kept kept(5);
  kept.take("STATUS=starting", {});
  EXPECT_FALSE(kept.take_ready());
  kept.take("READY=1\nSTATUS=up", {});
  EXPECT_TRUE(kept.take_ready());
  EXPECT_FALSE(kept.take_ready());
}

}  // namespace
}  // namespace kvd::holder
