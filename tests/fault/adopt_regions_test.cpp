// kvd is killed under an engine that computes in a region. The next one takes over a whole region
// or nothing of it, and what is not taken over is written down no more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "kvd_client/client.hpp"
#include "tests/fault/adopting.hpp"
#include "tests/support/patience.hpp"

namespace kvd::test {
namespace {

constexpr kvd_client::Duration kLong = std::chrono::seconds(60);

class AdoptingRegions : public AdoptingWorld {
 protected:
  AdoptingRegions() {
    settings_.extra += "[[domain]]\nname = 'all'\nper_user = false\n";
    before_ = settings_.extra;
    start();
    kvd_client::Options options;
    options.endpoint = kvd_->endpoint();
    auto opened = kvd_client::Client::open(options);
    EXPECT_TRUE(opened.ok() && opened->allocate_region(kRegion, kLong).ok()) << kvd_->log();
    engine_.emplace(std::move(opened).value());
    EXPECT_EQ(records(Tier::kHbm), 2u);
    kill();
  }
  /// Changes one of the region's records.
  void change_record(void (*change)(kept::Record&)) {
    const UniqueFd state = store_.find("kvd-state");
    const Records records(state);
    change(*records.numbered(0));
  }
  /// Keeps something else in place of one of the region's slabs.
  void replace_slab(UniqueFd file) {
    const UniqueFd state = store_.find("kvd-state");
    const std::uint32_t slab = Records(state).numbered(0)->place.slab;
    store_.replace("kvd-hbm-" + std::to_string(slab), std::move(file));
  }
  /// A file that nobody has sealed.
  static UniqueFd other_file() { return UniqueFd(::memfd_create("other", MFD_CLOEXEC)); }
  /// What the engine holds of the running kvd.
  [[nodiscard]] std::uint64_t region_bytes() {
    EXPECT_TRUE(engine_->ping(kLong).ok());
    return engine_->stats(kLong)->region_bytes;
  }
  /// The engine has its region neither of this kvd nor of the next.
  void expect_gone() {
    EXPECT_EQ(region_bytes(), 0u) << kvd_->log();
    EXPECT_TRUE(poll_until([&] { return records(Tier::kHbm) == 0; })) << records(Tier::kHbm);
    kill();
    settings_.extra = before_;
    start();
    EXPECT_EQ(region_bytes(), 0u) << kvd_->log();
  }

  static constexpr std::uint64_t kRegion = 2 * kSlabBytes;
  std::string before_;
  std::optional<kvd_client::Client> engine_;
};

TEST_F(AdoptingRegions, AWholeOneIsTakenOver) {
  for (int i = 0; i < 2; ++i) {
    start();
    EXPECT_EQ(region_bytes(), kRegion) << kvd_->log();
    EXPECT_EQ(records(Tier::kHbm), 2u);
    kill();
  }
}

TEST_F(AdoptingRegions, NotOneWithARecordThatIsHalfWritten) {
  change_record([](kept::Record& record) { ++record.place.slot; });
  start();
  expect_gone();
}

TEST_F(AdoptingRegions, NotOneWithARecordThatIsMissing) {
  change_record([](kept::Record& record) { record.state = 0; });
  start();
  expect_gone();
}

TEST_F(AdoptingRegions, NotOneWhoseRecordsAreCutShort) {
  store_.replace("kvd-state", other_file());
  start();
  expect_gone();
}

TEST_F(AdoptingRegions, NotOneWithASlabThatIsMissing) {
  replace_slab({});
  start();
  expect_gone();
}

TEST_F(AdoptingRegions, NotOneWithASlabThatCannotBeOpened) {
  replace_slab(other_file());
  start();
  expect_gone();
}

TEST_F(AdoptingRegions, NotWhatItsDomainMayNotHaveAnyMore) {
  settings_.extra += "hbm_maximum = '2MiB'\n";
  start();
  expect_gone();
}

TEST_F(AdoptingRegions, NotWhereNobodyKeepsWhatIsNewFromNowOn) {
  launch(folder_.file("nobody"));
  ASSERT_TRUE(kvd_->wait_ready()) << kvd_->log();
  EXPECT_THAT(kvd_->log(), testing::HasSubstr("the cache ends with this kvd"));
  expect_gone();
}

}  // namespace
}  // namespace kvd::test
