#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "client_lib/llama/driver/record.hpp"
#include "tests/engines/child_process.hpp"
#include "tests/engines/workbench.hpp"
#include "tests/support/daemon_process.hpp"

namespace kvd::test {
namespace {

enum Exit : int { kIdentical = 0, kDifferent = 1, kUnreadable = 2, kVacuous = 3 };

/// Writes small records and compares them; the checker itself must be able to say every answer.
class Compare : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const std::string& path : written_) std::filesystem::remove(path);
  }

  static constexpr std::uint32_t kVocabulary = 4;

  /// `steps` steps, each with a token of its own.
  std::string write(const std::string& name, int steps, float changed_logit = 0) {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string path = ::testing::TempDir() + "/kvd-compare-" + test->name() + "-" + name;
    written_.push_back(path);
    kvd_llama::RecordWriter writer(path, kVocabulary);
    for (int step = 0; step < steps; ++step) {
      std::vector<float> logits(kVocabulary, static_cast<float>(step));
      if (step == steps / 2) logits.back() += changed_logit;
      writer.append(step, logits.data());
    }
    EXPECT_TRUE(writer.finish());
    return path;
  }

  static void overwrite(const std::string& path, std::size_t offset, float value) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(reinterpret_cast<const char*>(&value), sizeof value);
    ASSERT_TRUE(file.good());
  }

  static std::optional<int> compare(const std::string& a, const std::string& b) {
    return run_to_end({{built_program("kvd-llama-compare"), a, b}, {}});
  }

  std::vector<std::string> written_;
};

TEST_F(Compare, AcceptsEqualRecords) {
  EXPECT_EQ(compare(write("a", 101), write("b", 101)), kIdentical);
}

TEST_F(Compare, RefusesTheSmallestDifference) {
  EXPECT_EQ(compare(write("a", 101), write("b", 101, 1e-5F)), kDifferent);
}

TEST_F(Compare, TellsMinusZeroFromZero) {
  const std::string a = write("a", 101);
  const std::string b = write("b", 101);
  // Step 0 has logits of 0; a minus sign in the first one equals it as a number, not as bytes.
  overwrite(b, sizeof(kvd_llama::RecordHeader) + sizeof(std::int32_t), -0.0F);
  EXPECT_EQ(compare(a, b), kDifferent);
}

TEST_F(Compare, RefusesAShorterRecord) {
  EXPECT_EQ(compare(write("a", 102), write("b", 101)), kDifferent);
}

TEST_F(Compare, RefusesATornRecord) {
  const std::string torn = write("b", 101);
  std::filesystem::resize_file(torn, std::filesystem::file_size(torn) - 1);
  EXPECT_EQ(compare(write("a", 101), torn), kDifferent);
}

TEST_F(Compare, CallsEqualRecordsOfFewTokensVacuous) {
  EXPECT_EQ(compare(write("a", 100), write("b", 100)), kVacuous);
}

TEST_F(Compare, RefusesEmptyRecordsAndMissingFiles) {
  EXPECT_EQ(compare(write("a", 0), write("b", 0)), kDifferent);
  EXPECT_EQ(compare(write("a", 101), "/nonexistent"), kUnreadable);
}

}  // namespace
}  // namespace kvd::test
