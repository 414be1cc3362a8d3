#include "metrics/exporter/exporter.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <chrono>

#include "ipc/vocabulary/unique_fd.hpp"

namespace kvd::metrics {
namespace {
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// The whole answer to a GET of `path`; empty when nobody answers within 5 s.
std::string get(std::uint16_t port, const std::string& path) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{5, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return "";
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
  std::string answer;
  char piece[4096];
  for (ssize_t n = 0; (n = ::recv(socket.get(), piece, sizeof piece, 0)) > 0;) {
    answer.append(piece, static_cast<std::size_t>(n));
  }
  return answer;
}

const Exporter::Config kAnyPort{"127.0.0.1", 0};

TEST(Exporter, ServesFamiliesWithHelpTypeAndValues) {
  auto sut = Exporter::start(kAnyPort, [](std::vector<Sample>& out) {
    out.push_back({"kvd_copy_bytes_total", {"h2d"}, 4096});
    out.push_back({"kvd_engine_up", {"llama \"1\"", "red"}, 1});
  });
  ASSERT_TRUE(sut.ok()) << sut.error().to_string();
  const std::string answer = get((*sut)->port(), "/metrics");
  EXPECT_THAT(answer, AllOf(HasSubstr("200 OK"), HasSubstr("# TYPE kvd_copy_bytes_total counter"),
                            HasSubstr("# HELP kvd_copy_bytes_total Bytes moved"),
                            HasSubstr("kvd_copy_bytes_total{direction=\"h2d\"} 4096\n"),
                            HasSubstr("kvd_copy_bytes_total{direction=\"d2h\"} 0\n")));
  EXPECT_THAT(answer, HasSubstr("kvd_engine_up{engine=\"llama \\\"1\\\"\",domain=\"red\"} 1\n"));
  for (const Metric& metric : catalogue()) {
    EXPECT_THAT(answer, HasSubstr("# TYPE " + std::string(metric.name) + " "));
  }
}

TEST(Exporter, SeriesEndWithWhatTheySpeakOf) {
  int scrapes = 0;
  auto sut = Exporter::start(kAnyPort, [&](std::vector<Sample>& out) {
    if (scrapes++ == 0) out.push_back({"kvd_engine_up", {"gone", "red"}, 1});
  });
  ASSERT_TRUE(sut.ok()) << sut.error().to_string();
  EXPECT_THAT(get((*sut)->port(), "/metrics"), HasSubstr("engine=\"gone\""));
  EXPECT_THAT(get((*sut)->port(), "/metrics"),
              AllOf(HasSubstr("# TYPE kvd_engine_up gauge"), Not(HasSubstr("engine=\"gone\""))));
}

TEST(Exporter, TakenPortIsUnavailableWithARemedy) {
  auto first = Exporter::start(kAnyPort, [](auto&) {});
  ASSERT_TRUE(first.ok()) << first.error().to_string();
  auto sut = Exporter::start({"127.0.0.1", (*first)->port()}, [](auto&) {});
  ASSERT_FALSE(sut.ok());
  EXPECT_EQ(sut.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(sut.error().message, HasSubstr("choose another port"));
}

TEST(Exporter, OnlyLiteralAddresses) {
  for (const std::string address : {"", "localhost", "127.0.0.1,0.0.0.0", "127.0.0.1:80"}) {
    auto sut = Exporter::start({address, 0}, [](auto&) {});
    ASSERT_FALSE(sut.ok()) << address;
    EXPECT_EQ(sut.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Exporter, EndsWithinThreeSeconds) {
  auto sut = Exporter::start(kAnyPort, [](auto&) {});
  ASSERT_TRUE(sut.ok()) << sut.error().to_string();
  ASSERT_THAT(get((*sut)->port(), "/metrics"), HasSubstr("200 OK"));
  const auto start = std::chrono::steady_clock::now();
  sut->reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

TEST(Exporter, AHistogramIsCumulativeAndEndsInInfinity) {
  const auto collect = [](std::vector<Sample>& out) {
    out.push_back({"kvd_vlt_seconds", {}, 12.5, {3, 0, 0, 0, 2, 0, 0, 0, 0, 1}});
  };
  const auto sut = Exporter::start(kAnyPort, collect);
  ASSERT_TRUE(sut.ok());
  const std::string answer = get((*sut)->port(), "/metrics");
  EXPECT_THAT(answer,
              AllOf(HasSubstr("# TYPE kvd_vlt_seconds histogram"),
                    HasSubstr("kvd_vlt_seconds_bucket{le=\"0\"} 3\n"),
                    HasSubstr("kvd_vlt_seconds_bucket{le=\"0.5\"} 5\n"),
                    HasSubstr("kvd_vlt_seconds_bucket{le=\"+Inf\"} 6\n"),
                    HasSubstr("kvd_vlt_seconds_sum 12.5\n"), HasSubstr("kvd_vlt_seconds_count 6\n"),
                    HasSubstr("kvd_deposit_tokens_count 0\n")));
}

}  // namespace
}  // namespace kvd::metrics
