// Random programs of views and writes: whatever is written through whichever
// view, every tensor shows what it would on one device, has the same version,
// and errors are the same ones.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/tessera.h"
#include "testing/throws.h"
#include "testing/worlds.h"

namespace ts = tessera;

namespace view_writes_test {

// A tensor of the program and the plain one beside it.
struct Pair {
  at::Tensor plain;
  at::Tensor distributed;
};

at::Tensor whole(const at::Tensor& tensor) {
  return ts::DTensor(tensor).full_tensor();
}

class Program {
 public:
  Program(const ts::DeviceMesh& mesh, uint64_t seed, bool grad)
      : mesh_(mesh), random_(seed), grad_(grad) {
    const int64_t dims = pick(1, 3);
    std::vector<int64_t> sizes;
    for (int64_t d = 0; d < dims; ++d) {
      sizes.push_back(pick(0, 12) == 0 ? pick(0, 1) : pick(1, 7));
    }
    auto value = torch::randint(-4, 5, sizes, torch::kDouble);
    ts::Placements placements;
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      const int64_t choice = pick(0, dims);
      placements.push_back(
          choice == dims ? ts::Placement(ts::Replicate()) : ts::Shard(choice));
    }
    log_ << "x" << value.sizes() << " " << ts::to_string(placements);
    Pair base{value, ts::distribute_tensor(value.clone(), mesh, placements)};
    if (grad_) {
      base.plain.requires_grad_();
      base.distributed.requires_grad_();
      leaf_ = base;
      base = {base.plain * 1, base.distributed * 1};
    }
    tensors_.push_back(base);
  }

  // The first difference that is found, and the program; "" if there is none.
  std::string run() {
    const int64_t steps = pick(2, 9);
    for (int64_t i = 0; i < steps; ++i) {
      const auto difference = pick(0, 2) == 0 ? write() : view();
      if (!difference.empty()) {
        return difference + "\n" + log_.str();
      }
    }
    if (const auto last = write(); !last.empty()) {
      return last + "\n" + log_.str();
    }
    const auto difference = grad_ ? compare_gradients() : compare();
    return difference.empty() ? "" : difference + "\n" + log_.str();
  }

 private:
  using Op = std::function<at::Tensor(const at::Tensor&)>;

