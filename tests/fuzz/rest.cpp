// Bytes of an HTTP client, and what its bodies change: a request is the same however it comes, and
// no change leaves settings with a fault.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <variant>

#include "ipc/http/request_reader.hpp"
#include "ipc/vocabulary/bounded_input.hpp"
#include "kvd/admin/admin_service.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/unit/kvd/admin/fake_backend.hpp"

namespace kvd::fuzz {
namespace {

using admin::FakeBackend;
using http::RequestReader;
using Json = nlohmann::json;

struct Read {
  RequestReader::State state{};
  http::Request request;
  http::Refusal refusal;
};

Read read(std::string_view text, std::size_t step) {
  RequestReader reader({Bytes(2048), Bytes(2048)});
  for (; !text.empty(); text.remove_prefix(std::min(step, text.size()))) {
    (void)reader.feed(text.substr(0, step));
    (void)reader.waits_for_leave();
  }
  Read all{reader.state(), {}, {}};
  if (all.state == RequestReader::State::kRefused) all.refusal = reader.refusal();
  if (all.state == RequestReader::State::kComplete) all.request = reader.take();
  return all;
}

void check_same(const Read& a, const Read& b) {
  const auto named = [](const http::Header& x, const http::Header& y) {
    return x.name == y.name && x.value == y.value;
  };
  expect(a.state == b.state && a.refusal.status == b.refusal.status, "it depends on pieces");
  expect(a.request.method == b.request.method && a.request.target == b.request.target &&
             a.request.body == b.request.body &&
             std::ranges::equal(a.request.headers, b.request.headers, named),
         "another request in pieces");
}

/// The levels of nested brackets.
int depth_of(const Json& value) {
  int depth = 0;
  if (!value.is_structured()) return depth;
  for (const Json& each : value) depth = std::max(depth, depth_of(each));
  return depth + 1;
}

void check_json(const std::string& text) {
  constexpr int kMost = 16;
  if (!check_nesting(text, "text", kMost).ok()) return;
  const Json value = Json::parse(text, nullptr, false);
  expect(value.is_discarded() || depth_of(value) <= kMost, "it nests deeper than was found");
}

void serve(const http::Request& request) {
  FakeBackend backend;
  admin::AdminService service(backend);
  const std::string path = request.target.substr(0, request.target.find('?'));
  const auto answer =
      service.handle({request.method, path, request.header("authorization"),
                      request.header("if-match"), request.body, request.header("accept")});
  expect(answer.status >= 200 && answer.status < 600, "no such status");
  expect(backend.tuning().faults().empty(), "a change has left a fault");
  const bool json = answer.type == "application/json" && !answer.body.empty();
  expect(!json || Json::accept(answer.body), "an answer is no JSON");
}

std::string request_of(const std::string& method, const std::string& path,
                       const std::string& body) {
  std::string text =
      method + " " + path + " HTTP/1.1\r\nHost: localhost:8470\r\nAuthorization: Bearer " +
      FakeBackend::kToken +
      "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
      "\r\n\r\n";
  return text + body;
}

}  // namespace

std::vector<Data> seeds() {
  const core::Tuning tuning;
  FakeBackend backend;
  admin::AdminService service(backend);
  std::vector<Data> all;
  const auto add_request = [&](const std::string& method, const std::string& path,
                               const std::string& body) {
    add_text(all.emplace_back(Data{std::byte{5}}), request_of(method, path, body));
  };
  add_request("GET", "/v1/status?x=1", "");
  add_request("PATCH", "/v1/policy",
              R"({"rotation":{"policy":"fcfs","alpha":2.5},"admission":{"policy":"none"}})");
  add_request("PATCH", "/v1/slo", R"({"classes":{"chat":{"ttft_s":1.5,"tbt_s":0.1},"x":null}})");
  add_request(
      "PATCH", "/v1/quotas",
      R"({"domains":{"default":{"hbm":{"guarantee_bytes":2097152,"maximum_bytes":null}}}})");
  add_request("PATCH", "/v1/drain", R"({"node":{"deadline_s":3},"engines":{"1":null}})");
  return all;
}

void run(View input) {
  const std::size_t step = std::size_t{1} + take<std::uint8_t>(input);
  const std::string text = text_of(input);
  const Read whole = read(text, text.size() + 1);
  check_same(whole, read(text, step));
  check_json(expanded(text.substr(std::min(text.find('{'), text.size()))));
  if (whole.state == RequestReader::State::kComplete) serve(whole.request);
}

}  // namespace kvd::fuzz
