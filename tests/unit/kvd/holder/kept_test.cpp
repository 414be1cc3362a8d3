#include "kvd/holder/kept.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

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