  int64_t pick(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % (high - low + 1));
  }
  Pair& any() { return tensors_[pick(0, tensors_.size() - 1)]; }

  std::string view() {
    const Pair from = any();
    const int64_t dims = from.plain.dim();
    const int64_t dim = dims == 0 ? 0 : pick(0, dims - 1);
    const int64_t size = dims == 0 ? 0 : from.plain.size(dim);
    std::ostringstream name;
    Op op;
    switch (pick(0, 9)) {
      case 0:
      case 1:
      case 2: {
        if (dims == 0) return "";
        const int64_t start = pick(0, size);
        const int64_t end = pick(start, size);
        const int64_t step = pick(1, 3);
        name << "slice(" << dim << "," << start << "," << end << "," << step;
        op = [=](const at::Tensor& t) {
          return t.slice(dim, start, end, step);
        };
        break;
      }
      case 3: {
        if (size == 0) return "";
        const int64_t at = pick(0, size - 1);
        name << "select(" << dim << "," << at;
        op = [=](const at::Tensor& t) { return t.select(dim, at); };
        break;
      }
      case 4: {
        if (dims < 2) return "";
        const int64_t other = pick(0, dims - 1);
        name << "transpose(" << dim << "," << other;
        op = [=](const at::Tensor& t) { return t.transpose(dim, other); };
        break;
      }
      case 5: {
        name << "flat view(";
        op = [](const at::Tensor& t) { return t.view({-1}); };
        break;
      }
      case 6: {
        if (dims < 2) return "";
        name << "diagonal(";
        op = [](const at::Tensor& t) { return t.diagonal(); };
        break;
      }
      case 7: {
        name << "unsqueeze(" << dim;
        op = [=](const at::Tensor& t) { return t.unsqueeze(dim); };
        break;
      }
      case 8: {
        if (size == 0) return "";
        const int64_t piece = pick(1, size);
        const int64_t index = pick(0, (size - 1) / piece);
        name << "split(" << piece << "," << dim << ")[" << index;
        // Autograd forbids writes into results of split.
        if (grad_) {
          op = [=](const at::Tensor& t) {
            return t.narrow(
                dim,
                index * piece,
                std::min(piece, t.size(dim) - index * piece));
          };
        } else {
          op = [=](const at::Tensor& t) { return t.split(piece, dim)[index]; };
        }
        break;
      }
      default: {
        if (size < 2 || size % 2 != 0) return "";
        name << "unflatten(" << dim;
        op = [=](const at::Tensor& t) { return t.unflatten(dim, {2, -1}); };
        break;
      }
    }
    log_ << "\n" << name.str() << ") of " << from.plain.sizes();
    Pair made;
    const auto plain_error =
        ts::testing::error_of([&] { made.plain = op(from.plain); });
    const auto error =
        ts::testing::error_of([&] { made.distributed = op(from.distributed); });
    if (plain_error.empty() != error.empty()) {
      return "one raises: '" + plain_error + "', '" + error + "'";
    }
    if (plain_error.empty()) {
      tensors_.push_back(made);
      if (pick(0, 3) == 0) {
        log_ << ", read";
        return differs(made);
      }
    }
    return "";
  }

  std::string write() {
    const Pair to = any();
    // A value of a shape that broadcasts, replicated or sharded.
    auto sizes = to.plain.sizes().vec();
    if (!sizes.empty() && pick(0, 2) == 0) {
      sizes.erase(sizes.begin());
    }
    const auto value = torch::randint(-4, 5, sizes, torch::kDouble);
    const int64_t dim =
        sizes.empty() ? 0 : pick(0, static_cast<int64_t>(sizes.size()) - 1);
    ts::Placements layout(mesh_.ndim(), ts::Replicate());
    if (!sizes.empty() && pick(0, 1) == 0) {
      layout[pick(0, mesh_.ndim() - 1)] = ts::Shard(dim);
    }
    const Pair other{
        value, ts::distribute_tensor(value.clone(), mesh_, layout)};
    std::function<void(const at::Tensor&, const at::Tensor&)> op;
    const char* name = "";
    using T = const at::Tensor&;
    switch (pick(0, grad_ ? 5 : 9)) {
      case 0:
        name = "add_(2)";
        op = [](T t, T) { t.add_(2); };
        break;
      case 1:
        name = "mul_(-1)";
        op = [](T t, T) { t.mul_(-1); };
        break;
      case 2:
        name = "fill_(3)";
        op = [](T t, T) { t.fill_(3); };
        break;
      case 3:
        name = "copy_(v)";
        op = [](T t, T v) { t.copy_(v); };
        break;
      case 4:
        name = "sub_(v)";
        op = [](T t, T v) { t.sub_(v); };
        break;
      case 5:
        name = "masked_fill_";
        op = [](T t, T v) { t.masked_fill_(v.gt(0).expand(t.sizes()), 7); };
        break;
      case 6:
        name = "data.add_(1)";
        op = [](T t, T) { t.variable_data().add_(1); };
        break;
      case 7:
        name = "cumsum_";
        op = [](T t, T) {
          if (t.dim() > 0) t.cumsum_(0);
        };
        break;
      case 8:
        name = "copy_ of another";
        op = [](T t, T v) { t.copy_(v.relu()); };
        break;
      default:
        name = "add_ of itself";
        op = [](T t, T) { t.add_(t); };
        break;
    }
    log_ << "\n"
         << name << " with " << ts::to_string(layout) << value.sizes()
         << " into " << to.plain.sizes() << to.plain.strides();
    const auto plain_error =
        ts::testing::error_of([&] { op(to.plain, other.plain); });
    const auto error =
        ts::testing::error_of([&] { op(to.distributed, other.distributed); });
    if (plain_error.empty() != error.empty()) {
      return "one raises: '" + plain_error + "', '" + error + "'";
    }
    if (to.plain._version() != to.distributed._version()) {
      return "version " + std::to_string(to.distributed._version()) +
             " instead of " + std::to_string(to.plain._version());
    }
    return "";
  }

  std::string differs(const Pair& pair) {
    const auto value = whole(pair.distributed.detach());
    if (mesh_.local_positions().empty()) {
      return "";
    }
    if (value.sizes() != pair.plain.sizes() ||
        !value.equal(pair.plain.detach())) {
      std::ostringstream out;
      out << "expected\n" << pair.plain << "\ngot\n" << value;
      return out.str();
    }
    return "";
  }

  std::string compare() {
    for (const auto& pair : tensors_) {
      if (auto text = differs(pair); !text.empty()) {
        return text;
      }
    }
    return "";
  }

  std::string compare_gradients() {
    if (auto text = compare(); !text.empty()) {
      return text;
    }
    const auto gradient = [&](const std::vector<at::Tensor>& all,
                              const at::Tensor& leaf) {
      at::Tensor loss;
      double weight = 1;
      for (const auto& tensor : all) {
        const auto term = tensor.pow(2).sum() * (weight += 1);
        loss = loss.defined() ? loss + term : term;
      }
      return torch::autograd::grad(
          {loss}, {leaf}, {}, std::nullopt, false, /*allow_unused=*/true)[0];
    };
    std::vector<at::Tensor> plain;
    std::vector<at::Tensor> distributed;
    for (const auto& pair : tensors_) {
      plain.push_back(pair.plain);
      distributed.push_back(pair.distributed);
    }
    at::Tensor expected;
    at::Tensor given;
    const auto plain_error =
        ts::testing::error_of([&] { expected = gradient(plain, leaf_.plain); });
    const auto error = ts::testing::error_of(
        [&] { given = gradient(distributed, leaf_.distributed); });
    if (plain_error.empty() != error.empty()) {
      return "gradient: one raises: '" + plain_error + "', '" + error + "'";
    }
    if (!plain_error.empty() || expected.defined() != given.defined()) {
      return plain_error.empty() ? "gradient: one is undefined" : "";
    }
    return expected.defined() ? differs({expected, given}) : "";
  }

  const ts::DeviceMesh& mesh_;
  std::mt19937_64 random_;
  const bool grad_;
  Pair leaf_;
  std::vector<Pair> tensors_;
  std::ostringstream log_;
};

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* given = std::getenv(name);
  return given == nullptr ? otherwise : std::strtoll(given, nullptr, 10);
}

