// Tests which requests and sessions are there, in which order, and in which lists.
#include "kvd/core/ledger/requests.hpp"

#include <gmock/gmock.h>

#include "tests/unit/kvd/core/parts/parts_fixture.hpp"

namespace kvd::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RequestsTest : public PartsTest {
 protected:
  std::vector<Request*> inside(DomainId domain) {
    std::vector<Request*> found;
    sut.each_inside_in(domain, [&](Request& r) { found.push_back(&r); });
    return found;
  }
  std::vector<Request*> all(DomainId domain) {
    std::vector<Request*> found;
    sut.each_request_in(domain, [&](Request& r) { found.push_back(&r); });
    return found;
  }
  std::uint64_t progress(DomainId domain, DeviceId device = kFirst) {
    return sut.domains().at(domain).progress.at(device);
  }

  Requests& sut = ground.requests;
};

TEST_F(RequestsTest, WalksADomainByEngineAndIdWhateverTheOrderOfArrival) {
  Session& first = attach();
  Session& second = attach();
  Session& other = attach(kB);
  Request& c = submit(second, 4, 4);
  Request& a = submit(first, 4, 4);
  submit(other, 4, 4);
  Request& b = submit(first, 4, 4);
  EXPECT_THAT(all(kA), ElementsAre(&a, &b, &c));
  EXPECT_EQ(sut.count(kA), 3u);
  EXPECT_EQ(sut.count(kB), 1u);
}

TEST_F(RequestsTest, KeepsWhoWaitsApartInOrderOfArrival) {
  Session& session = attach();
  pass(std::chrono::seconds(2));
  Request& late = submit(session, 4, 4);
  Request& early = submit(session, 4, 4);
  ground.requests.end(early);
  ground.context.now = std::chrono::seconds(1);
  Request& first = submit(session, 4, 4);
  EXPECT_THAT(session.line, ElementsAre(&first, &late));
  EXPECT_THAT(sut.domains().at(kA).line, ElementsAre(&first, &late));
  EXPECT_THAT(inside(kA), IsEmpty());
}

TEST_F(RequestsTest, AClaimTakesItOutOfTheLineAndItsEndPutsItBack) {
  Session& session = attach();
  Request& first = submit(session, 4, 4);
  Request& second = submit(session, 4, 4);
  sut.make_claim(second);
  sut.make_claim(first);
  EXPECT_THAT(session.line, IsEmpty());
  EXPECT_THAT(inside(kA), ElementsAre(&first, &second));
  std::vector<Request*> claims;
  for (const auto& [order, request] : sut.domains().at(kA).claims) claims.push_back(request);
  EXPECT_THAT(claims, ElementsAre(&second, &first)) << "in the order in which they were made";
  sut.drop_claim(second);
  sut.drop_claim(second);
  EXPECT_THAT(session.line, ElementsAre(&second));
  EXPECT_FALSE(second.order.claim);
}

TEST_F(RequestsTest, WhoRunsWaitsInNoLine) {
  Session& session = attach();
  Request& request = running(session, 4);
  EXPECT_THAT(session.inside, ElementsAre(&request));
  EXPECT_FALSE(request.queues());
  request.place = Location::kParked;
  EXPECT_TRUE(request.queues()) << "it wants to come back";
  request.place = Location::kIn;
}

TEST_F(RequestsTest, AnEndForgetsItInEveryList) {
  Session& session = attach();
  Request& stays = submit(session, 4, 4);
  Request& claims = submit(session, 4, 4);
  sut.make_claim(claims);
  const RequestKey key = claims.key;
  sut.end(claims);
  EXPECT_EQ(sut.find(key.engine, key.request), nullptr);
  EXPECT_THAT(session.active, ElementsAre(&stays));
  EXPECT_THAT(sut.domains().at(kA).claims, IsEmpty());
  sut.end(stays);
  EXPECT_THAT(sut.domains(), IsEmpty());
}

TEST_F(RequestsTest, EveryProgressOfADomainIsANewOne) {
  Session& a = attach();
  Session& b = attach(kB);
  Request& request = submit(a, 4, 4);
  submit(b, 4, 4);
  const std::uint64_t before = progress(kA), other = progress(kB);
  sut.progressed(a.id, kA);
  EXPECT_NE(progress(kA), before);
  EXPECT_EQ(progress(kB), other);
  const std::uint64_t last = progress(kA);
  sut.end(request);
  submit(a, 4, 4);
  EXPECT_NE(progress(kA), last) << "a domain that was empty begins anew";
  sut.progressed(EngineId(), DomainId(9));
  EXPECT_THAT(sut.domains(), SizeIs(2)) << "a domain without requests has none";
}

TEST_F(RequestsTest, FindsThemInTheirOrderAndInAnyOther) {
  Session& session = attach();
  Request& a = running(session, 4);
  Request& waiting = submit(session, 4, 4);
  Request& b = running(session, 4);
  Request& c = running(session, 4);
  std::size_t next = 0;
  for (Request* each : {&a, &b, &c, &a, &waiting, &c, &b}) {
    EXPECT_EQ(sut.find(session, each->key.request, next), each);
  }
  EXPECT_EQ(sut.find(session, RequestId(99), next), nullptr);
  next = 0;
  EXPECT_EQ(sut.find(session, a.key.request, next), &a);
  ground.memory.end(a);
  EXPECT_EQ(sut.find(session, b.key.request, next), &b) << "though those after it moved up";
  EXPECT_EQ(b.session, &session);
}

TEST_F(RequestsTest, TheStateOthersSeeFollowsFromPhaseAndPlace) {
  Request request;
  EXPECT_EQ(request.state(), RequestState::kWaiting);
  request.place = Location::kIn;
  EXPECT_EQ(request.state(), RequestState::kPrefill);
  request.phase = Phase::kDecode;
  EXPECT_EQ(request.state(), RequestState::kRunning);
  request.place = Location::kGoing;
  EXPECT_EQ(request.state(), RequestState::kSwappingOut);
  request.place = Location::kParked;
  EXPECT_EQ(request.state(), RequestState::kRotary);
  request.place = Location::kComing;
  EXPECT_EQ(request.state(), RequestState::kSwappingIn);
}

TEST_F(RequestsTest, AVerdictIsLiftedOnlyByItsOwnName) {
  Request request;
  request.verdict = Verdict::kForcedOut;
  request.lift(Verdict::kPaused);
  EXPECT_TRUE(request.forced_out());
  EXPECT_FALSE(request.queues());
  request.lift(Verdict::kForcedOut);
  EXPECT_TRUE(request.queues());
  request.verdict = Verdict::kHeldBack;
  EXPECT_TRUE(request.queues()) << "it still wants in";
}

TEST_F(RequestsTest, ValidateFindsAListThatWasNotKept) {
  Session& session = attach();
  Request& request = submit(session, 4, 4);
  request.place = Location::kIn;
  EXPECT_NE(sut.validate(), "");
  request.place = Location::kOut;
  EXPECT_EQ(sut.validate(), "");
}

}  // namespace
}  // namespace kvd::core
