#include "dispatch/agreement.h"

#include <c10/util/Exception.h>

#include "comm/comm_event.h"

namespace tessera::detail {

Problem problem_of(c10::function_ref<void()> check) {
  try {
    check();
  } catch (const c10::TypeError& error) {
    return {error.what_without_backtrace(), ErrorKind::Type};
  } catch (const c10::ValueError& error) {
    return {error.what_without_backtrace(), ErrorKind::Value};
  } catch (const c10::IndexError& error) {
    return {error.what_without_backtrace(), ErrorKind::Index};
  } catch (const c10::NotImplementedError& error) {
    return {error.what_without_backtrace(), ErrorKind::NotImplemented};
  } catch (const c10::Error& error) {
    return {error.what_without_backtrace(), ErrorKind::Error};
  }
  return {};
}

bool differs_over_ranks(PlacementsRef placements, const DeviceMesh& mesh) {
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (placements[m].is_shard() && mesh.size(m) > 1) {
      return true;
    }
  }
  return false;
}

void run_agreed(
    const DeviceMesh& mesh,
    std::string_view cause,
    c10::function_ref<void()> body) {
  const auto problem = problem_of(body);
  const CommCauseGuard guard(cause);
  collectives(mesh).agree(mesh, problem.text, problem.kind);
}

}  // namespace tessera::detail
