#include "tests/engines/engine_support.hpp"

#include <sys/socket.h>

#include <array>
#include <utility>

#include "tests/support/daemon_process.hpp"
#include "tests/support/free_port.hpp"
#include "tests/unit/kvd/admin/http.hpp"

namespace kvd::test {
namespace {

using nlohmann::json;

ChildCommand engine_command(std::uint16_t port, const std::string& endpoint,
                            const std::vector<std::string>& options, const std::string& model) {
  ChildCommand command{{built_program("kvd-engine"), "--random", model, "--port",
                        std::to_string(port), "--threads", "1"},
                       {}};
  if (endpoint.empty()) {
    command.arguments.emplace_back("--no-kvd");
  } else {
    command.arguments.insert(command.arguments.end(), {"--endpoint", endpoint});
  }
  command.arguments.insert(command.arguments.end(), options.begin(), options.end());
  return command;
}

std::string request_text(const std::string& path, const std::string& body) {
  return "POST " + path +
         " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
         "Content-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

void take_choice(const json& choice, Generation& out) {
  out.text += choice.value("text", "");
  for (const char* chat : {"delta", "message"}) {
    if (choice.contains(chat)) out.text += choice[chat].value("content", "");
  }
  if (choice.contains("token_ids")) {
    for (const json& token : choice["token_ids"]) out.tokens.push_back(token.get<std::uint32_t>());
  }
  if (choice.contains("kvd_logits_digest")) {
    const json& digest = choice["kvd_logits_digest"];
    if (digest.is_array()) {
      for (const json& one : digest) out.digests.push_back(one.get<std::string>());
    } else {
      out.digests.push_back(digest.get<std::string>());
    }
  }
  if (choice["finish_reason"].is_string()) out.finish_reason = choice["finish_reason"];
}

void take_document(const json& document, Generation& out) {
  if (document.contains("error")) out.error = document["error"];
  if (document.contains("usage")) out.usage = document["usage"];
  if (!document.contains("choices")) return;
  for (const json& choice : document["choices"]) take_choice(choice, out);
}

/// Takes the chunks that are whole off `raw`.
std::string take_chunks(std::string& raw) {
  std::string out;
  for (;;) {
    const auto end = raw.find("\r\n");
    if (end == std::string::npos) return out;
    const std::size_t size = std::stoul(raw.substr(0, end), nullptr, 16);
    if (raw.size() < end + size + 4) return out;
    out += raw.substr(end + 2, size);
    raw.erase(0, end + size + 4);
  }
}

}  // namespace

EngineProcess::EngineProcess(const std::string& endpoint, const std::vector<std::string>& options,
                             const std::string& model)
    : port_(free_port()), process_(engine_command(port_, endpoint, options, model)) {}

json EngineProcess::health() const {
  const std::string answer = admin::http_exchange(
      port_, "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
  const auto at = answer.find("\r\n\r\n");
  return at == std::string::npos ? json() : json::parse(answer.substr(at + 4), nullptr, false);
}

Stream::Stream(std::uint16_t port, json body, const std::string& path)
    : socket_(admin::connected(port)) {
  body["stream"] = true;
  const std::string text = request_text(path, body.dump());
  if (!socket_.valid() || ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) !=
                              static_cast<ssize_t>(text.size())) {
    socket_.reset();
  }
}

bool Stream::read_more() {
  std::array<char, 4096> bytes;
  const ssize_t count = socket_.valid() ? ::recv(socket_.get(), bytes.data(), bytes.size(), 0) : 0;
  if (count <= 0) return false;
  unread_.append(bytes.data(), static_cast<std::size_t>(count));
  if (!header_read_) {
    const auto end = unread_.find("\r\n\r\n");
    if (end == std::string::npos) return true;
    header_read_ = true;
    out_.status = std::stoi(unread_.substr(9, 3));
    chunked_ = unread_.substr(0, end).find("chunked") != std::string::npos;
    unread_.erase(0, end + 4);
  }
  (chunked_ ? events_ : body_) += chunked_ ? take_chunks(unread_) : std::exchange(unread_, {});
  take_events();
  return true;
}

void Stream::take_events() {
  for (std::size_t end; (end = events_.find("\n\n")) != std::string::npos;) {
    const std::string event = events_.substr(0, end);
    events_.erase(0, end + 2);
    if (event == "data: [DONE]") {
      out_.done = true;
    } else if (event.starts_with("data: ")) {
      take_document(json::parse(event.substr(6)), out_);
    } else {
      ++comments_;
    }
  }
}

bool Stream::read_tokens(std::size_t count) {
  while (out_.tokens.size() < count) {
    if (!read_more()) return false;
  }
  return true;
}

bool Stream::read_comments(std::size_t count) {
  while (comments_ < count) {
    if (!read_more()) return false;
  }
  return true;
}

Generation Stream::finish() {
  while (read_more()) {
  }
  if (!body_.empty()) take_document(json::parse(body_, nullptr, false), out_);
  return out_;
}

Generation ask(std::uint16_t port, const std::string& request) {
  const std::string answer = admin::http_exchange(port, request);
  Generation out;
  const auto at = answer.find("\r\n\r\n");
  if (at == std::string::npos) return out;
  out.status = std::stoi(answer.substr(9, 3));
  const json document = json::parse(answer.substr(at + 4), nullptr, false);
  if (!document.is_discarded()) take_document(document, out);
  return out;
}

Generation post(std::uint16_t port, const std::string& body, const std::string& path) {
  return ask(port, request_text(path, body));
}

}  // namespace kvd::test
