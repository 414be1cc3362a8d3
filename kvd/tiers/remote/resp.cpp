#include "kvd/tiers/remote/resp.hpp"

#include <charconv>

namespace kvd::remote {

namespace {

struct Known {
  std::string_view word;
  Refusal::Scope scope;
  ErrorCode code;
  std::string_view remedy;
};

using Scope = Refusal::Scope;
constexpr Known kKnown[] = {
    {"MOVED", Scope::kServer, ErrorCode::kUnsupported,
     "it is a part of a cluster: name servers that run alone in remote.servers, kvd shares out "
     "the keys itself"},
    {"ASK", Scope::kServer, ErrorCode::kUnsupported,
     "it is a part of a cluster: name servers that run alone in remote.servers"},
    {"CLUSTERDOWN", Scope::kServer, ErrorCode::kUnsupported,
     "it is a part of a cluster: name servers that run alone in remote.servers"},
    {"NOAUTH", Scope::kServer, ErrorCode::kPermissionDenied,
     "it wants a password: write it to a file and name that in remote.password_file"},
    {"WRONGPASS", Scope::kServer, ErrorCode::kPermissionDenied,
     "it refuses the password: correct the file that remote.password_file names"},
    {"NOPERM", Scope::kServer, ErrorCode::kPermissionDenied,
     "the user may not: allow GETEX, SET, EXISTS, PEXPIRE, UNLINK and PING on kvd1:*"},
    {"OOM", Scope::kWrites, ErrorCode::kOutOfMemory,
     "it is full: set its maxmemory-policy to allkeys-lru, or raise maxmemory"},
    {"READONLY", Scope::kWrites, ErrorCode::kUnsupported,
     "it is a replica: name the primary in remote.servers"},
    {"MISCONF", Scope::kWrites, ErrorCode::kUnavailable,
     "it cannot save to its disk: mend that, or switch its persistence off (save \"\")"},
    {"NOREPLICAS", Scope::kWrites, ErrorCode::kUnavailable,
     "it has too few replicas: bring them back"},
    {"WRONGTYPE", Scope::kValue, ErrorCode::kNotFound,
     "another program writes keys that begin with kvd1: give kvd a server of its own"},
    {"LOADING", Scope::kServer, ErrorCode::kUnavailable, "it reads its dump: wait"},
    {"BUSY", Scope::kServer, ErrorCode::kUnavailable, "it runs a script: wait, or SCRIPT KILL"},
    {"MASTERDOWN", Scope::kServer, ErrorCode::kUnavailable, "its primary is gone: bring it back"},
};

std::string printable(std::string_view text) {
  std::string words(text.substr(0, 120));
  for (char& letter : words) {
    if (letter < ' ' || letter > '~') letter = '?';
  }
  return words;
}

}  // namespace

void begin_command(std::string& out, std::size_t words) {
  out += '*';
  out += std::to_string(words);
  out += "\r\n";
}

void add_word(std::string& out, std::string_view word) {
  out += '$';
  out += std::to_string(word.size());
  out += "\r\n";
  out += word;
  out += "\r\n";
}

void add_command(std::string& out, std::initializer_list<std::string_view> words) {
  begin_command(out, words.size());
  for (const std::string_view word : words) add_word(out, word);
}

std::optional<Reply> parse_reply(std::string_view line) {
  if (line.empty()) return std::nullopt;
  const std::string_view rest = line.substr(1);
  if (line.front() == '+') return Reply{Reply::Kind::kText, 0, rest};
  if (line.front() == '-') return Reply{Reply::Kind::kError, 0, rest};
  if (line.front() != ':' && line.front() != '$') return std::nullopt;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc() || end != rest.data() + rest.size()) return std::nullopt;
  if (line.front() == ':') return Reply{Reply::Kind::kNumber, number, {}};
  if (number == -1) return Reply{Reply::Kind::kNone, 0, {}};
  constexpr std::int64_t kLongest = std::int64_t{1} << 40;
  if (number < 0 || number > kLongest) return std::nullopt;
  return Reply{Reply::Kind::kBulk, number, {}};
}

Refusal refusal_of(std::string_view text) {
  const std::string_view word = text.substr(0, text.find(' '));
  for (const Known& known : kKnown) {
    if (known.word != word) continue;
    return {known.scope,
            make_error(known.code, printable(text) + ": " + std::string(known.remedy))};
  }
  if (text.find("unknown command") != std::string_view::npos) {
    return {Scope::kServer,
            make_error(ErrorCode::kUnsupported,
                       printable(text) + ": kvd needs Redis 6.2 or later, or Valkey, with "
                                         "GETEX, PEXPIRE and UNLINK not renamed")};
  }
  if (text.find("AUTH") != std::string_view::npos) {
    return {Scope::kServer, make_error(ErrorCode::kPermissionDenied,
                                       printable(text) + ": correct remote.password_file, or "
                                                         "leave it out where there is none")};
  }
  return {Scope::kServer,
          make_error(ErrorCode::kUnavailable, printable(text) + ": look into the server's log")};
}

}  // namespace kvd::remote
