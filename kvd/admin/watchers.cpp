#include "kvd/admin/watchers.hpp"

#include <cpprest/producerconsumerstream.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <string>
#include <utility>

#include "ipc/http/rest_listener.hpp"

namespace kvd::admin {
namespace {

/// "data: " before each line of the body: there is one.
std::string event_of(const HttpResponse& answer) {
  const std::string name = answer.status == 200 ? "overview" : "refused";
  std::string data;
  for (const char c : answer.body) {
    if (c != '\n') data += c;
  }
  return "event: " + name + "\ndata: " + data + "\n\n";
}

}  // namespace

struct Watchers::Watcher {
  HttpRequest asked;
  bool bears_token = false;
  std::shared_ptr<const http::Outcome> outcome;
  std::size_t last = 0;  ///< bytes of the last event
  concurrency::streams::producer_consumer_buffer<std::uint8_t> out;
  std::atomic<bool> gone = false;

  /// Whether more waits for the client than the last event.
  [[nodiscard]] bool lags() const { return last > 0 && outcome->waiting() + out.in_avail() > last; }

  void end() {
    gone = true;
    try {
      out.close(std::ios_base::out).wait();
    } catch (const std::exception&) {  // the client left
    }
  }
};

Watchers::Watchers(AdminService& service, Options options)
    : service_(service), options_(options), thread_([this] { run(); }) {}

void Watchers::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (const WatcherPtr& watcher : watchers_) watcher->end();
}

bool Watchers::add(const web::http::http_request& client, HttpRequest asked) {
  const auto watcher = std::make_shared<Watcher>();
  watcher->bears_token = service_.bears_token(asked);
  watcher->asked = std::move(asked);
  watcher->outcome = http::outcome_of(client);
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || !make_room(*watcher)) return false;
    watchers_.push_back(watcher);
    added_ = true;
  }
  web::http::http_response response(web::http::status_codes::OK);
  response.set_body(watcher->out.create_istream(), std::string(AdminService::kEventStream));
  response.headers().add("Cache-Control", "no-store");
  client.reply(response).then([watcher](const pplx::task<void>& sent) {
    watcher->gone = true;
    try {
      sent.get();
    } catch (const std::exception&) {  // the client left, as they do
    }
  });
  changed_.notify_all();
  return true;
}

bool Watchers::make_room(const Watcher& next) {
  watchers_.remove_if([](const WatcherPtr& one) { return one->gone.load(); });
  if (watchers_.size() < options_.most) return true;
  const auto stranger = std::find_if(watchers_.begin(), watchers_.end(),
                                     [](const WatcherPtr& one) { return !one->bears_token; });
  if (!next.bears_token || stranger == watchers_.end()) return false;
  (*stranger)->end();
  watchers_.erase(stranger);
  return true;
}

void Watchers::tell(Watcher& watcher, const HttpResponse& answer) {
  if (watcher.lags()) return;
  const std::string event = event_of(answer);
  watcher.last = event.size();
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(event.data());
  try {
    watcher.out.putn_nocopy(bytes, event.size()).wait();
    watcher.out.sync().wait();  // what is ready is sent, without waiting for more
  } catch (const std::exception&) {
    watcher.gone = true;
  }
  if (answer.status != 200) watcher.end();
}

/// Watchers that bear the same token get the same answer.
void Watchers::tell_all(const std::list<WatcherPtr>& watchers) {
  std::map<std::string, HttpResponse> answers;
  for (const WatcherPtr& watcher : watchers) {
    const auto [answer, first] = answers.try_emplace(watcher->asked.authorization);
    if (first) answer->second = service_.handle(watcher->asked);
    tell(*watcher, answer->second);
  }
}

void Watchers::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    watchers_.remove_if([](const WatcherPtr& one) {
      const bool gone = one->gone;
      if (gone) one->end();  // a client that still reads the stream finds its end
      return gone;
    });
    changed_.wait(lock, [&] { return stopping_ || !watchers_.empty(); });
    if (stopping_) return;
    added_ = false;
    const auto now = watchers_;
    lock.unlock();
    tell_all(now);
    lock.lock();
    changed_.wait_for(lock, options_.interval, [&] { return stopping_ || added_; });
  }
}

}  // namespace kvd::admin
