#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client_lib/engine/text/stop_matcher.hpp"
#include "client_lib/engine/text/utf8_stream.hpp"

namespace kvd::engine {
namespace {

/// All that is shown of `text`, byte by byte, and what a flush adds after a bar.
std::string shown(const std::vector<std::string>& stops, const std::string& text) {
  StopMatcher matcher(stops);
  std::string out;
  for (const char c : text) out += matcher.feed(std::string(1, c));
  return out + "|" + matcher.flush();
}

TEST(StopMatcher, ShowsNothingOfAStopAndNothingAfterIt) {
  EXPECT_EQ(shown({"END"}, "text END more"), "text |");
  EXPECT_EQ(shown({"END"}, "EENEND"), "EEN|");
  EXPECT_EQ(shown({"aab"}, "aaab"), "a|");
  EXPECT_EQ(shown({"xyz", "y"}, "xyz"), "x|");
  EXPECT_EQ(shown({}, "all"), "all|");
}

TEST(StopMatcher, HoldsBackWhatMayBecomeAStopAndGivesItUpAtTheEnd) {
  EXPECT_EQ(shown({"END"}, "the EN"), "the |EN");
  EXPECT_EQ(shown({"END"}, "the ENtry"), "the ENtry|");
  StopMatcher matcher({"ab"});
  EXPECT_EQ(matcher.feed("xa"), "x");
  EXPECT_FALSE(matcher.matched());
  EXPECT_EQ(matcher.feed("b"), "");
  EXPECT_TRUE(matcher.matched());
}

std::string utf8(const std::string& bytes) {
  Utf8Stream stream;
  std::string out;
  for (const char c : bytes) out += stream.feed(std::string(1, c));
  return out + stream.flush();
}

TEST(Utf8Stream, PassesCharactersWhole) {
  const std::string text = "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80";
  EXPECT_EQ(utf8(text), text);
  Utf8Stream stream;
  EXPECT_EQ(stream.feed("\xE2\x82"), "");
  EXPECT_EQ(stream.feed("\xAC!"), "\xE2\x82\xAC!");
}

TEST(Utf8Stream, ReplacesWhatIsNoCharacter) {
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(utf8("\xFF"), mark);
  EXPECT_EQ(utf8("\xC3("), mark + "(");
  EXPECT_EQ(utf8("\xC0\x80"), mark + mark);             // overlong
  EXPECT_EQ(utf8("\xED\xA0\x80"), mark + mark + mark);  // a surrogate
  EXPECT_EQ(utf8("\xF4\x90\x80\x80"), mark + mark + mark + mark);
  EXPECT_EQ(utf8("a\xE2\x82"), "a" + mark);
}

}  // namespace
}  // namespace kvd::engine
