#include "kvd/daemon/base/log_writer.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <utility>

namespace kvd::daemon {

LogWriter::LogWriter(int fd, Bytes room)
    : fd_(fd), room_(room.size()), stop_(::eventfd(0, EFD_CLOEXEC)), thread_([this] { run(); }) {}

LogWriter::~LogWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  pushed_.notify_all();
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

void LogWriter::push(std::string line) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_bytes_ + line.size() > room_) {
      ++lost_;
      return;
    }
    waiting_bytes_ += line.size();
    lines_.push_back(std::move(line));
  }
  pushed_.notify_one();
}

bool LogWriter::flush(Nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  return written_.wait_for(lock, timeout, [this] { return lines_.empty() && !writing_; });
}

std::uint64_t LogWriter::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

// A log whose reader has gone, or that may not grow, is no reason to end.
void LogWriter::run() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGPIPE, SIGXFSZ}) sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::unique_lock lock(mutex_);
  for (;;) {
    pushed_.wait(lock, [this] { return stopping_ || !lines_.empty(); });
    if (stopping_) return;
    std::string line;
    if (lost_ > told_) {
      line = "kvd: " + std::to_string(lost_ - told_) + " lines of the log were lost before this " +
             "one's end was read\n";
      told_ = lost_;
    }
    line += lines_.front();
    waiting_bytes_ -= lines_.front().size();
    lines_.pop_front();
    writing_ = true;
    lock.unlock();
    const bool go_on = write(line);
    lock.lock();
    writing_ = false;
    written_.notify_all();
    if (!go_on) return;
  }
}

// A pipe that poll calls writable takes PIPE_BUF bytes at once, so no write stands still. The
// descriptor's flags are left alone: it is shared with other processes.
bool LogWriter::write(const std::string& line) {
  for (std::size_t done = 0; done < line.size();) {
    if (!wait_writable()) return false;
    const std::size_t count = std::min<std::size_t>(line.size() - done, PIPE_BUF);
    const ssize_t written = ::write(fd_, line.data() + done, count);
    if (written > 0) {
      done += static_cast<std::size_t>(written);
    } else if (errno != EINTR && errno != EAGAIN) {
      return true;  // nobody can be told that the log is gone
    }
  }
  return true;
}

bool LogWriter::wait_writable() const {
  pollfd waited[] = {{fd_, POLLOUT, 0}, {stop_.get(), POLLIN, 0}};
  while (::poll(waited, 2, -1) < 0 && errno == EINTR) {
  }
  return (waited[1].revents & POLLIN) == 0;
}

}  // namespace kvd::daemon
