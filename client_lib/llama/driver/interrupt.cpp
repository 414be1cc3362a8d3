#include "client_lib/llama/driver/interrupt.hpp"

#include <csignal>
#include <initializer_list>

namespace kvd_llama {
namespace {

sigset_t handled_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&signals, signal);
  return signals;
}

}  // namespace

void block_signals() {
  const sigset_t signals = handled_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

bool stop_requested() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1;
}

bool wait_for_resume() {
  const sigset_t signals = handled_signals();
  int signal = 0;
  while (sigwait(&signals, &signal) != 0) {
  }
  if (signal == SIGUSR1) return true;
  raise(signal);  // taken from the queue by sigwait: put it back for stop_requested()
  return false;
}

}  // namespace kvd_llama
