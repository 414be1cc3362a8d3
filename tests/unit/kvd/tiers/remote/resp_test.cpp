#include "kvd/tiers/remote/resp.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::remote {
namespace {

using testing::HasSubstr;

TEST(Resp, SaysCommandsAsArraysOfWords) {
  std::string out;
  add_command(out, {"GETEX", "kvd1:a", "PX", "10"});
  EXPECT_EQ(out, "*4\r\n$5\r\nGETEX\r\n$6\r\nkvd1:a\r\n$2\r\nPX\r\n$2\r\n10\r\n");
}

TEST(Resp, ReadsTheFirstLinesOfReplies) {
  EXPECT_EQ(parse_reply("+OK")->text, "OK");
  EXPECT_EQ(parse_reply("-ERR no")->kind, Reply::Kind::kError);
  EXPECT_EQ(parse_reply(":12")->number, 12);
  EXPECT_EQ(parse_reply("$4096")->kind, Reply::Kind::kBulk);
  EXPECT_EQ(parse_reply("$4096")->number, 4096);
  EXPECT_EQ(parse_reply("$-1")->kind, Reply::Kind::kNone);
}

TEST(Resp, ReadsNothingElse) {
  for (const char* line :
       {"", "*2", "%1", "$", "$-2", "$x", ":", ":1x", "$99999999999999", "HTTP"}) {
    EXPECT_FALSE(parse_reply(line)) << line;
  }
}

TEST(Resp, EveryRefusalNamesItsScopeAndRemedy) {
  struct Case {
    const char* text;
    Refusal::Scope scope;
    ErrorCode code;
    const char* remedy;
  };
  using Scope = Refusal::Scope;
  const Case cases[] = {
      {"MOVED 3999 127.0.0.1:6381", Scope::kServer, ErrorCode::kUnsupported, "remote.servers"},
      {"NOAUTH Authentication required.", Scope::kServer, ErrorCode::kPermissionDenied,
       "remote.password_file"},
      {"WRONGPASS invalid", Scope::kServer, ErrorCode::kPermissionDenied, "remote.password_file"},
      {"ERR AUTH <password> called without any password configured", Scope::kServer,
       ErrorCode::kPermissionDenied, "remote.password_file"},
      {"OOM command not allowed", Scope::kWrites, ErrorCode::kOutOfMemory, "maxmemory"},
      {"READONLY You can't write", Scope::kWrites, ErrorCode::kUnsupported, "primary"},
      {"WRONGTYPE Operation", Scope::kValue, ErrorCode::kNotFound, "a server of its own"},
      {"ERR unknown command 'GETEX'", Scope::kServer, ErrorCode::kUnsupported, "Redis 6.2"},
      {"ERR \x1b[1m", Scope::kServer, ErrorCode::kUnavailable, "ERR ?[1m"},
  };
  for (const Case& each : cases) {
    const Refusal refusal = refusal_of(each.text);
    EXPECT_EQ(refusal.scope, each.scope) << each.text;
    EXPECT_EQ(refusal.error.code, each.code) << each.text;
    EXPECT_THAT(refusal.error.message, HasSubstr(each.remedy));
  }
}

}  // namespace
}  // namespace kvd::remote
