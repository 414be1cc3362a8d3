#include "kvd/daemon/base/log_writer.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>

namespace kvd::daemon {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

constexpr Nanoseconds kLong = std::chrono::seconds(30);
constexpr Nanoseconds kNothing{0};

/// A pipe that nobody reads until read_all().
class Pipe {
 public:
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    read_ = UniqueFd(ends[0]);
    write_ = UniqueFd(ends[1]);
  }
  [[nodiscard]] int write_end() const { return write_.get(); }
  void close_read_end() { read_ = UniqueFd(); }
  void fill() const {
    const std::string junk(4096, '.');
    while (::write(write_.get(), junk.data(), junk.size()) > 0) {
    }
  }
  std::string read_some() const {
    std::string text(65536, '\0');
    const ssize_t count = ::read(read_.get(), text.data(), text.size());
    text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    return text;
  }
  std::string read_until(LogWriter& writer) const {
    std::string text;
    while (!writer.flush(std::chrono::milliseconds(1))) text += read_some();
    return text + read_some();
  }

 private:
  UniqueFd read_, write_;
};

TEST(LogWriter, WritesLinesInOrder) {
  const Pipe pipe;
  LogWriter sut(pipe.write_end(), kMiB);
  sut.push("one\n");
  sut.push("two\n");
  ASSERT_TRUE(sut.flush(kLong));
  EXPECT_EQ(pipe.read_some(), "one\ntwo\n");
  EXPECT_EQ(sut.lost(), 0u);
}

TEST(LogWriter, NeverWaitsForAReaderAndSaysWhatWasLost) {
  const Pipe pipe;
  pipe.fill();
  LogWriter sut(pipe.write_end(), kKiB);
  for (int i = 0; i < 1000; ++i) sut.push("line " + std::to_string(i) + "\n");
  EXPECT_FALSE(sut.flush(kNothing));
  EXPECT_GT(sut.lost(), 800u);
  EXPECT_LT(sut.lost(), 1000u);

  EXPECT_THAT(pipe.read_until(sut), HasSubstr("line 0\n"));
  const std::uint64_t lost = sut.lost();
  sut.push("later\n");
  EXPECT_THAT(pipe.read_until(sut), EndsWith("later\n"));
  EXPECT_EQ(sut.lost(), lost) << "there is room again";
}

TEST(LogWriter, ALineLongerThanThePipeArrivesWhole) {
  const Pipe pipe;
  LogWriter sut(pipe.write_end(), kMiB);
  std::string line(200000, 'x');
  line += '\n';
  sut.push(line);
  EXPECT_EQ(pipe.read_until(sut), line);
}

TEST(LogWriter, EndsThoughNobodyReads) {
  const Pipe pipe;
  pipe.fill();
  LogWriter sut(pipe.write_end(), kMiB);
  sut.push("never read\n");
  EXPECT_FALSE(sut.flush(kNothing));
}

TEST(LogWriter, LivesOnWhereTheReaderHasGone) {
  Pipe pipe;
  pipe.close_read_end();
  LogWriter sut(pipe.write_end(), kMiB);
  sut.push("nowhere\n");
  EXPECT_TRUE(sut.flush(kLong));
}

}  // namespace
}  // namespace kvd::daemon
