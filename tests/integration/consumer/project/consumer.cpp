#include <cstdio>
#include <kvd_client/client.hpp>

// No daemon listens there: what counts is that the library loads and answers with its own code.
int main() {
  kvd_client::Options options;
  options.endpoint = "/nonexistent/attach.sock";
  const auto client = kvd_client::Client::open(options);
  if (client.ok() || client.code() != kvd_client::ErrorCode::kUnavailable) return 1;
  std::printf("%s\n", kvd_client::name(client.code()).data());
}
