#include "kvd/daemon/config/config_values.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace kvd::daemon {
namespace {
using testing::HasSubstr;

TEST(Text, IsOneLine) {
  EXPECT_EQ(kText.parse("/var/cache/kvd größe").value(), "/var/cache/kvd größe");
  EXPECT_EQ(kText.parse("").value(), "");
  for (const char* text : {"/a\nExecStart=/b", "/a\r", "a\tb", "\x7f"}) {
    const auto found = kText.parse(text);
    ASSERT_FALSE(found.ok()) << text;
    EXPECT_THAT(found.error().message, HasSubstr("control character"));
    EXPECT_THAT(found.error().message, testing::Not(HasSubstr("\n")));
  }
}

TEST(ParseBytes, TakesEveryUnitAndFractions) {
  const std::map<std::string, std::int64_t> cases = {
      {"0", 0},
      {"4096", 4096},
      {"12B", 12},
      {"64KiB", 64 * 1024},
      {"2MiB", 2 << 20},
      {"64GiB", std::int64_t{64} << 30},
      {"1.5GiB", std::int64_t{3} << 29},
      {"0.5 KiB", 512},
      {"3TiB", std::int64_t{3} << 40},
      {"1PiB", std::int64_t{1} << 50},
      {"9223372036854775807", INT64_MAX},
      {"9007199254740993B", 9007199254740993}};  // 2^53 + 1: lost if it went through a double
  for (const auto& [text, value] : cases) {
    const auto size = parse_bytes(text);
    ASSERT_TRUE(size.ok()) << text << ": " << size.error().message;
    EXPECT_EQ(size->value, value) << text;
  }
}

TEST(ParseBytes, RefusesWhatIsNoSize) {
  for (const char* text : {"",        " ",
                           "GiB",     ".",
                           ".GiB",    "nan",
                           "inf",     "-1",
                           "-1GiB",   "64GB",
                           "64G",     "64gib",
                           "1e9",     "1.2.3GiB",
                           "0x10",    "+5",
                           " 5",

                           "64GiBs",  "9223372036854775808",
                           "8192PiB", "8192.0PiB",
                           "0.4",     "99999999999999999999999GiB",
                           "auto",    "unlimited"}) {
    const auto size = parse_bytes(text);
    ASSERT_FALSE(size.ok()) << text << " was taken for " << size->value;
    EXPECT_EQ(size.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(size.error().message, HasSubstr("64GiB")) << "no example in the message";
  }
}

TEST(ParseDuration, TakesEveryUnitAndFractions) {
  using namespace std::chrono_literals;
  const std::map<std::string, Nanoseconds> cases = {
      {"0", 0ns},   {"7ns", 7ns}, {"3us", 3us},     {"100ms", 100ms},  {"5s", 5s},
      {"2m", 2min}, {"1h", 1h},   {"1.5s", 1500ms}, {"0.25 ms", 250us}};
  for (const auto& [text, value] : cases) {
    const auto time = parse_duration(text);
    ASSERT_TRUE(time.ok()) << text << ": " << time.error().message;
    EXPECT_EQ(*time, value) << text;
  }
}

TEST(ParseDuration, RefusesWhatIsNoTime) {
  for (const char* text :
       {"", "5", "1.5", "0.5", "0.5ns", "-5s", "nan", "5 sec", "5S", "1d", "99999999999h", "s"}) {
    const auto time = parse_duration(text);
    ASSERT_FALSE(time.ok()) << text << " was taken for " << time->count();
    EXPECT_THAT(time.error().message, HasSubstr("100ms")) << "no example in the message";
  }
}

TEST(Spelling, SizesPrintInTheLargestUnitThatIsExact) {
  EXPECT_EQ(kSize.format(Bytes(0)), "0B");
  EXPECT_EQ(kSize.format(Bytes(1023)), "1023B");
  EXPECT_EQ(kSize.format(256 * kMiB), "256MiB");
  EXPECT_EQ(kSize.format(1536 * kMiB), "1536MiB");
  EXPECT_EQ(kSize.format(Bytes(INT64_MAX)), "9223372036854775807B");
}

TEST(Spelling, WordsStandForTheirValues) {
  EXPECT_EQ(*kSizeOrAuto.parse("auto"), Bytes(0));
  EXPECT_EQ(*kSizeOrUnlimited.parse("unlimited"), Bytes(INT64_MAX));
  EXPECT_EQ(*kOptionalSize.parse("auto"), std::nullopt);
  EXPECT_EQ(*kDurationOrNever.parse("never"), Nanoseconds(0));
  EXPECT_EQ(*kRate.parse("unlimited"), BytesPerSecond{0});
  EXPECT_EQ(*kRate.parse("10GiB/s"), BytesPerSecond{10737418240.0});
  EXPECT_EQ(*kRate.parse("4096"), BytesPerSecond{4096});
  EXPECT_EQ(*kReadPolicy.parse("auto"), admin::ReadPolicy::kAuto);
  EXPECT_EQ(*kReadPolicy.parse("open"), admin::ReadPolicy::kOpen);
  EXPECT_EQ(*kReadPolicy.parse("token"), admin::ReadPolicy::kToken);
  EXPECT_EQ(*kAutoOrNever.parse("never"), false);
  EXPECT_EQ(*kTouchedOrAll.parse("all"), true);
}

TEST(Spelling, EachRefusesForeignText) {
  EXPECT_FALSE(kRate.parse("10GiB/h").ok());
  EXPECT_FALSE(kRate.parse("-1GiB/s").ok());
  EXPECT_FALSE(kBackend.parse("gpu").ok());
  EXPECT_FALSE(kReadPolicy.parse("true").ok());
  EXPECT_FALSE(kLogLevel.parse("loud").ok());
  EXPECT_THAT(kCudaDram.parse("numa").error().message, HasSubstr("memfd, host_numa, auto"));
  EXPECT_FALSE(kAutoOrNever.parse("always").ok());
  EXPECT_FALSE(kTouchedOrAll.parse("none").ok());
  for (const char* text : {"", "nan", "inf", "-inf", "1e999", "1,5", "3x"}) {
    EXPECT_FALSE(kNumber.parse(text).ok()) << text;
  }
  for (const char* text : {"", "-1", "4294967296", "1.5", "1k"}) {
    EXPECT_FALSE(kCount.parse(text).ok()) << text;
  }
  EXPECT_FALSE(kPort.parse("65536").ok());
  for (const char* text : {"", "1000", "[1000", "[a]", "[-1]", "[4294967295]", "[1 2]"}) {
    EXPECT_FALSE(kIdList.parse(text).ok()) << text;
  }
}

TEST(Spelling, NumbersReadBackToTheSameBits) {
  for (const double value : {0.0, -0.5, 0.1, 1.0 / 3, 1e22, 5e-324}) {
    EXPECT_EQ(*kNumber.parse(kNumber.format(value)), value);
  }
}

TEST(HumanSize, RoundsDownToTenths) {
  EXPECT_EQ(human_size(Bytes(5)), "5 B");
  EXPECT_EQ(human_size(512 * kMiB), "512 MiB");
  EXPECT_EQ(human_size(Bytes(22'999'999'999)), "21.4 GiB");
}

}  // namespace
}  // namespace kvd::daemon
