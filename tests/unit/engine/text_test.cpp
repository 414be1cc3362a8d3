#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "client_lib/engine/text/stop_matcher.hpp"
#include "client_lib/engine/text/token_text.hpp"
#include "client_lib/engine/text/utf8_stream.hpp"

namespace kvd::engine {
namespace {

/// Everything that is shown of `text`, byte by byte, and after a bar what a flush adds.
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

TEST(TokenText, IsTheByteOfATokenWhereTheModelBringsNothingElse) {
  const Weights bytes;
  EXPECT_EQ(text_of(bytes, 'a'), "a");
  EXPECT_EQ(text_of(bytes, 0), std::string(1, '\0'));
  EXPECT_EQ(text_of(bytes, 256), "");
  Weights with_vocabulary;
  with_vocabulary.has_vocabulary = true;
  EXPECT_EQ(text_of(with_vocabulary, 'a'), "");
}

TEST(TokenText, OfAMadeUpModelIsAPhrase) {
  const Weights made = random_weights(*parse_random_model("layers=1,hidden=8,heads=1,kv_heads=1"));
  std::set<std::string> phrases;
  for (Token token = 0; token < 256; ++token) {
    EXPECT_THAT(text_of(made, token), testing::MatchesRegex(" [a-z]+ the [a-z]+"));
    phrases.insert(text_of(made, token));
  }
  EXPECT_EQ(phrases.size(), 256U);
  EXPECT_EQ(text_of(made, 1000), text_of(made, 1000 % 256));
}

}  // namespace
}  // namespace kvd::engine
