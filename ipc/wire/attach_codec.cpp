#include "ipc/wire/attach_codec.hpp"

#include <algorithm>
#include <string>

#include "ipc/wire/frame_check.hpp"

namespace kvd::wire {
namespace {

using ByteView = std::span<const std::byte>;

template <class Message>
ByteView complete(FrameHeader& header, MessageType type, Message& message) {
  header.magic = kMagic;
  header.type = static_cast<std::uint16_t>(type);
  header.length = sizeof(Message);
  header.reserved = 0;
  return std::as_bytes(std::span(&message, 1));
}

Status check(const ModelShape& shape, std::string_view what) {
  if (shape.layers == 0) {
    const bool empty = shape.layers_per_block == 0 && shape.block_tokens == 0 &&
                       shape.bytes_per_token_per_layer == 0;
    return empty ? Status() : invalid(what, "a model shape without layers has nothing else either");
  }
  if (shape.layers > kMaxLayers) return invalid(what, "more than 1024 layers");
  if (shape.layers_per_block > shape.layers)
    return invalid(what, "a block of more layers than all");
  if (shape.block_tokens > kMaxBlockTokens) return invalid(what, "more than 1024 tokens a block");
  if (shape.bytes_per_token_per_layer == 0 ||
      shape.bytes_per_token_per_layer > kMaxBytesPerTokenPerLayer) {
    return invalid(what, "bytes per token and layer are not within 1..1 MiB");
  }
  return {};
}

Status check(const Hello& hello) {
  if (hello.version_min == 0 || hello.version_min > hello.version_max) {
    return invalid("hello", "the version range is empty");
  }
  if (hello.transport > static_cast<std::uint32_t>(TransportKind::kRing)) {
    return make_error(ErrorCode::kUnsupported, "hello: unknown command transport; ask for zmq");
  }
  if (!is_clean_text(hello.name)) return invalid("hello", "the name is not printable ASCII");
  if (hello.slab_kinds == 0) return invalid("hello", "the engine can map no kind of slab");
  return check(hello.shape, "hello");
}

Status check(const JoinGroup& join) {
  if (join.group == 0) return invalid("join group", "the group's number is 0");
  if (join.ranks < 2 || join.ranks > kMaxRanks) {
    return invalid("join group", "a group has 2 to 64 ranks");
  }
  return join.rank < join.ranks ? Status() : invalid("join group", "ranks count from 0");
}

/// A GPU is named exactly where the slabs are memory of one.
Status check_slab_kind(const Welcome& welcome) {
  if (welcome.slab_kind == 0 || welcome.slab_kind > kSlabKinds) {
    return make_error(ErrorCode::kUnsupported, "welcome: slabs of the unknown kind " +
                                                   std::to_string(welcome.slab_kind) +
                                                   "; update the engine's client library");
  }
  const bool is_gpu = welcome.slab_kind == static_cast<std::uint32_t>(SlabKind::kCudaVmm);
  const bool names_gpu = welcome.device_uuid != decltype(welcome.device_uuid){};
  return is_gpu == names_gpu ? Status() : invalid("welcome", "slab kind and GPU do not fit");
}

Status check(const Welcome& welcome) {
  KVD_TRY(check_slab_kind(welcome));
  if (!is_clean_text(welcome.command_endpoint) || welcome.command_endpoint[0] == '\0') {
    return invalid("welcome", "the command endpoint is no address");
  }
  if (welcome.table_bytes == 0 || welcome.client_page_bytes == 0) {
    return invalid("welcome", "an empty client page or table");
  }
  return check(welcome.shape, "welcome");
}

Status check(const Refused& refused) {
  const bool is_failure =
      refused.code != 0 && refused.code <= static_cast<std::uint16_t>(ErrorCode::kDraining);
  if (!is_failure) return invalid("refused", "unknown error code");
  if (refused.reserved != 0) return invalid("refused", "reserved field is not zero");
  if (std::find(refused.message.begin(), refused.message.end(), '\0') == refused.message.end()) {
    return invalid("refused", "message without a closing NUL");
  }
  return {};
}

Status check(const MapSlab& map) {
  if (map.reserved != 0) return invalid("map slab", "reserved field is not zero");
  if (map.bytes == 0 || map.bytes > kMaxRegionBytes) return invalid("map slab", "impossible size");
  const bool fits =
      map.region == 0 ? map.count == 0 && map.position == 0 : map.position < map.count;
  return fits ? Status() : invalid("map slab", "the position is not within its region");
}

Status check(const SlabMapped& mapped) {
  return mapped.notice.reserved == 0 ? Status() : invalid("slab mapped", "reserved is not zero");
}
Status check(const UnmapSlab& unmap) {
  return unmap.notice.reserved == 0 ? Status() : invalid("unmap slab", "reserved is not zero");
}
Status check(const SlabUnmapped& unmapped) {
  return unmapped.notice.reserved == 0 ? Status()
                                       : invalid("slab unmapped", "reserved is not zero");
}
Status check(const Goodbye&) { return {}; }

template <class Message>
Result<AttachMessage> decode_as(ByteView frame) {
  if (frame.size() != sizeof(Message)) return invalid("frame", "size does not fit its type");
  const auto message = read_front<Message>(frame);
  KVD_TRY(check(message));
  return AttachMessage(message);
}

/// The layout of these never changes, or versions could not be negotiated.
bool is_versionless(MessageType type) {
  return type == MessageType::kHello || type == MessageType::kJoinGroup ||
         type == MessageType::kRefused;
}

}  // namespace

ByteView seal(Hello& m) { return complete(m.header, MessageType::kHello, m); }
ByteView seal(JoinGroup& m) { return complete(m.header, MessageType::kJoinGroup, m); }
ByteView seal(Welcome& m) { return complete(m.header, MessageType::kWelcome, m); }
ByteView seal(Refused& m) { return complete(m.header, MessageType::kRefused, m); }
ByteView seal(MapSlab& m) { return complete(m.header, MessageType::kMapSlab, m); }
ByteView seal(SlabMapped& m) { return complete(m.notice.header, MessageType::kSlabMapped, m); }
ByteView seal(UnmapSlab& m) { return complete(m.notice.header, MessageType::kUnmapSlab, m); }
ByteView seal(SlabUnmapped& m) { return complete(m.notice.header, MessageType::kSlabUnmapped, m); }
ByteView seal(Goodbye& m) { return complete(m.header, MessageType::kGoodbye, m); }

Result<AttachMessage> decode_attach(ByteView frame) {
  if (frame.size() < sizeof(FrameHeader)) return invalid("frame", "shorter than its header");
  if (frame.size() > kMaxAttachFrame) return invalid("frame", "larger than 1 KiB");
  const auto header = read_front<FrameHeader>(frame);
  const auto type = static_cast<MessageType>(header.type);
  if (const Fault fault = check_envelope(header, frame.size())) return refused(fault);
  if (!is_versionless(type) && !is_spoken(header)) return unknown_version(header.version);
  switch (type) {
    case MessageType::kHello:
      return decode_as<Hello>(frame);
    case MessageType::kJoinGroup:
      return decode_as<JoinGroup>(frame);
    case MessageType::kWelcome:
      return decode_as<Welcome>(frame);
    case MessageType::kRefused:
      return decode_as<Refused>(frame);
    case MessageType::kMapSlab:
      return decode_as<MapSlab>(frame);
    case MessageType::kSlabMapped:
      return decode_as<SlabMapped>(frame);
    case MessageType::kUnmapSlab:
      return decode_as<UnmapSlab>(frame);
    case MessageType::kSlabUnmapped:
      return decode_as<SlabUnmapped>(frame);
    case MessageType::kGoodbye:
      return decode_as<Goodbye>(frame);
    default:
      return unknown_type(header.type);
  }
}

Result<std::uint16_t> common_version(std::uint16_t peer_min, std::uint16_t peer_max) {
  const std::uint16_t highest = std::min(peer_max, kVersionMax);
  if (highest >= std::max(peer_min, kVersionMin)) return highest;
  return make_error(ErrorCode::kUnsupported,
                    "the engine speaks protocol " + version_range(peer_min, peer_max) +
                        ", the daemon " + version_range(kVersionMin, kVersionMax) +
                        "; update the older of the two");
}

}  // namespace kvd::wire
