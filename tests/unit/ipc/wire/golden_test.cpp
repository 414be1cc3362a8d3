#include "tests/unit/ipc/wire/golden.hpp"

#include <gtest/gtest.h>

#include "ipc/wire/attach_codec.hpp"
#include "ipc/wire/codec.hpp"

namespace kvd::wire {
namespace {

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

class GoldenCommand : public testing::TestWithParam<const char*> {};
class GoldenReply : public testing::TestWithParam<const char*> {};
class GoldenAttach : public testing::TestWithParam<const char*> {};

TEST_P(GoldenCommand, DecodesAndEncodesToTheSameBytes) {
  const auto file = golden(GetParam());
  const auto command = decode_command(file);
  ASSERT_TRUE(command.ok()) << command.error().to_string();
  FrameBuffer out;
  ASSERT_TRUE(encode_command(*command, out).ok());
  EXPECT_EQ(copy_of(out.bytes()), file);
  EXPECT_EQ(command->header.generation, 7u);
  EXPECT_EQ(command->header.timeout_ns, 250'000'000);
  EXPECT_EQ(command->header.key[15], 0x1f);
}

TEST_P(GoldenReply, DecodesAndEncodesToTheSameBytes) {
  const auto file = golden(GetParam());
  const auto reply = decode_reply(file);
  ASSERT_TRUE(reply.ok()) << reply.error().to_string();
  FrameBuffer out;
  ASSERT_TRUE(encode_reply(*reply, out).ok());
  EXPECT_EQ(copy_of(out.bytes()), file);
  EXPECT_EQ(peek_reply_sequence(file), reply->header.sequence);
}

TEST_P(GoldenAttach, DecodesAndEncodesToTheSameBytes) {
  const auto file = golden(GetParam());
  auto message = decode_attach(file);
  ASSERT_TRUE(message.ok()) << message.error().to_string();
  std::visit([&](auto& m) { EXPECT_EQ(copy_of(seal(m)), file); }, *message);
}

const auto kFileName = [](const auto& tested) { return std::string(tested.param); };
INSTANTIATE_TEST_SUITE_P(V1, GoldenCommand, testing::ValuesIn(kGoldenCommands), kFileName);
INSTANTIATE_TEST_SUITE_P(V1, GoldenReply, testing::ValuesIn(kGoldenReplies), kFileName);
INSTANTIATE_TEST_SUITE_P(V1, GoldenAttach, testing::ValuesIn(kGoldenAttach), kFileName);

TEST(Golden, StepHoldsWhatTheFileSays) {
  const auto file = golden("step");
  const auto command = decode_command(file);
  ASSERT_TRUE(command.ok());
  const auto& step = std::get<StepCommand>(command->body);
  EXPECT_EQ(step.body.iteration_finished, 41u);
  EXPECT_EQ(step.body.table_version, 6u);
  ASSERT_EQ(step.reports.size(), 2u);
  EXPECT_EQ(step.reports[0].tokens, 1001u);
  EXPECT_EQ(step.reports[1].request, 12u);
  EXPECT_EQ(step.reports[1].flags, kReportFinished);
}

TEST(Golden, NameHoldsWhatTheFileSays) {
  const auto file = golden("name");
  const auto command = decode_command(file);
  ASSERT_TRUE(command.ok());
  const auto& name = std::get<NameCommand>(command->body);
  EXPECT_EQ(name.fingerprint[31], 0x7f);
  const auto& blocks = name.blocks;
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].request, 11u);
  EXPECT_EQ(blocks[0].digest[31], 0x3f);
  EXPECT_EQ(blocks[1].block, 3u);
  EXPECT_EQ(blocks[1].digest[0], 0xa0);
}

TEST(Golden, ACacheHoldsWhatItsFilesSay) {
  const auto opens = golden("cache_open");
  const auto open = decode_command(opens);
  ASSERT_TRUE(open.ok()) << open.error().message;
  const auto& cache = std::get<CacheOpenCommand>(open->body);
  EXPECT_EQ(cache.body.region, 5u);
  EXPECT_EQ(cache.body.blocks, 40u);
  EXPECT_EQ(cache.body.block_bytes, 12288u);
  ASSERT_EQ(cache.pieces.size(), 2u);
  EXPECT_EQ(cache.pieces[1].stride, 4096u);
  const auto stores = golden("cache");
  const auto store = decode_command(stores);
  ASSERT_TRUE(store.ok()) << store.error().message;
  const auto& blocks = std::get<CacheCommand>(store->body);
  EXPECT_EQ(blocks.body.cache, 3u);
  EXPECT_EQ(blocks.body.ticket, 258u);
  EXPECT_EQ(blocks.body.op, static_cast<std::uint32_t>(CacheOp::kStore));
  EXPECT_EQ(blocks.body.flags, kCachePark);
  ASSERT_EQ(blocks.blocks.size(), 2u);
  EXPECT_EQ(blocks.blocks[1].block, 9u);
  EXPECT_EQ(blocks.blocks[1].digest[31], 0xbf);
  const auto models = golden("cache_model");
  const auto model = decode_command(models);
  ASSERT_TRUE(model.ok()) << model.error().message;
  const auto& described = std::get<CacheModelBody>(model->body);
  EXPECT_EQ(described.cache, 3u);
  EXPECT_STREQ(described.model.data(), "LlamaForCausalLM weights 1234");
  const auto replies = golden("cache_reply");
  const auto reply = decode_reply(replies);
  ASSERT_TRUE(reply.ok()) << reply.error().message;
  EXPECT_EQ(std::get<ValueReplyBody>(reply->body).value, 3u);
}

