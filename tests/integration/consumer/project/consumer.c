#include <kvd.h>
#include <stdio.h>

int main(void) {
  kvd_open_options options = {sizeof options, "/nonexistent/attach.sock", 0, 0, 0, 0, 0, 0};
  kvd_handle* handle = 0;
  const kvd_status status = kvd_open(&options, &handle);
  printf("%s\n", kvd_strerror(status));
  return status == KVD_UNAVAILABLE ? 0 : 1;
}
