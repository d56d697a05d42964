// linalg_lstsq. Which of its results have elements depends on the driver, whose
// default depends on the device, and with some drivers on the values. As an op
// of our own the driver is given, and the sizes are known.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_lstsq.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "dispatch/own_op.h"
#include "dispatch/run_by_rule.h"
#include "ops/all_ops.h"

namespace tessera::detail {

namespace {

enum class Driver : uint8_t { kGels, kGelsy, kGelsd, kGelss };
constexpr std::array<std::string_view, 4> kDrivers{
    "gels", "gelsy", "gelsd", "gelss"};

bool finds_singular_values(Driver driver) {
  return driver == Driver::kGelsd || driver == Driver::kGelss;
}

// Which results there are, besides the solution; the others are empty.
struct Found {
  bool residuals = false;
  bool rank = false;
  bool singular_values = false;
};

struct LeastSquares {
  static constexpr const char* kSchema =
      "least_squares(Tensor self, Tensor b, float? rcond, int driver, "
      "bool residuals, bool rank, bool singular_values) -> "
      "(Tensor, Tensor, Tensor, Tensor)";
  // Solution, residuals, rank, singular values.
  using Result = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
  struct Args {
    at::Tensor self;
    at::Tensor b;
    std::optional<double> rcond;
    Driver driver = Driver::kGelsy;
    Found found;
  };

  static Result on_data(const Args& args) {
    return at::linalg_lstsq(
        args.self,
        args.b,
        args.rcond,
        kDrivers.at(static_cast<size_t>(args.driver)));
  }

  // self[..., m, n], b[..., m, k] or, of vectors, b[..., m].
  static Result on_meta(const Args& args) {
    const int64_t m = args.self.size(-2);
    const int64_t n = args.self.size(-1);
    const bool vectors = args.b.dim() + 1 == args.self.dim();
    const auto batch = args.self.sizes().slice(0, args.self.dim() - 2);
    const auto made = [&](std::vector<int64_t> core, bool wanted, auto dtype) {
      const auto options = args.self.options().dtype(dtype);
      if (!wanted) {
        return at::empty({0}, options);
      }
      core.insert(core.begin(), batch.begin(), batch.end());
      return at::empty(core, options);
    };
    const auto dtype = args.self.scalar_type();
    const auto real = c10::toRealValueType(dtype);
    const int64_t k = vectors ? 1 : args.b.size(-1);
    return {
        made(vectors ? std::vector{n} : std::vector{n, k}, true, dtype),
        made({k}, args.found.residuals, real),
        made({}, args.found.rank, at::kLong),
        made({std::min(m, n)}, args.found.singular_values, real)};
  }
};

// The driver that ATen would take; nullopt for one that it does not know.
std::optional<Driver> driver_of(
    const at::Tensor& self, std::optional<std::string_view> name) {
  if (!name.has_value()) {
    return self.is_cuda() ? Driver::kGels : Driver::kGelsy;
  }
  for (size_t i = 0; i < kDrivers.size(); ++i) {
    if (kDrivers[i] == *name) {
      return static_cast<Driver>(i);
    }
  }
  return std::nullopt;
}

// Whether the sizes of all results follow from those of the arguments, which
// have one batch. With singular values there are residuals only where every
// matrix has full rank.
bool knows_sizes(
    const at::Tensor& self, const at::Tensor& b, std::optional<Driver> driver) {
  if (!driver.has_value() || self.dim() < 2 || b.dim() < 1 ||
      (finds_singular_values(*driver) && self.size(-2) > self.size(-1))) {
    return false;
  }
  const auto rows = self.sizes().slice(0, self.dim() - 1);
  const bool vectors = b.dim() + 1 == self.dim();
  return vectors
             ? b.sizes() == rows
             : b.dim() == self.dim() && b.sizes().slice(0, b.dim() - 1) == rows;
}

LeastSquares::Result linalg_lstsq(
    const at::Tensor& self,
    const at::Tensor& b,
    std::optional<double> rcond,
    std::optional<std::string_view> driver) {
  const auto known = driver_of(self, driver);
  if (knows_sizes(self, b, known)) {
    const Found found{
        self.size(-2) > self.size(-1) && *known != Driver::kGelsy,
        *known != Driver::kGels,
        finds_singular_values(*known)};
    return call_op<LeastSquares>({self, b, rcond, *known, found});
  }
  static const OpInfo& op = aten_op("linalg_lstsq");
  const auto results = run_by_rule(
      op,
      self,
      b,
      rcond,
      driver.has_value() ? std::optional(std::string(*driver)) : std::nullopt);
  return tensors_of<LeastSquares::Result>(results);
}

}  // namespace

void register_least_squares(OpRegistry& ops) {
  define_op<LeastSquares>(ops);
  ops.composed("linalg_lstsq", &linalg_lstsq);
}

}  // namespace tessera::detail