TEST(Golden, LabelsAndChangesHoldWhatTheirFilesSay) {
  const auto labels = golden("cache_label");
  const auto label = decode_command(labels);
  ASSERT_TRUE(label.ok()) << label.error().message;
  const auto& told = std::get<CacheLabelCommand>(label->body);
  EXPECT_EQ(told.body.cache, 3u);
  EXPECT_EQ(told.body.parent[0], 0xc0);
  EXPECT_STREQ(told.body.lora.data(), "adapter");
  ASSERT_EQ(told.digests.size(), 2u);
  EXPECT_EQ(told.digests[1][31], 0xbf);
  ASSERT_EQ(told.tokens.size(), 6u);
  EXPECT_EQ(told.tokens[5], 300u);
  const auto asks = golden("cache_changes");
  const auto asked = decode_command(asks);
  ASSERT_TRUE(asked.ok()) << asked.error().message;
  EXPECT_EQ(std::get<CacheChangesBody>(asked->body).seen.position, 6u);
  const auto replies = golden("changes_reply");
  const auto reply = decode_reply(replies);
  ASSERT_TRUE(reply.ok()) << reply.error().message;
  const auto& changes = std::get<CacheChangesReply>(reply->body);
  EXPECT_EQ(changes.body.next.life, 0x77u);
  EXPECT_EQ(changes.body.flags, kChangesOver | kChangesMore);
  ASSERT_EQ(changes.changes.size(), 2u);
  EXPECT_EQ(changes.changes[0].tiers, kInDram | kOnDisk);
  EXPECT_EQ(changes.changes[1].parent[0], 0x20);
  ASSERT_EQ(changes.tokens.size(), 3u);
  EXPECT_EQ(changes.tokens[2], 300u);
}

TEST(Golden, LabelsAndChangesThatCannotBeAreRefused) {
  const auto broken = [](const char* file, std::size_t offset, auto value) {
    auto frame = golden(file);
    poke(frame, sizeof(CommandHeader) + offset, value);
    return frame;
  };
  const auto label = [&](std::size_t offset, auto value) {
    return !decode_command(broken("cache_label", offset, value)).ok();
  };
  const auto reply = [&](std::size_t offset, auto value) {
    return !decode_reply(broken("changes_reply", offset, value)).ok();
  };
  constexpr std::size_t kFirst = sizeof(CacheChangesReplyBody);
  EXPECT_TRUE(label(offsetof(CacheLabelBody, cache), std::uint64_t{0})) << "no cache";
  EXPECT_TRUE(label(offsetof(CacheLabelBody, lora), '\x1b'));
  EXPECT_TRUE(label(offsetof(CacheLabelBody, count), std::uint32_t{3}));
  EXPECT_TRUE(label(offsetof(CacheLabelBody, block_tokens), std::uint32_t{4}));
  EXPECT_TRUE(label(offsetof(CacheLabelBody, block_tokens), ~std::uint32_t{0}));
  EXPECT_FALSE(label(offsetof(CacheLabelBody, count), std::uint32_t{2})) << "the frame is good";
  EXPECT_FALSE(decode_command(broken("cache_changes", 0, std::uint64_t{0})).ok());
  EXPECT_TRUE(reply(offsetof(CacheChangesReplyBody, flags), std::uint32_t{4}));
  EXPECT_TRUE(reply(offsetof(CacheChangesReplyBody, reserved), std::uint32_t{1}));
  EXPECT_TRUE(reply(offsetof(CacheChangesReplyBody, count), std::uint32_t{1}));
  EXPECT_TRUE(reply(kFirst + offsetof(CacheChange, tiers), std::uint32_t{8}));
  EXPECT_TRUE(reply(kFirst + offsetof(CacheChange, tokens), std::uint32_t{2})) << "one of no block";
  EXPECT_TRUE(reply(kFirst + offsetof(CacheChange, lora), '\x1b'));
  EXPECT_FALSE(reply(offsetof(CacheChangesReplyBody, flags), std::uint32_t{0})) << "it is good";
}

