#include "kvd/daemon/machine/realtime.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>

#include "kvd/daemon/base/log.hpp"

namespace kvd::daemon {
namespace {

/// 0 or errno.
int set_realtime(bool on) {
  const sched_param priority{.sched_priority = on ? ::sched_get_priority_min(SCHED_RR) : 0};
  const int policy = (on ? SCHED_RR : SCHED_OTHER) | SCHED_RESET_ON_FORK;
  return ::sched_setscheduler(0, policy, &priority) == 0 ? 0 : errno;
}

}  // namespace

bool RealtimeRule::after(Nanoseconds passed, Nanoseconds worked) {
  if (rest_ > Nanoseconds(0)) {
    rest_ -= std::min(rest_, passed);
    return rest_ == Nanoseconds(0);
  }
  passed_ += passed;
  worked_ += worked;
  if (passed_ < kWindow) return true;
  if (to_seconds(worked_) > kBusy * to_seconds(passed_)) rest_ = kRest;
  passed_ = worked_ = Nanoseconds(0);
  return rest_ == Nanoseconds(0);
}

RealtimeThread::RealtimeThread(bool wanted, const Clock& clock)
    : clock_(clock), last_(clock.now()), last_worked_(worked()) {
  if (!wanted) return;
  const int refused = set_realtime(true);
  allowed_ = now_ = refused == 0;
  if (now_) {
    log_info("answers engines before all programs that are not realtime (SCHED_RR)");
  } else {
    log_info(
        "answers wait for a core where engines use them all: " +
        std::string(std::strerror(refused)) +
        "; to be woken first kvd needs CAP_SYS_NICE, or LimitRTPRIO=1 and no RestrictRealtime");
  }
}

void RealtimeThread::tick() {
  if (!allowed_) return;
  const TimePoint now = clock_.now();
  const Nanoseconds all_work = worked();
  const bool wanted = rule_.after(now - last_, all_work - last_worked_);
  last_ = now;
  last_worked_ = all_work;
  if (wanted == now_ || set_realtime(wanted) != 0) return;
  now_ = wanted;
  if (!now_) log_warning("the thread that answers engines hardly sleeps: not realtime for 2 s");
}

Nanoseconds RealtimeThread::worked() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + Nanoseconds(time.tv_nsec);
}

}  // namespace kvd::daemon
