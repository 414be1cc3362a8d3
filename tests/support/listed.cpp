/// kvd-listed FIRST COUNT NAMES PROGRAM [ARGUMENT...]: becomes the program with the descriptors
/// FIRST to FIRST + COUNT - 1 in the places and under the names in which systemd hands over what it
/// has kept (sd_listen_fds(3)). Exit 1 where one is not there.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const int first = std::atoi(argv[1]);
  const int count = std::atoi(argv[2]);
  for (int i = 0; i < count; ++i) {
    if (::dup2(first + i, 3 + i) < 0) return 1;
    ::close(first + i);
  }
  ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
  ::setenv("LISTEN_FDS", argv[2], 1);
  ::setenv("LISTEN_FDNAMES", argv[3], 1);
  ::execv(argv[4], argv + 4);
  return 1;
}
