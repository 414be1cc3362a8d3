#include "tests/lint/class_sizes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/written_folder.hpp"

namespace kvd::lint {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// What is still to be rebuilt, with its size today. Entries shrink and go; none is added.
const std::vector<LargeClass>& large_classes() {
  static const std::vector<LargeClass> kLarge = {
      {"kernels/device/cuda/copies/copy_queue.hpp", "CopyQueue", 26, 22},
      // One field for each metric.
      {"kvd/core/door/status.hpp", "Counters", 0, 38},
      // One field for each key of kvd.toml.
      {"kvd/daemon/config/config.hpp", "Config", 3, 29},
      // The simulator's own: what it runs, and the figures it reports.
      {"kvd/sim/commands/options.hpp", "ScenarioOptions", 0, 25},
      {"kvd/sim/run/metrics.hpp", "Metrics", 0, 39},
      {"kvd/sim/world/result.hpp", "RunTotals", 0, 21},
      {"kvd/sim/world/world.hpp", "World", 46, 24},
  };
  return kLarge;
}

TEST(ClassSizes, OfThisTreeAreWithinBounds) {
  const auto findings = check_class_sizes(KVD_SOURCE_DIR, large_classes());
  EXPECT_THAT(findings, IsEmpty()) << to_string(findings);
}

/// The only class of the text.
ClassSize size_of(const std::string& text) {
  const auto sizes = class_sizes("a.hpp", text);
  EXPECT_EQ(sizes.size(), 1u);
  return sizes.empty() ? ClassSize{} : sizes.back();
}

TEST(ClassSizes, CountFunctionsOfEveryKind) {
  const ClassSize size = size_of(R"(
template <class T>
class A final : public B<T> {
 public:
  A() = default;
  explicit A(int a, std::function<void(int)> b) : a_(a), b_{std::move(b)} { if (a) { b(); } }
  A(const A&) = delete;  // counts for nothing
  virtual ~A();
  static Result<A> make(int limit = kMost);
  [[nodiscard]] std::vector<std::pair<int, int>> all() const { return {{1, 2}}; }
  template <class F> requires(sizeof(F) > 1)
  void each(F visit);
  explicit operator bool() const { return true; }
  friend auto operator<=>(const A&, const A&) = default;
 private:
  void carry_out(const decltype(C::body)& body);
};
)");
  EXPECT_EQ(size.name, "A");
  EXPECT_EQ(size.line, 3u);
  EXPECT_EQ(size.functions, 8u);
  EXPECT_THAT(size.fields, IsEmpty());
}

TEST(ClassSizes, CountFieldsOfEveryKind) {
  const ClassSize size = size_of(R"(
struct A {
  int a, b = max(1, 2), c[3];
  std::function<void(int, int)> call;  // void not_here();
  std::vector<int> rows = std::vector<int>(3);
  std::map<int, std::pair<int, int>> of{{1, {2, 3}}};
  decltype(B::body) body;
  enum class Kind : std::uint8_t { kOne, kTwo } kind = Kind::kOne;
  const char* text = "};";
  std::int64_t large = 1'000'000;
  static constexpr int kMost = 3;
  using Row = std::pair<int, int>;
  friend class B;
  static_assert(sizeof(int) == 4, "(;");
};
)");
  EXPECT_EQ(size.functions, 0u);
  std::string names;
  for (const Field& field : size.fields) names += field.name + " ";
  EXPECT_EQ(names, "a b c call rows of body kind text large ");
}

TEST(ClassSizes, CountWhatIsInsideOfAnotherByItself) {
  const auto sizes = class_sizes("a.hpp", R"(
class Forward;
enum class Color { kRed };
namespace kvd {
struct A {
  struct B {
    int a;
    int b;
  };
  B b;
  struct { int x; } c, d;
};
struct A::State {
  void run();
};
}
)");
  ASSERT_THAT(sizes, SizeIs(4));
  EXPECT_EQ(sizes[0].name, "A::B");
  EXPECT_THAT(sizes[0].fields, SizeIs(2));
  EXPECT_EQ(sizes[2].name, "A");
  EXPECT_THAT(sizes[2].fields, SizeIs(3));
  EXPECT_EQ(sizes[2].fields[0].type, "B");
  EXPECT_EQ(sizes[3].name, "A::State");
  EXPECT_EQ(sizes[3].functions, 1u);
}

/// A header with one struct that has this many fields.
std::string struct_of(std::size_t fields) {
  std::string text = "struct A {\n";
  for (std::size_t i = 0; i < fields; ++i) text += "  int a" + std::to_string(i) + ";\n";
  return text + "};\n";
}

class ClassSizeRule : public ::testing::Test {
 protected:
  std::vector<Finding> check(std::size_t fields, const std::vector<LargeClass>& large) {
    tree_.write("kvd/pool/a.hpp", struct_of(fields));
    return check_class_sizes(tree_.path(), large);
  }
  test::WrittenFolder tree_;
};

TEST_F(ClassSizeRule, FindsOneOverTheBound) {
  EXPECT_THAT(check(kMostFields, {}), IsEmpty());
  const auto findings = check(kMostFields + 1, {});
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].file, "kvd/pool/a.hpp");
  EXPECT_THAT(findings[0].message, HasSubstr("21 fields"));
}

TEST_F(ClassSizeRule, FindsTooManyFunctions) {
  std::string text = "class A {\n";
  for (std::size_t i = 0; i <= kMostFunctions; ++i) text += "  void f();\n";
  tree_.write("kvd/pool/a.hpp", text + "};\n");
  EXPECT_THAT(check_class_sizes(tree_.path(), {}), SizeIs(1));
}

TEST_F(ClassSizeRule, LetsAListedClassShrinkAndNeverGrow) {
  const std::vector<LargeClass> listed = {{"kvd/pool/a.hpp", "A", 0, 30}};
  EXPECT_THAT(check(30, listed), IsEmpty());
  EXPECT_THAT(check(25, listed), IsEmpty());
  EXPECT_THAT(check(31, listed), SizeIs(1));
}

TEST_F(ClassSizeRule, FindsAnEntryThatIsNeededNoMore) {
  EXPECT_THAT(check(20, {{"kvd/pool/a.hpp", "A", 0, 30}}), SizeIs(1));
  EXPECT_THAT(check(20, {{"kvd/pool/b.hpp", "Gone", 0, 30}}), SizeIs(1));
}

}  // namespace
}  // namespace kvd::lint
