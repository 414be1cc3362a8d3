// SHA-256, HMAC-SHA256, canonical CBOR: the standards' own examples.
#include "ipc/digest/sha256.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "ipc/digest/cbor.hpp"
#include "tests/unit/ipc/digest/hex.hpp"

namespace kvd::digest {
namespace {

TEST(Sha256Test, HashesTheExamplesOfTheStandardWithOneContext) {
  Sha256 sut;
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(hex(sut({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(hex(sut(bytes_of("abc"))),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(hex(sut(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  }
}

// RFC 4231, test cases 2 and 6.
TEST(HmacSha256Test, MakesTheCodesOfKnownSecrets) {
  HmacSha256 sut(bytes_of("Jefe"));
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(hex(sut(bytes_of("what do ya want for nothing?"))),
              "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  }
  HmacSha256 of_long(std::vector<std::uint8_t>(131, 0xaa));
  EXPECT_EQ(hex(of_long(bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

std::string integer(std::int64_t value) {
  CborWriter sut;
  sut.integer(value);
  return hex(sut.text());
}

// RFC 8949, appendix A.
TEST(CborTest, WritesIntegersAsShortAsTheyGo) {
  EXPECT_EQ(integer(0), "00");
  EXPECT_EQ(integer(23), "17");
  EXPECT_EQ(integer(24), "1818");
  EXPECT_EQ(integer(255), "18ff");
  EXPECT_EQ(integer(256), "190100");
  EXPECT_EQ(integer(65535), "19ffff");
  EXPECT_EQ(integer(1000000), "1a000f4240");
  EXPECT_EQ(integer(1000000000000), "1b000000e8d4a51000");
  EXPECT_EQ(integer(-1), "20");
  EXPECT_EQ(integer(-1000), "3903e7");
  EXPECT_EQ(integer(std::numeric_limits<std::int64_t>::min()), "3b7fffffffffffffff");
}

TEST(CborTest, WritesTextBytesArraysAndNull) {
  CborWriter sut;
  sut.array(4);
  sut.string("IETF");
  const std::uint8_t bytes[] = {1, 2, 3, 4};
  sut.bytes(bytes);
  sut.array(0);
  sut.null();
  EXPECT_EQ(hex(sut.text()),
            "84"
            "6449455446"
            "4401020304"
            "80"
            "f6");
  sut.clear();
  EXPECT_TRUE(sut.text().empty());
}

}  // namespace
}  // namespace kvd::digest
