#include "ipc/http/exchange.hpp"

#include <sys/eventfd.h>

#include "ipc/http/reason.hpp"

namespace kvd::http {

std::string whole_answer(int status, const std::string& body, std::string_view type) {
  return "HTTP/1.1 " + std::to_string(status) + " " + std::string(reason_of(status)) +
         "\r\nContent-Type: " + std::string(type) +
         "\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n" + body;
}

void Outbox::post(Piece piece) {
  {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(std::move(piece));
  }
  ring();
}

void Outbox::ring() { (void)::eventfd_write(bell_.get(), 1); }

std::vector<Outbox::Piece> Outbox::take() {
  eventfd_t count = 0;
  (void)::eventfd_read(bell_.get(), &count);
  const std::lock_guard lock(mutex_);
  return std::exchange(pieces_, {});
}

void Outcome::end(bool sent) {
  std::function<void(bool)> call;
  {
    const std::lock_guard lock(mutex_);
    if (sent_) return;
    sent_ = sent;
    call = std::exchange(call_, nullptr);
  }
  if (call) call(sent);
}

void Outcome::on_end(std::function<void(bool)> call) {
  {
    const std::lock_guard lock(mutex_);
    if (!sent_) {
      call_ = std::move(call);
      return;
    }
  }
  call(*sent_);
}

Exchange::~Exchange() {
  if (!complete_) outbox_->post({connection_, "", true});
}

std::string head_of_answer(std::string bytes) {
  const auto end = bytes.find("\r\n\r\n");
  if (end != std::string::npos) bytes.resize(end + 4);
  return bytes;
}

void Exchange::write(std::string bytes, bool last) {
  if (complete_) return;
  if (manner_.no_body) bytes = head_of_answer(std::move(bytes)), last = true;
  complete_ = last;
  outcome_->add_waiting(bytes.size());
  outbox_->post({connection_, std::move(bytes), last});
}

void Exchange::answer(int status, const std::string& body, std::string_view type) {
  write(whole_answer(status, body, type), true);
}

}  // namespace kvd::http
