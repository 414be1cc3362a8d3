#include "tests/lab/bench/serve_load.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <string>
#include <string_view>

#include "ipc/vocabulary/check.hpp"
#include "ipc/vocabulary/unique_fd.hpp"
#include "tests/unit/kvd/admin/http.hpp"

namespace kvd::bench {
namespace {

constexpr std::string_view kTokenMark = "\"token_ids\":[";
constexpr std::string_view kEndMark = "data: [DONE]";

std::string request_text(const ServeRequest& request) {
  std::string body = R"({"stream":true,"ignore_eos":true,"max_tokens":)" +
                     std::to_string(request.new_tokens) + R"(,"prompt":[)";
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    body += (i == 0 ? "" : ",") + std::to_string(request.prompt[i]);
  }
  body += "]";
  if (request.ttft_s > 0) body += ",\"kvd_ttft_s\":" + std::to_string(request.ttft_s);
  if (request.tbt_s > 0) body += ",\"kvd_tbt_s\":" + std::to_string(request.tbt_s);
  body += "}";
  return "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
         "Content-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

/// One answer as it comes in. The server writes an event as one chunk, so the framing in between
/// cuts no mark; text that a read cuts is looked at again with the next read.
class Stream {
 public:
  Stream(const ServeRequest& request, ServeAnswer& answer)
      : socket_(admin::connected(request.port)), answer_(answer) {
    const std::string text = request_text(request);
    const bool sent = socket_.valid() && ::send(socket_.get(), text.data(), text.size(),
                                                MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
    if (!sent) socket_.reset();
  }
  [[nodiscard]] int fd() const { return socket_.get(); }

  /// Returns whether more may come.
  bool read(double now_s) {
    std::array<char, 16384> bytes;
    const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) unread_.append(bytes.data(), static_cast<std::size_t>(count));
    take_tokens(now_s);
    if (unread_.find(kEndMark) != std::string::npos) answer_.complete = true;
    if (count <= 0) socket_.reset();
    return count > 0;
  }

 private:
  void take_tokens(double now_s) {
    for (std::size_t at; (at = unread_.find(kTokenMark)) != std::string::npos;) {
      const char* begin = unread_.data() + at + kTokenMark.size();
      const char* end = unread_.data() + unread_.size();
      std::uint32_t token = 0;
      const auto [stop, error] = std::from_chars(begin, end, token);
      if (stop == end) return;  // the rest of the number is on its way
      if (error == std::errc()) answer_.token_s.push_back(now_s);
      unread_.erase(0, static_cast<std::size_t>(stop - unread_.data()));
    }
  }

  UniqueFd socket_;
  ServeAnswer& answer_;
  std::string unread_;
};

class Load {
 public:
  explicit Load(std::span<const ServeRequest> requests)
      : requests_(requests), answers_(requests.size()), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    KVD_CHECK(epoll_.valid(), "epoll");
    streams_.reserve(requests.size());
  }

  std::vector<ServeAnswer> run(double limit_s) {
    while (now_s() < limit_s && (streams_.size() < requests_.size() || open_ > 0)) {
      while (streams_.size() < requests_.size() && requests_[streams_.size()].at_s <= now_s()) {
        send_next();
      }
      read_some(limit_s);
    }
    return std::move(answers_);
  }

 private:
  using Steady = std::chrono::steady_clock;
  [[nodiscard]] double now_s() const {
    return std::chrono::duration<double>(Steady::now() - began_).count();
  }

  void send_next() {
    const std::size_t i = streams_.size();
    answers_[i].sent_s = now_s();
    streams_.emplace_back(requests_[i], answers_[i]);
    if (streams_[i].fd() < 0) return;
    epoll_event event{EPOLLIN, {.u64 = i}};
    KVD_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, streams_[i].fd(), &event) == 0, "epoll_ctl");
    ++open_;
  }

  void read_some(double limit_s) {
    const bool more = streams_.size() < requests_.size();
    const double next = more ? std::min(limit_s, requests_[streams_.size()].at_s) : limit_s;
    const double left_ms = std::clamp((next - now_s()) * 1e3, 0.0, 1e3);
    std::array<epoll_event, 64> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   static_cast<int>(std::ceil(left_ms)));
    const double now = now_s();
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      if (!streams_[event.data.u64].read(now)) --open_;
    }
  }

  const std::span<const ServeRequest> requests_;
  std::vector<ServeAnswer> answers_;
  const UniqueFd epoll_;
  std::vector<Stream> streams_;
  std::size_t open_ = 0;
  const Steady::time_point began_ = Steady::now();
};

}  // namespace

std::vector<ServeAnswer> serve_load(std::span<const ServeRequest> requests, double limit_s) {
  return Load(requests).run(limit_s);
}

}  // namespace kvd::bench