// Each frame is one that the daemon might get from a faulty client.
TEST(Golden, ACacheCommandThatCannotBeIsRefused) {
  const auto store = golden("cache");
  constexpr std::size_t kBody = sizeof(CommandHeader);
  const auto broken = [&](std::size_t offset, auto value) {
    auto frame = store;
    poke(frame, kBody + offset, value);
    return !decode_command(frame).ok();
  };
  auto unclean = golden("cache_model");
  poke(unclean, kBody + offsetof(CacheModelBody, model), '\x1b');
  EXPECT_FALSE(decode_command(unclean).ok());
  EXPECT_TRUE(broken(offsetof(CacheBody, cache), std::uint64_t{0})) << "no cache";
  EXPECT_TRUE(broken(offsetof(CacheBody, ticket), std::uint64_t{0})) << "a store without a ticket";
  EXPECT_TRUE(broken(offsetof(CacheBody, ticket), kMaxCacheTicket + 1));
  EXPECT_TRUE(broken(offsetof(CacheBody, op), std::uint32_t{6}));
  EXPECT_TRUE(broken(offsetof(CacheBody, op), std::uint32_t{4})) << "a drop with a ticket";
  EXPECT_TRUE(broken(offsetof(CacheBody, op), std::uint32_t{3})) << "a load that parks";
  EXPECT_TRUE(broken(offsetof(CacheBody, flags), std::uint32_t{2}));
  EXPECT_TRUE(broken(offsetof(CacheBody, count), std::uint32_t{3}));
  EXPECT_TRUE(broken(offsetof(CacheBody, retain_ms), std::uint32_t{1}));
  EXPECT_TRUE(broken(sizeof(CacheBody) + offsetof(CacheBlock, reserved), std::uint32_t{1}));
  EXPECT_FALSE(broken(offsetof(CacheBody, flags), std::uint32_t{0})) << "the frame itself is good";
}

