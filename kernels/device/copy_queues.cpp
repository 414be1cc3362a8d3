#include "kernels/device/copy_queues.hpp"

#include <utility>

namespace kvd::kernels {

Status CopyQueues::submit(CopyBatch batch) {
  const Ticket ticket = batch.ticket;
  KVD_TRY(book_.begin(batch));
  Status submitted = do_submit(std::move(batch));
  if (!submitted.ok()) book_.take_back(ticket);
  return submitted;
}

void CopyQueues::poll(std::vector<Completion>& completed) {
  const std::size_t before = completed.size();
  do_poll(completed);
  for (std::size_t i = before; i < completed.size(); ++i) book_.settle(completed[i]);
}

}  // namespace kvd::kernels