void check_programs(at::IntArrayRef shape, int64_t count, bool grad) {
  ts::testing::with_mesh(shape, [&](const ts::DeviceMesh& mesh) {
    int64_t failed = 0;
    const int64_t first = from_environment("TESSERA_FIRST_PROGRAM", 0);
    for (int64_t seed = first; seed < first + count && failed < 3; ++seed) {
      torch::manual_seed(seed);
      const auto text = Program(mesh, seed, grad).run();
      failed += text.empty() ? 0 : 1;
      EXPECT_EQ(text, "") << "program " << seed
                          << (grad ? " with gradients" : "");
    }
  });
}

struct Case {
  std::vector<int64_t> shape;
  bool grad;
};

class ViewWrites : public ::testing::TestWithParam<Case> {};

TEST_P(ViewWrites, EqualOneDevice) {
  const auto& [shape, grad] = GetParam();
  // By hand more than those of every day.
  check_programs(
      shape, from_environment("TESSERA_PROGRAMS", grad ? 2500 : 5000), grad);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes,
    ViewWrites,
    ::testing::Values(
        Case{{4}, false},
        Case{{4}, true},
        Case{{3}, false},
        Case{{2, 2}, false},
        Case{{2, 2}, true}),
    [](const auto& info) {
      std::string name;
      for (const int64_t size : info.param.shape) {
        name += (name.empty() ? "" : "x") + std::to_string(size);
      }
      return "Ranks" + name + (info.param.grad ? "WithGradients" : "");
    });

}  // namespace view_writes_test
