#include "kvd/store/memory/pieces.hpp"

#include <gtest/gtest.h>

namespace kvd::store {
namespace {

TEST(PiecesTest, RecordsStayWhereTheyAreWhileItGrows) {
  Pieces<int, 4> sut;
  sut.push_back(7);
  const int* const first = &sut[0];
  for (int i = 1; i < 100; ++i) sut.push_back(i);
  EXPECT_EQ(&sut[0], first);
  EXPECT_EQ(sut[0], 7);
  EXPECT_EQ(sut[99], 99);
  EXPECT_EQ(sut.size(), 100u);
  EXPECT_EQ(&sut[3], first + 3) << "neighbours within a piece";
}

TEST(PiecesTest, GrowsToASizeAndNeverShrinksByIt) {
  Pieces<int, 4> sut;
  sut.grow(6);
  EXPECT_EQ(sut.size(), 6u);
  EXPECT_EQ(sut[5], 0);
  sut.grow(2);
  EXPECT_EQ(sut.size(), 6u);
  sut.pop_back();
  sut.push_back(9);
  EXPECT_EQ(sut[5], 9);
}

}  // namespace
}  // namespace kvd::store