TEST(Golden, SpacesHoldWhatTheFilesSay) {
  const auto opens = golden("space_open");
  const auto open = decode_command(opens);
  ASSERT_TRUE(open.ok()) << open.error().message;
  EXPECT_EQ(std::get<SpaceCommand>(open->body).body.slabs, 40u);
  const auto places = golden("space_place");
  const auto place = decode_command(places);
  ASSERT_TRUE(place.ok()) << place.error().message;
  const auto& space = std::get<SpaceCommand>(place->body);
  EXPECT_EQ(space.body.space, 6u);
  EXPECT_EQ(space.body.region, 5u);
  ASSERT_EQ(space.positions.size(), 2u);
  EXPECT_EQ(space.positions[1], 3u);
  const auto shares = golden("share");
  const auto share = decode_command(shares);
  ASSERT_TRUE(share.ok()) << share.error().message;
  const auto& asked = std::get<ShareBody>(share->body);
  EXPECT_EQ(asked.space, 6u);
  EXPECT_EQ(asked.kept, 4096u);
  EXPECT_EQ(asked.least, 8192u);
  EXPECT_EQ(asked.wanted, 65536u);
  EXPECT_EQ(asked.grain, 2048u);
  EXPECT_EQ(asked.age_ns, 1'500'000'000u);
}

TEST(Golden, ACommandAboutASpaceThatCannotBeIsRefused) {
  constexpr std::size_t kBody = sizeof(CommandHeader);
  const auto broken = [&](const char* name, std::size_t offset, auto value) {
    auto frame = golden(name);
    poke(frame, kBody + offset, value);
    return !decode_command(frame).ok();
  };
  EXPECT_TRUE(broken("space_open", offsetof(SpaceBody, slabs), std::uint32_t{0}));
  EXPECT_TRUE(broken("space_open", offsetof(SpaceBody, region), std::uint64_t{5}));
  EXPECT_TRUE(broken("space_place", offsetof(SpaceBody, space), std::uint64_t{0}));
  EXPECT_TRUE(broken("space_place", offsetof(SpaceBody, region), std::uint64_t{0}));
  EXPECT_TRUE(broken("space_place", offsetof(SpaceBody, slabs), std::uint32_t{1}));
  EXPECT_TRUE(broken("space_place", offsetof(SpaceBody, count), std::uint32_t{3}));
  EXPECT_TRUE(broken("share", offsetof(ShareBody, space), std::uint64_t{0}));
  EXPECT_TRUE(broken("share", offsetof(ShareBody, wanted), kMaxRegionBytes + 1));
  EXPECT_TRUE(broken("share", offsetof(ShareBody, age_ns), kMaxAgeNs + 1));
  EXPECT_FALSE(broken("share", offsetof(ShareBody, least), std::uint64_t{0}));
}

TEST(Golden, StepReplyHoldsWhatTheFileSays) {
  const auto file = golden("step_reply");
  const auto reply = decode_reply(file);
  ASSERT_TRUE(reply.ok());
  const auto& step = std::get<StepReply>(reply->body);
  ASSERT_EQ(step.run.size(), 1u);
  EXPECT_EQ(step.run[0].ticket, 99u);
  EXPECT_EQ(step.run[0].distance, 4u);
  ASSERT_EQ(step.hold.size(), 1u);
  EXPECT_EQ(step.hold[0].reason, static_cast<std::uint32_t>(HoldReason::kSwappedOut));
}

TEST(Golden, ScheduleHoldsWhatTheFileSays) {
  const auto file = golden("schedule");
  const auto command = decode_command(file);
  ASSERT_TRUE(command.ok()) << command.error().message;
  const auto& schedule = std::get<ScheduleCommand>(command->body);
  EXPECT_EQ(schedule.body.free_blocks, 5u);
  EXPECT_EQ(schedule.body.last_step_ns, 10'600'000u);
  EXPECT_EQ(schedule.body.max_running, 64u);
  ASSERT_EQ(schedule.requests.size(), 2u);
  EXPECT_EQ(schedule.requests[0].blocks, 10u);
  EXPECT_EQ(schedule.requests[0].last_token_age_ns, 9'000'000u);
  EXPECT_EQ(schedule.requests[1].request, 12u);
  EXPECT_EQ(schedule.requests[1].state, static_cast<std::uint32_t>(ScheduleState::kParked));
  EXPECT_EQ(schedule.requests[1].blocks_to_return, 3u);
  EXPECT_EQ(schedule.requests[1].tbt_ns, 31'500'000u);
}

TEST(Golden, ScheduleReplyHoldsWhatTheFileSays) {
  const auto file = golden("schedule_reply");
  const auto reply = decode_reply(file);
  ASSERT_TRUE(reply.ok()) << reply.error().message;
  const auto& schedule = std::get<ScheduleReply>(reply->body);
  EXPECT_EQ(schedule.body.prefill_tokens, 192u);
  ASSERT_EQ(schedule.preempt.size(), 1u);
  EXPECT_EQ(schedule.preempt[0], 11u);
  ASSERT_EQ(schedule.admit.size(), 2u);
  EXPECT_EQ(schedule.admit[1], 13u);
}

TEST(Golden, FailureKeepsCodeAndMessage) {
  const auto file = golden("failure_reply");
  const auto reply = decode_reply(file);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(reply->message, "the key is not this session's; attach again");
}

TEST(Golden, WelcomeHoldsWhatTheFileSays) {
  const auto message = decode_attach(golden("welcome"));
  ASSERT_TRUE(message.ok());
  const auto& welcome = std::get<Welcome>(*message);
  EXPECT_EQ(welcome.shape.layers_per_block, 4u);
  EXPECT_EQ(welcome.slot_bytes, 262144u);
  EXPECT_EQ(text(welcome.command_endpoint), "ipc:///run/kvd/command.sock");
}

TEST(Golden, AHelloMayNameAnotherDeviceThanTheFirst) {
  auto frame = golden("hello");
  EXPECT_EQ(std::get<Hello>(*decode_attach(frame)).shape.device, 0u);
  frame.at(36) = std::byte{3};
  const auto hello = decode_attach(frame);
  ASSERT_TRUE(hello.ok()) << hello.error().message;
  EXPECT_EQ(std::get<Hello>(*hello).shape.device, 3u);
}

TEST(Golden, AnAttachSaysWhatMayBeMappedAndWhatIsToBe) {
  const auto hello = decode_attach(golden("hello"));
  ASSERT_TRUE(hello.ok());
  EXPECT_EQ(std::get<Hello>(*hello).slab_kinds,
            slab_kind_bit(SlabKind::kHostMemfd) | slab_kind_bit(SlabKind::kCudaVmm));
  const auto message = decode_attach(golden("welcome_cuda"));
  ASSERT_TRUE(message.ok());
  const auto& welcome = std::get<Welcome>(*message);
  EXPECT_EQ(welcome.slab_kind, static_cast<std::uint32_t>(SlabKind::kCudaVmm));
  EXPECT_EQ(welcome.device_uuid[0], 0xc0);
  EXPECT_EQ(welcome.device_uuid[15], 0xcf);
}

}  // namespace
}  // namespace kvd::wire
