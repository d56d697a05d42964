// How the ranks of a group are connected.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/process/group.h"
#include "comm/process/rendezvous.h"

namespace tessera::detail {

// The transports of a group, one for ranks of this machine and one for others,
// where there are any.
struct Connection {
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<Transport*> route;  // by coordinate; null for this rank
  // Ranks that did not come; nothing is connected then.
  std::vector<int64_t> missing;
};

// Meets the other ranks of a group, of whom each brings a text. Throws
// c10::Error, also where the store does not answer, if one does not come.
Meeting meet_group(const GroupRequest& request, const std::string& text);

// Meets the other ranks and connects to them. Throws if the store or a rank
// cannot be reached within the request's timeout.
Connection connect(const GroupRequest& request);

}  // namespace tessera::detail
