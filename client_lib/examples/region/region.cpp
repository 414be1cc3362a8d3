/// An engine in a few lines: takes memory of kvd, writes to it, and gives it back.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <kvd_client/client.hpp>

int main() {
  using namespace std::chrono_literals;
  auto client = kvd_client::Client::open({});  // finds kvd by KVD_ENDPOINT
  if (!client.ok()) {
    std::fprintf(stderr, "no kvd: %s\n", client.error().message.c_str());
    return 1;
  }
  const auto region = client->allocate_region(1 << 20, 5s);
  if (!region.ok()) {
    std::fprintf(stderr, "no memory: %s\n", region.error().message.c_str());
    return 1;
  }
  std::memset(region->address, 1, region->bytes);
  std::printf("kvd lent %llu bytes\n", static_cast<unsigned long long>(region->bytes));
  return client->free_region(region->id, 5s).ok() ? 0 : 1;
}
