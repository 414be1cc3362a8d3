#include "kvd/tiers/remote/value.hpp"

#include <gtest/gtest.h>

#include <random>

namespace kvd::remote {
namespace {

disk::Digest digest_of(std::uint64_t number) {
  std::mt19937_64 random(number);
  disk::Digest digest{};
  for (auto& byte : digest) byte = static_cast<std::uint8_t>(random());
  return digest;
}

disk::Fault verify(const disk::ClassShape& shape, const disk::BlockKey& key,
                   const disk::Sector& header, const Groups& groups) {
  disk::SlotHeader said;
  disk::Fault fault = read_header(shape, key, header, said);
  for (std::size_t i = 0; i < groups.size() && fault == disk::Fault::kNone; ++i) {
    fault = compare(said, i, groups);
  }
  return fault;
}

class Value : public testing::Test {
 protected:
  Value() {
    std::mt19937_64 random(5);
    for (auto& group : memory_) {
      group.resize(5000);
      for (auto& byte : group) byte = static_cast<std::byte>(random());
      read_.emplace_back(group);
      written_.emplace_back(group);
    }
    header_ = make_header(shape_, key_, written_).value();
  }

  std::vector<std::vector<std::byte>> memory_{3};
  Groups read_;
  ConstGroups written_;
  disk::ClassShape shape_{digest_of(1), 3, Bytes(5000)};
  disk::BlockKey key_{digest_of(2), digest_of(3)};
  disk::Sector header_{};
};

TEST_F(Value, IsWhatWasPut) {
  EXPECT_EQ(value_bytes(shape_), Bytes(4096 + 3 * 5000));
  EXPECT_EQ(verify(shape_, key_, header_, read_), disk::Fault::kNone);
}

TEST_F(Value, OfAnotherBlockDomainOrClassIsAMiss) {
  disk::BlockKey other = key_;
  other.digest = digest_of(4);
  EXPECT_EQ(verify(shape_, other, header_, read_), disk::Fault::kOtherKey);
  other = key_;
  other.domain = digest_of(4);
  EXPECT_EQ(verify(shape_, other, header_, read_), disk::Fault::kOtherKey);
  disk::ClassShape shape = shape_;
  shape.fingerprint = digest_of(4);
  EXPECT_EQ(verify(shape, key_, header_, read_), disk::Fault::kOtherClass);
}

TEST_F(Value, WithAnyByteChangedIsAMiss) {
  for (const std::size_t at : {0u, 9u, 100u, 200u, 2000u, 4095u}) {
    disk::Sector header = header_;
    header[at] ^= std::byte{1};
    EXPECT_NE(verify(shape_, key_, header, read_), disk::Fault::kNone) << at;
  }
  for (auto& group : memory_) {
    for (const std::size_t at : {std::size_t{0}, group.size() / 2, group.size() - 1}) {
      group[at] ^= std::byte{1};
      EXPECT_EQ(verify(shape_, key_, header_, read_), disk::Fault::kCorruptPayload) << at;
      group[at] ^= std::byte{1};
    }
  }
}

TEST_F(Value, HasAnotherNameInEachClassAndForEachDigest) {
  disk::ClassShape other = shape_;
  other.fingerprint = digest_of(9);
  EXPECT_EQ(key_name(shape_, key_.digest), key_name(shape_, key_.digest));
  EXPECT_NE(key_name(shape_, key_.digest), key_name(other, key_.digest));
  EXPECT_NE(key_name(shape_, key_.digest), key_name(shape_, digest_of(4)));
  EXPECT_EQ(key_name(shape_, key_.digest).size(), 5 + 64);
}

}  // namespace
}  // namespace kvd::remote
