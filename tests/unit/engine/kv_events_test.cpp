// KV events: the bytes of vLLM's encoder, what consumers can make sense of, and replays.
#include <gtest/gtest.h>

#include <random>

#include "client_lib/events/publisher.hpp"
#include "client_lib/events/view.hpp"
#include "ipc/transport/zmq_socket.hpp"
#include "ipc/vocabulary/hex.hpp"
#include "tests/support/free_port.hpp"

namespace kvd::events {
namespace {

using namespace std::chrono_literals;
using Parts = std::vector<std::string>;
using kvd_client::CacheChange;
using kvd_client::CacheChanges;
using kvd_client::Digest;

std::string hex(const std::string& bytes) {
  return kvd::hex({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

// ---- bytes ----

// Recorded from vLLM 0.32.0: msgspec.msgpack.encode(KVEventBatch(…)).
TEST(KvEvents, AreTheBytesOfVllmsEncoder) {
  const std::vector<KvEvent> events{
      BlockStored{{5, 200, 70000, std::uint64_t{1} << 40, ~std::uint64_t{1}},
                  std::nullopt,
                  {0, 127, 128, 255, 256, 65535, 65536, 0xffffffff, 1, 1, 1, 1, 1, 1, 1, 1},
                  16,
                  Medium::kGpu,
                  ""},
      BlockStored{
          {1}, ~std::uint64_t{1}, {7}, 1, Medium::kStorage, "an adapter of over 31 characters!"},
      BlockRemoved{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, Medium::kCpu},
      AllBlocksCleared{}};
  EXPECT_EQ(
      hex(encode(1.5, events)),
      "93cb3ff8000000000000948aa474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739505"
      "ccc8ce00011170cf0000010000000000cffffffffffffffffeb1706172656e745f626c6f636b5f68617368c0"
      "a9746f6b656e5f696473dc0010007fcc80ccffcd0100cdffffce00010000ceffffffff0101010101010101aa"
      "626c6f636b5f73697a6510a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0a967"
      "726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e8a"
      "a474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739101b1706172656e745f626c6f63"
      "6b5f68617368cffffffffffffffffea9746f6b656e5f6964739107aa626c6f636b5f73697a6501a76c6f7261"
      "5f6964c0a66d656469756da753544f52414745a96c6f72615f6e616d65d921616e2061646170746572206f66"
      "206f766572203331206368617261637465727321a967726f75705f69647800b26b765f63616368655f737065"
      "635f6b696e64ae66756c6c5f617474656e74696f6e84a474797065ac426c6f636b52656d6f766564ac626c6f"
      "636b5f686173686573dc0010000102030405060708090a0b0c0d0e0fa66d656469756da3435055a967726f75"
      "705f6964780081a474797065b0416c6c426c6f636b73436c656172656400");
  EXPECT_EQ(hex(encode(1.5, {})), "93cb3ff80000000000009000");
  const std::string large =
      encode(0, {BlockStored{{1}, {}, std::vector<std::uint32_t>(70000), 1, Medium::kCpu, ""}});
  EXPECT_NE(large.find(std::string("token_ids\xdd\x00\x01\x11\x70\x00", 15)), large.npos);
}

// ---- what is announced ----

constexpr std::uint32_t kTokens = 4;

Digest digest(std::uint32_t at) {
  Digest made{};
  made[0] = 1;
  made[31] = static_cast<std::uint8_t>(at);
  return made;
}

/// Notes each fault that a real consumer would suffer from.
struct Consumer {
  std::set<std::uint64_t> has[kMediums];
  std::string fault;

  void hear(const std::vector<KvEvent>& events) {
    for (const KvEvent& event : events) std::visit([&](const auto& each) { hear(each); }, event);
  }
  void hear(const BlockStored& event) {
    auto before = event.parent;
    std::vector<std::uint32_t> expected;
    for (const std::uint64_t hash : event.hashes) {
      expected.insert(expected.end(), kTokens, static_cast<std::uint32_t>(hash));
      if (before &&
          !(has[0].contains(*before) || has[1].contains(*before) || has[2].contains(*before))) {
        fault = "a block comes before its parent";
      }
      if (!has[static_cast<std::size_t>(event.medium)].insert(hash).second) {
        fault = "a block is stored twice";
      }
      before = hash;
    }
    if (event.tokens != expected || event.block_tokens != kTokens) fault = "other tokens";
  }
  void hear(const BlockRemoved& event) {
    for (const std::uint64_t hash : event.hashes) {
      if (has[static_cast<std::size_t>(event.medium)].erase(hash) == 0) fault = "removed twice";
    }
  }
  void hear(const AllBlocksCleared&) {
    for (auto& each : has) each.clear();
  }
};

/// A kvd whose blocks come and go by chance.
class Kvd {
 public:
  explicit Kvd(std::uint64_t seed) : random_(seed) {
    for (std::uint32_t at = 1; at < kEnd; ++at) {
      const std::uint32_t first = (at - 1) / 12 * 12 + 1;
      parents_[at] = at == first ? 0 : below(5) != 0 ? at - 1 : first;
    }
  }

  CacheChanges change() {
    CacheChanges changes;
    for (std::uint32_t i = below(12); i < 12; ++i) changes.all.push_back(move(1 + below(kEnd - 1)));
    if (below(20) != 0) return changes;
    changes = {{}, true, false, {}};  // a block that has gone is not announced then
    for (const auto& [at, block] : blocks_) {
      if (!block.tokens.empty()) changes.all.push_back(block);
    }
    std::shuffle(changes.all.begin(), changes.all.end(), random_);
    return changes;
  }
  /// What a lookup finds in each medium.
  void expect(const Consumer& consumer) const {
    std::set<std::uint64_t> expected[kMediums];
    for (const auto& [at, block] : blocks_) {
      if (!is_found(at)) continue;
      if (block.in_hbm) expected[0].insert(at);
      if (block.in_dram) expected[1].insert(at);
      if (block.on_disk) expected[2].insert(at);
    }
    EXPECT_EQ(consumer.fault, "");
    for (std::size_t medium = 0; medium < kMediums; ++medium) {
      EXPECT_EQ(consumer.has[medium], expected[medium]);
    }
  }

 private:
  static constexpr std::uint32_t kEnd = 60;
  std::uint32_t below(std::uint32_t most) { return static_cast<std::uint32_t>(random_() % most); }
  [[nodiscard]] bool is_found(std::uint32_t at) const {
    const auto block = blocks_.find(at);
    if (block == blocks_.end() || block->second.tokens.empty()) return false;
    return parents_.at(at) == 0 || is_found(parents_.at(at));
  }
  CacheChange move(std::uint32_t at) {
    CacheChange& block = blocks_[at];
    block.digest = digest(at);
    block.parent = parents_[at] == 0 ? Digest{} : digest(parents_[at]);
    block.in_hbm = below(2) == 0;
    block.in_dram = below(2) == 0;
    block.on_disk = below(3) == 0;
    block.tokens.assign(block.in_hbm || block.in_dram || block.on_disk ? kTokens : 0, at);
    return block;
  }

  std::mt19937_64 random_;
  std::map<std::uint32_t, CacheChange> blocks_;
  std::map<std::uint32_t, std::uint32_t> parents_;  // 0: none
};

TEST(KvEvents, TellConsumersWhatALookupFinds) {
  for (std::uint64_t seed = 1; seed <= 20 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Kvd kvd(seed);
    View view(kTokens);
    Consumer consumer;
    for (int step = 0; step < 300 && !HasFailure(); ++step) {
      view.hear(kvd.change());
      consumer.hear(view.take());
      kvd.expect(consumer);
      Consumer late;
      late.hear(view.all());
      kvd.expect(late);
    }
    view.clear();
    consumer.hear(view.take());
    EXPECT_EQ(consumer.fault, "");
    for (const auto& has : consumer.has) EXPECT_TRUE(has.empty());
  }
}

TEST(KvEvents, AreFewForAChainInTwoMediums) {
  View view(kTokens);
  CacheChanges changes;
  for (std::uint32_t at = 1; at <= 3; ++at) {
    CacheChange block;
    block.digest = digest(at);
    if (at > 1) block.parent = digest(at - 1);
    block.in_hbm = block.in_dram = true;
    block.tokens.assign(kTokens, at);
    changes.all.push_back(block);
  }
  view.hear(changes);
  EXPECT_EQ(view.take().size(), 2u);
}

// ---- the wire ----

bool has_more(transport::ZmqSocket& socket, std::chrono::milliseconds patience = 0ms) {
  zmq_pollitem_t item{socket.get(), 0, ZMQ_POLLIN, 0};
  return zmq_poll(&item, 1, patience.count()) == 1;
}

Parts receive(transport::ZmqSocket& socket) {
  Parts parts;
  for (bool more = true; more;) {
    transport::ZmqMessage part;
    if (!has_more(socket, 10s) || !part.receive(socket.get())) return {};
    parts.emplace_back(reinterpret_cast<const char*>(part.bytes().data()), part.bytes().size());
    more = part.more();
  }
  return parts;
}

std::uint64_t number(const std::string& bytes) { return std::stoull(hex(bytes), nullptr, 16); }

std::string eight_bytes(std::uint64_t value) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

class Wire : public testing::Test {
 protected:
  Wire() {
    EXPECT_EQ(zmq_connect(subscriber_.get(), config_.endpoint.c_str()), 0);
    EXPECT_EQ(zmq_connect(asker_.get(), config_.replay.c_str()), 0);
    EXPECT_TRUE(subscriber_.set(ZMQ_SUBSCRIBE, std::string_view("t")).ok());
  }
  static std::string free_endpoint() {
    return "tcp://127.0.0.1:" + std::to_string(test::free_port());
  }
  static std::vector<KvEvent> all() { return {AllBlocksCleared{}}; }
  /// Subscriptions take a while to arrive, so the first batches may be lost.
  std::uint64_t first_heard(Publisher& publisher) {
    for (int tries = 0; tries < 1000; ++tries) {
      publisher.publish({});
      (void)publisher.serve(100ms, all);
      if (has_more(subscriber_)) return number(receive(subscriber_).at(1));
    }
    return 0;
  }
  void ask(std::uint64_t from) {
    ASSERT_EQ(zmq_send(asker_.get(), "", 0, ZMQ_SNDMORE), 0);
    ASSERT_EQ(zmq_send(asker_.get(), eight_bytes(from).data(), 8, 0), 8);
  }

  Publisher::Config config_{free_endpoint(), free_endpoint(), "t"};
  transport::ZmqSocket subscriber_ = transport::ZmqSocket::create(ZMQ_SUB).value();
  transport::ZmqSocket asker_ = transport::ZmqSocket::create(ZMQ_DEALER).value();
};

TEST_F(Wire, BatchesHaveATopicAndANumberThatGoesOnWhenThePublisherStartsAnew) {
  std::uint64_t last = 0;
  for (int life = 0; life < 2; ++life) {
    auto publisher = Publisher::open(config_);
    ASSERT_TRUE(publisher.ok()) << publisher.error().message;
    EXPECT_GT(first_heard(*publisher), last);
    publisher->publish({AllBlocksCleared{}});
    Parts batch;
    do batch = receive(subscriber_);
    while (batch.size() == 3 && batch[2].find("AllBlocksCleared") == std::string::npos);
    ASSERT_EQ(batch.size(), 3u);
    EXPECT_EQ(batch[0], "t");
    last = number(batch[1]);
    (void)publisher->serve(200ms, all);  // as long as a program takes to start
  }
}

TEST_F(Wire, AReplayIsAllThereIsAndThenNothing) {
  auto publisher = Publisher::open(config_);
  ASSERT_TRUE(publisher.ok()) << publisher.error().message;
  publisher->publish({});
  publisher->publish({});
  const auto replay = [&](std::uint64_t from) {
    ask(from);
    do (void)publisher->serve(50ms, all);
    while (!has_more(asker_));
    std::vector<Parts> got;
    do got.push_back(receive(asker_));
    while (got.back().size() == 4 && number(got.back()[2]) != ~std::uint64_t{0});
    return got;
  };
  const auto from_start = replay(0);
  ASSERT_EQ(from_start.size(), 10'002u) << "not all numbers since 1970";
  EXPECT_EQ(number(from_start[0][2]), 0u);
  const std::uint64_t last = number(from_start[10'000][2]);
  const auto two = replay(last - 1);
  ASSERT_EQ(two.size(), 3u);
  EXPECT_EQ(two[0][1], "t");
  EXPECT_EQ(number(two[0][2]), last - 1);
  EXPECT_NE(two[0][3].find("AllBlocksCleared"), std::string::npos);
  EXPECT_EQ(number(two[1][2]), last);
  EXPECT_EQ(hex(two[1][3]).substr(20), "9000");
  EXPECT_EQ(two[2][3], "");
  EXPECT_EQ(replay(last + 1).size(), 1u) << "it has missed nothing";
}

TEST_F(Wire, WhoComesIsNoticed) {
  auto publisher = Publisher::open(config_);
  ASSERT_TRUE(publisher.ok()) << publisher.error().message;
  const auto comes = [&] {
    bool any_came = false;
    for (int tries = 0; tries < 100 && !any_came; ++tries) any_came = publisher->serve(50ms, all);
    return any_came;
  };
  EXPECT_TRUE(comes());
  EXPECT_FALSE(publisher->serve(50ms, all));
  transport::ZmqSocket another = transport::ZmqSocket::create(ZMQ_SUB).value();
  ASSERT_EQ(zmq_connect(another.get(), config_.endpoint.c_str()), 0);
  EXPECT_TRUE(another.set(ZMQ_SUBSCRIBE, std::string_view("t")).ok());
  EXPECT_TRUE(comes()) << "though somebody has subscribed alike";
}

TEST_F(Wire, OnlyThisMachinesProgramsReachIt) {
  for (const char* endpoint :
       {"tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://10.0.0.1:5557", "", "tcp://127.0.0.1:99999",
        "tcp://127.0.0.1:-1", "tcp://127.0.0.1:0", "tcp://127.0.0.1:"}) {
    const auto publisher = Publisher::open({endpoint, "", ""});
    ASSERT_FALSE(publisher.ok());
    EXPECT_EQ(publisher.error().code, ErrorCode::kInvalidArgument) << endpoint;
  }
  const auto first = Publisher::open(config_);
  EXPECT_EQ(Publisher::open(config_).error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace kvd::events
