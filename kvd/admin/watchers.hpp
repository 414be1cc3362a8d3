#pragma once

#include <cpprest/http_msg.h>

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "ipc/vocabulary/units.hpp"
#include "kvd/admin/admin_service.hpp"

namespace kvd::admin {

/// Clients that get server-sent events: each second the answer that a GET would have then. A client
/// that may not read any more, since an engine of another user has attached, is told so and hung up
/// on. A client that does not read misses events: two wait for it at most. Between two events a
/// stream waits for nobody, so the front's limit on idle clients does not count; one that takes no
/// bytes meets the limit for answers. Source: the WHATWG's HTML standard, "Server-sent events".
/// Owner: thread-safe; a thread of its own sends.
class Watchers {
 public:
  static constexpr std::size_t kMost = 8;
  struct Options {
    std::size_t most = kMost;
    std::chrono::nanoseconds interval = std::chrono::seconds(1);
  };

  Watchers(AdminService& service, Options options);
  ~Watchers() { stop(); }
  Watchers(const Watchers&) = delete;
  Watchers& operator=(const Watchers&) = delete;

  /// False, with nothing said to the client, when no further one may come. A client with the token
  /// takes the place of one without.
  [[nodiscard]] bool add(const web::http::http_request& client, HttpRequest asked);

  /// Ends every stream; add() is false from now on.
  void stop();

 private:
  struct Watcher;
  using WatcherPtr = std::shared_ptr<Watcher>;
  /// Whether there is room for one more. Makes room where it may.
  [[nodiscard]] bool make_room(const Watcher& next);
  void run();
  void tell(Watcher& watcher, const HttpResponse& answer);
  void tell_all(const std::list<WatcherPtr>& watchers);

  AdminService& service_;
  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<WatcherPtr> watchers_;  // guarded by mutex_, like what follows
  bool added_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvd::admin
