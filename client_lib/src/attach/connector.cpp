#include "client_lib/src/attach/connector.hpp"

#include <algorithm>
#include <utility>

namespace kvd::client {

Connector::Connector(Introduction introduction, Nanoseconds attach_timeout, const Clock& clock)
    : clock_(clock),
      attach_timeout_(attach_timeout),
      introduction_(std::move(introduction)),
      recovery_(introduction_.group.has_value()) {}

Status Connector::connect(TimePoint deadline) {
  KVD_ASSIGN_OR_RETURN(auto session, Session::start(introduction_, deadline, clock_));
  const std::lock_guard lock(mutex_);
  introduction_.previous_boot.bytes = session->welcome().boot_id;
  // Later sessions ask for the class that was granted, whatever a later daemon's defaults are.
  if (introduction_.shape.layers != 0) introduction_.shape = session->welcome().shape;
  // If it maps any memory, they also ask for the same kind, because the engine relies on it by now.
  if (introduction_.maps) {
    const auto kind = static_cast<wire::SlabKind>(session->welcome().slab_kind);
    introduction_.slab_kinds = wire::slab_kind_bit(kind);
    if (kind == wire::SlabKind::kCudaVmm) introduction_.device = session->welcome().device_uuid;
  }
  if (recovery_.loss_untold()) retired_ = std::exchange(session_, nullptr);
  session_ = std::move(session);
  recovery_.on_attached();
  return {};
}

Result<SessionPtr> Connector::session_for_memory(Bytes held, TimePoint deadline) {
  {
    const std::lock_guard lock(mutex_);
    notice_loss();
    if (recovery_.need_for_memory_call() == Need::kNothing) return session_;
  }
  return attach_again(held, deadline);
}

Result<SessionPtr> Connector::session_for_requests(Bytes held, TimePoint deadline) {
  {
    const std::lock_guard lock(mutex_);
    notice_loss();
    const Need need = recovery_.need_for_request_call();
    if (need == Need::kReportLoss) return tell_loss();
    if (need == Need::kNothing) return session_;
  }
  return attach_again(held, deadline);
}

Result<SessionPtr> Connector::session_with_requests() {
  const std::lock_guard lock(mutex_);
  notice_loss();
  if (recovery_.loss_untold()) return tell_loss();
  if (recovery_.attached()) return session_;
  return make_error(ErrorCode::kUnavailable, "the daemon is gone; the next step attaches again");
}

SessionPtr Connector::session() const {
  const std::lock_guard lock(mutex_);
  return session_;
}

void Connector::on_submitted(RequestId request) {
  const std::lock_guard lock(mutex_);
  recovery_.on_submitted(request);
}

void Connector::on_ended(RequestId request) {
  const std::lock_guard lock(mutex_);
  recovery_.on_ended(request);
}

void Connector::on_failed(const Error& error) {
  if (error.code != ErrorCode::kUnavailable) return;
  const std::lock_guard lock(mutex_);
  notice_loss();
  if (recovery_.loss_untold()) (void)tell_loss();
}

void Connector::notice_loss() {
  if (!recovery_.attached() || !session_->gone()) return;
  recovery_.on_lost();
  // Nothing runs on this memory, but what a GPU still maps would keep the next daemon from making
  // its own.
  if (!recovery_.loss_untold()) session_->slabs().unmap_lost(kLongestDrain);
}

Error Connector::tell_loss() {
  recovery_.on_loss_told();
  const SessionPtr lost = retired_ ? std::exchange(retired_, nullptr) : session_;
  lost->slabs().unmap_lost(kLongestDrain);
  const auto unmapped = lost->slabs().failure();
  return make_error(ErrorCode::kUnavailable,
                    (unmapped ? "memory that kvd lent could not be mapped (" + unmapped->message +
                                    "): the session has ended"
                              : std::string("the daemon went away")) +
                        " and the session's requests with it; submit them again");
}

Result<SessionPtr> Connector::attach_again(Bytes held, TimePoint deadline) {
  introduction_.orphaned = held;
  KVD_TRY(connect(std::min(deadline, clock_.now() + attach_timeout_)));
  return session();
}

}  // namespace kvd::client
