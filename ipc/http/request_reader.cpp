#include "ipc/http/request_reader.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace kvd::http {
namespace {

constexpr std::size_t kMostHeaders = 64;
constexpr std::size_t kLongestMethod = 16;

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/// RFC 9110's token: method and header names.
bool is_token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return is_letter_or_digit(c) || kMarks.find(c) != std::string_view::npos;
  });
}

bool is_visible(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

bool is_value(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= ' ' && c <= '~') || c == '\t'; });
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// Takes the text up to `end` off the front of `rest`; none where `end` is missing.
std::optional<std::string_view> cut(std::string_view& rest, std::string_view end) {
  const auto at = rest.find(end);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view head = rest.substr(0, at);
  rest.remove_prefix(at + end.size());
  return head;
}

std::optional<Header> parse_header(std::string_view line) {
  const auto name = cut(line, ":");
  if (!name || !is_token(*name) || !is_value(line)) return std::nullopt;
  return Header{lower(*name), std::string(trimmed(line))};
}

/// A name under which this machine's loopback is reached. A web page that has its own name resolved
/// to 127.0.0.1 sends that name.
bool is_loopback(std::string_view authority) {
  std::string_view name = authority;
  if (authority.starts_with('[')) {
    name = authority.substr(0, authority.find(']') + 1);
  } else {
    name = authority.substr(0, authority.find(':'));
  }
  const std::string_view rest = authority.substr(name.size());
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const bool port =
      rest.empty() || (rest[0] == ':' && std::all_of(rest.begin() + 1, rest.end(), is_digit));
  const auto in_address = [&](char c) { return is_digit(c) || c == '.'; };
  return port && (name == "[::1]" || name == "localhost" ||
                  (name.starts_with("127.") && std::all_of(name.begin(), name.end(), in_address)));
}

bool is_own_origin(std::string_view origin) {
  constexpr std::string_view kScheme = "http://";
  return origin.starts_with(kScheme) && is_loopback(origin.substr(kScheme.size()));
}

bool is_json(const std::string& content_type) {
  const std::string type =
      lower(trimmed(std::string_view(content_type).substr(0, content_type.find(';'))));
  return type == "application/json" || type == "application/merge-patch+json";
}

}  // namespace

const std::string& Request::header(std::string_view name) const {
  static const std::string kNone;
  for (const Header& one : headers) {
    if (one.name == name) return one.value;
  }
  return kNone;
}

RequestReader::State RequestReader::refuse(int status, std::string message) {
  refusal_ = {status, std::move(message)};
  return state_ = State::kRefused;
}

RequestReader::State RequestReader::feed(std::string_view bytes) {
  if (state_ == State::kBody) return take_body(bytes);
  if (state_ != State::kHeader) return state_;
  const std::size_t seen = text_.size() < 3 ? 0 : text_.size() - 3;
  const std::size_t room = limits_.header.size() - text_.size();
  text_.append(bytes.substr(0, room));
  const auto end = text_.find("\r\n\r\n", seen);
  if (end == std::string::npos) {
    return text_.size() < limits_.header.size()
               ? state_
               : refuse(431, "request line and headers may have at most " +
                                 std::to_string(limits_.header.value) + " bytes");
  }
  const std::string rest =
      text_.substr(end + 4) + std::string(bytes.substr(std::min(room, bytes.size())));
  if (read_header(end) != State::kBody) return state_;
  text_ = {};
  return take_body(rest);
}

/// Takes apart the header, which ends at `end`.
RequestReader::State RequestReader::read_header(std::size_t end) {
  std::string_view rest = std::string_view(text_).substr(0, end + 2);
  std::string_view line = cut(rest, "\r\n").value_or("");
  const auto method = cut(line, " ");
  const auto target = cut(line, " ");
  const bool whole_server = method == "OPTIONS" && target == "*";
  if (!method || !target || !is_token(*method) || method->size() > kLongestMethod ||
      !(target->starts_with('/') || whole_server) || !is_visible(*target)) {
    return refuse(400, "the request line must be: METHOD /path HTTP/1.1");
  }
  request_.method = *method;
  request_.old = line == "HTTP/1.0";
  if (line != "HTTP/1.1" && !request_.old) {
    return refuse(505, "this server speaks HTTP/1.1 and HTTP/1.0");
  }
  request_.target = *target;
  while (const auto text = cut(rest, "\r\n")) {
    auto header = parse_header(*text);
    if (!header) return refuse(400, "a header is not \"Name: value\" of plain ASCII");
    if (request_.headers.size() == kMostHeaders) return refuse(431, "more than 64 headers");
    request_.headers.push_back(std::move(*header));
  }
  return check_header();
}

RequestReader::State RequestReader::check_header() {
  constexpr std::array<std::string_view, 6> kOnce = {"host",         "content-length", "origin",
                                                     "content-type", "authorization",  "if-match"};
  for (const std::string_view name : kOnce) {
    const auto same = [&](const Header& header) { return header.name == name; };
    if (std::count_if(request_.headers.begin(), request_.headers.end(), same) > 1) {
      return refuse(400, std::string(name) + " stands there twice");
    }
  }
  const std::string& host = request_.header("host");
  if (!is_loopback(host) && !(host.empty() && request_.old)) {
    return refuse(403,
                  "the Host header must name the loopback (127.0.0.1, localhost or [::1]); a "
                  "proxy must set it");
  }
  const std::string& origin = request_.header("origin");
  if (!origin.empty() && !is_own_origin(origin)) {
    return refuse(403, "web pages of other sites may not ask: their Origin is refused");
  }
  if (!request_.header("transfer-encoding").empty()) {
    return refuse(411, "send the body with a Content-Length");
  }
  const std::string& length = request_.header("content-length");
  const char* last = length.data() + length.size();
  const auto [stop, fault] = std::from_chars(length.data(), last, body_size_);
  if (!length.empty() && (stop != last || fault == std::errc::invalid_argument)) {
    return refuse(400, "Content-Length must be a number");
  }
  if (fault == std::errc::result_out_of_range || body_size_ > limits_.body.size()) {
    return refuse(413,
                  "the body may have at most " + std::to_string(limits_.body.value) + " bytes");
  }
  if (body_size_ > 0 && !is_json(request_.header("content-type"))) {
    return refuse(415, "send the body with \"Content-Type: application/json\"");
  }
  return state_ = State::kBody;
}

RequestReader::State RequestReader::take_body(std::string_view bytes) {
  request_.body.append(bytes.substr(0, body_size_ - request_.body.size()));
  return state_ = request_.body.size() == body_size_ ? State::kComplete : State::kBody;
}

bool RequestReader::waits_for_leave() const {
  return state_ == State::kBody && request_.body.empty() &&
         lower(request_.header("expect")) == "100-continue";
}

}  // namespace kvd::http
