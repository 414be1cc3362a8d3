#include "kvd/ctl/rest_client.hpp"

#include <cpprest/http_client.h>
#include <pplx/threadpool.h>

#include <exception>
#include <mutex>
#include <string_view>

#ifdef __SANITIZE_ADDRESS__
/// Tasks that the library's threads have not finished when the process ends are no leak of ours.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:libcpprest.so\n";
}
#endif

namespace kvd::ctl {
namespace {

using web::http::client::http_client;
using web::http::client::http_client_config;

/// The library would start 40 threads for one request.
void limit_threads() {
  static std::once_flag once;
  std::call_once(once, [] { crossplat::threadpool::initialize_with_threads(2); });
}

/// The library looks an IPv6 address up with its brackets, and finds none. Without them it takes
/// the last of its numbers for a port, so that there has to be one.
std::string unbracketed(std::string url) {
  const std::size_t close = url.find(']');
  if (close != std::string::npos && url.substr(close + 1, 1) != ":") url.insert(close + 1, ":80");
  std::erase_if(url, [](char c) { return c == '[' || c == ']'; });
  return url;
}

web::http::http_request translate(const RestRequest& request) {
  web::http::http_request out(request.method);
  const std::size_t host = std::string_view("http://").size();
  if (request.url.find('[') == host) {
    out.headers().add("Host", request.url.substr(host, request.url.find('/', host) - host));
  }
  out.set_request_uri(request.path);
  if (!request.token.empty()) out.headers().add("Authorization", "Bearer " + request.token);
  if (!request.body.empty()) out.set_body(request.body, "application/merge-patch+json");
  return out;
}

RestAnswer exchange(const RestRequest& request) {
  http_client_config config;
  config.set_timeout(std::chrono::duration_cast<std::chrono::microseconds>(request.timeout));
  http_client client(unbracketed(request.url), config);
  const auto response = client.request(translate(request)).get();
  return {response.status_code(), response.extract_utf8string(true).get()};
}

}  // namespace

Result<RestAnswer> ask(const RestRequest& request) {
  if (!web::uri::validate(request.url) || !request.url.starts_with("http://")) {
    return make_error(ErrorCode::kInvalidArgument,
                      "\"" + request.url + "\" is no http:// URL, such as http://127.0.0.1:8470");
  }
  try {
    limit_threads();
    return exchange(request);
  } catch (const std::exception& error) {
    return make_error(ErrorCode::kUnavailable,
                      "no answer from " + request.url + ": " + error.what() +
                          "; is kvd running, and is this its admin address (--url)?");
  }
}

}  // namespace kvd::ctl
