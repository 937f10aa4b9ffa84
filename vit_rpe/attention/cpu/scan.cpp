// What queries take from other blocks of a grid under one exponential term after the other: the sums
// between blocks of scan.py, and their gradients, each core on its own part.
//
// Shapes: T tables of R terms, S samples that share a table, L tokens on a grid, M features, C value
// columns. Boxes tile the grid; a box is cut into blocks of b slices along one axis; a slice has P
// cells. A state is one M x C matrix for each cell. It passes from block to block, first upwards
// and then downwards, is spread along the other axes of its box, and is read by the next block.

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <vector>

namespace {

using at::IntArrayRef;
using at::Tensor;

// Thinner slices of value columns would waste the matrix products.
constexpr int64_t kFewestColumns = 16;

int64_t quotient(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One box: where its tokens are, and the sizes of its axes but the one that is cut.
struct Box {
  int64_t slices = 0;                 // along the axis that is cut
  int64_t stride = 0;                 // from a slice to the next, in tokens
  std::vector<int64_t> cells;        // the tokens of its first slice
  std::vector<int64_t> axes, sizes;   // the other axes
};

Box make_box(IntArrayRef grid, IntArrayRef sides, int64_t axis, int64_t number) {
  Box box;
  box.cells = {0};
  int64_t stride = 1;
  for (int64_t a = static_cast<int64_t>(grid.size()) - 1; a >= 0; --a) {  // the last runs fastest
    const int64_t count = quotient(grid[a], sides[a]), start = number % count * sides[a];
    const int64_t size = std::min(sides[a], grid[a] - start);
    number /= count;
    std::vector<int64_t> cells;
    for (int64_t i = 0; i < (a == axis ? 1 : size); ++i)
      for (int64_t cell : box.cells) cells.push_back(cell + (start + i) * stride);
    box.cells = std::move(cells);
    if (a == axis) {
      box.slices = size;
      box.stride = stride;
    } else {
      box.axes.insert(box.axes.begin(), a);
      box.sizes.insert(box.sizes.begin(), size);
    }
    stride *= grid[a];
  }
  return box;
}

// A block as one way sees it: its slices, and how far each is from the states it reads and sends.
template <typename scalar>
struct Block {
  int64_t first, count;
  std::vector<scalar> read, sent;                    // factors exp(-rate distance)
  std::vector<int64_t> read_distance, sent_distance;
  scalar decay;                                      // of a state that passes by
};

template <typename scalar>
Block<scalar> make_block(const Box& box, int64_t b, int64_t number, bool up, double rate) {
  Block<scalar> block{number * b, std::min(b, box.slices - number * b), {}, {}, {}, {}, 0};
  for (int64_t i = 0; i < block.count; ++i) {
    const int64_t below = i, above = block.count - 1 - i;
    block.read_distance.push_back((up ? below : above) + 1);
    block.sent_distance.push_back(up ? above : below);
    block.read.push_back(std::exp(-rate * block.read_distance.back()));
    block.sent.push_back(std::exp(-rate * block.sent_distance.back()));
  }
  block.decay = std::exp(-rate * block.count);
  return block;
}

// y[i] = sum_j a^|i - j| x[j] over n rows; one-sided, over j <= i (or, transposed, over j >= i).
template <typename scalar>
void spread_rows(const scalar* x, scalar* y, int64_t n, int64_t width, scalar a, bool one_sided,
                 bool transposed, std::vector<scalar>& run) {
  run.assign(width, 0);
  scalar* sum = run.data();
  const bool from_below = !one_sided || !transposed, from_above = !one_sided || transposed;
  if (from_below) {
    for (int64_t i = 0; i < n; ++i) {
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) y[i * width + c] = sum[c] = x[i * width + c] + a * sum[c];
    }
    std::fill(run.begin(), run.end(), 0);
  }
  if (from_above) {
    for (int64_t i = n - 1; i >= 0; --i) {
      const scalar* from = x + i * width;
      scalar* to = y + i * width;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) {
        const scalar above = a * sum[c];  // without the row itself, which may be there already
        to[c] = (one_sided ? from[c] : to[c]) + above;
        sum[c] = from[c] + above;
      }
    }
  }
}

template <typename scalar>
scalar dot(const scalar* x, const scalar* y, int64_t n) {
  scalar sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

// The derivative of <dy, spread_rows(x)> by a. `scratch` holds n rows.
template <typename scalar>
double spread_slope(const scalar* x, const scalar* dy, int64_t n, int64_t width, scalar a,
                    bool one_sided, scalar* scratch, std::vector<scalar>& run) {
  double slope = 0;
  for (int way = 0; way < (one_sided ? 1 : 2); ++way) {
    // sums over earlier rows of one factor, met by sums over later rows of the other
    const scalar *low = way ? dy : x, *high = way ? x : dy;
    spread_rows(low, scratch, n, width, a, true, false, run);
    std::fill(run.begin(), run.end(), 0);
    scalar* sum = run.data();
    for (int64_t i = n - 1; i > 0; --i) {
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) sum[c] = high[i * width + c] + a * sum[c];
      slope += dot(sum, scratch + (i - 1) * width, width);
    }
  }
  return slope;
}

// What a thread works on: some value columns of one box of one sample, under one table.
template <typename scalar>
class Sweep {
 public:
  Sweep(const Box& box, int64_t b, int64_t features, int64_t columns, const Tensor& like)
      : box_(box), b_(b), m_(features), c_(columns), like_(like) {
    const int64_t p = cells(), size = p * b;
    q_ = scratch(size * m_), v_ = scratch(size * c_), out_ = scratch(size * std::max(m_, c_));
    state_ = scratch(p * width()), spread_ = scratch(p * width()), other_ = scratch(p * width());
  }

  int64_t blocks() const { return quotient(box_.slices, b_); }

  // Adds to out (L, C) what reaches it under one term; rates of all axes of the grid.
  void forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
               const double* rates, double weight, int64_t axis, const std::vector<bool>& one_sided,
               bool up) {
    set(rates, axis, one_sided);
    state_.zero_();
    for (int64_t step = 0; step < blocks(); ++step) {
      const Block<scalar> block = at_step(step, up);
      if (step > 0) {
        const Tensor read = gather(q, block, block.read, weight, q_, m_);
        Tensor taken = shaped(out_, block, c_);
        at::bmm_out(taken, read, matrices(spread(state_, false)));
        scatter(taken, block, {}, 1, out);
      }
      if (step + 1 < blocks()) send(k, v, block, state_);
    }
  }

  // Adds to dq, dk (L, M), dv (L, C) and to drates, dweight.
  void backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dout,
                const Tensor& dq, const Tensor& dk, const Tensor& dv, const double* rates,
                double weight, int64_t axis, const std::vector<bool>& one_sided, bool up,
                double* drates, double* dweight) {
    set(rates, axis, one_sided);
    const int64_t count = blocks(), size = cells() * width();
    if (!states_.defined()) states_ = scratch(std::max<int64_t>(count - 1, 0) * size);
    for (int64_t step = 0; step + 1 < count; ++step) {  // the states after each step
      Tensor next = states_.narrow(0, step * size, size);
      step ? void(next.copy_(states_.narrow(0, (step - 1) * size, size))) : void(next.zero_());
      send(k, v, at_step(step, up), next);
    }
    Tensor dstate = state_.zero_();
    for (int64_t step = count - 1; step >= 0; --step) {
      const Block<scalar> block = at_step(step, up);
      if (step + 1 < count) {
        const Tensor keys = gather(k, block, block.sent, 1, q_, m_);
        const Tensor values = gather(v, block, {}, 1, v_, c_);
        Tensor change = shaped(out_, block, c_);
        at::bmm_out(change, keys, matrices(dstate));
        scatter(change, block, {}, 1, dv);
        change = shaped(out_, block, m_);
        at::bmm_out(change, values, matrices(dstate).transpose(1, 2));
        scatter(change, block, block.sent, 1, dk);
        drates[axis] -= moment(change, keys, block.sent_distance, nullptr);
        if (step > 0) {
          const Tensor before = states_.narrow(0, (step - 1) * size, size);
          drates[axis] -= block.decay * block.count * inner(dstate, before);
        }
        dstate.mul_(block.decay);
      }
      if (step > 0) {
        const Tensor state = states_.narrow(0, (step - 1) * size, size);
        const Tensor read = gather(q, block, block.read, 1, q_, m_);
        const Tensor grad = gather(dout, block, {}, 1, v_, c_);
        Tensor change = shaped(out_, block, m_);
        at::bmm_out(change, grad, matrices(spread(state, false)).transpose(1, 2));
        scatter(change, block, block.read, weight, dq);
        drates[axis] -= weight * moment(change, read, block.read_distance, dweight);
        Tensor dseen = matrices(spread_);
        at::baddbmm_out(dseen, dseen, read.transpose(1, 2), grad, 0, weight);
        spread_backward(state, drates);
        dstate.add_(spread(spread_, true));
      }
    }
  }

 private:
  int64_t cells() const { return static_cast<int64_t>(box_.cells.size()); }
  int64_t width() const { return m_ * c_; }
  Tensor scratch(int64_t size) const { return at::empty({size}, like_.options()); }
  Tensor matrices(const Tensor& x) const { return x.view({cells(), m_, c_}); }
  Tensor shaped(const Tensor& x, const Block<scalar>& block, int64_t columns) const {
    return x.narrow(0, 0, cells() * block.count * columns).view({cells(), block.count, columns});
  }

  void set(const double* rates, int64_t axis, const std::vector<bool>& one_sided) {
    rates_ = rates, axis_ = axis, one_sided_ = &one_sided;
  }

  Block<scalar> at_step(int64_t step, bool up) const {
    return make_block<scalar>(box_, b_, up ? step : blocks() - 1 - step, up, rates_[axis_]);
  }

  // The rows of a block, (P, b, columns), each slice times its factor.
  Tensor gather(const Tensor& x, const Block<scalar>& block, const std::vector<scalar>& factors,
                double weight, const Tensor& buffer, int64_t columns) const {
    const Tensor rows = shaped(buffer, block, columns);
    scalar* to = rows.template data_ptr<scalar>();
    each_row(x, block, [&](const scalar* from, int64_t i) {
      const scalar factor = weight * (factors.empty() ? 1 : factors[i]);
#pragma omp simd
      for (int64_t c = 0; c < columns; ++c) to[c] = factor * from[c];
      to += columns;
    });
    return rows;
  }

  void scatter(const Tensor& rows, const Block<scalar>& block, const std::vector<scalar>& factors,
               double weight, const Tensor& x) const {
    const scalar* from = rows.template const_data_ptr<scalar>();
    const int64_t columns = rows.size(2);
    each_row(x, block, [&](scalar* to, int64_t i) {
      const scalar factor = weight * (factors.empty() ? 1 : factors[i]);
#pragma omp simd
      for (int64_t c = 0; c < columns; ++c) to[c] += factor * from[c];
      from += columns;
    });
  }

  template <typename Visit>
  void each_row(const Tensor& x, const Block<scalar>& block, Visit visit) const {
    scalar* data = x.template data_ptr<scalar>();
    for (int64_t cell : box_.cells)
      for (int64_t i = 0; i < block.count; ++i)
        visit(data + (cell + (block.first + i) * box_.stride) * x.stride(0), i);
  }

  // state = decay * state + what the block sends.
  void send(const Tensor& k, const Tensor& v, const Block<scalar>& block, const Tensor& state) {
    const Tensor keys = gather(k, block, block.sent, 1, q_, m_);
    const Tensor values = gather(v, block, {}, 1, v_, c_);
    Tensor sum = matrices(state);
    at::baddbmm_out(sum, sum, keys.transpose(1, 2), values, block.decay);
  }

  // A state spread along the other axes of the box, or the transpose of that.
  Tensor spread(const Tensor& state, bool transposed) {
    Tensor x = state, y = other_, spare = spread_;
    for (size_t a = 0; a < box_.axes.size(); ++a) {
      along(a, [&](int64_t start, int64_t n, int64_t row, scalar factor, bool one_sided) {
        spread_rows(x.template const_data_ptr<scalar>() + start,
                    y.template data_ptr<scalar>() + start, n, row, factor, one_sided, transposed,
                    run_);
      });
      x = y;
      std::swap(y, spare);
    }
    return x;
  }

  // Adds to drates what the gradient of a spread state, in spread_, says of the other axes.
  void spread_backward(const Tensor& state, double* drates) {
    if (box_.axes.empty()) return;
    if (!slope_scratch_.defined()) slope_scratch_ = scratch(cells() * width());
    // An axis meets the state spread along the other axes: spreads commute.
    for (size_t a = 0; a < box_.axes.size(); ++a) {
      Tensor x = state;
      for (size_t other = 0; other < box_.axes.size(); ++other) {
        if (other == a) continue;
        Tensor y = scratch(cells() * width());
        along(other, [&](int64_t start, int64_t n, int64_t row, scalar factor, bool one_sided) {
          spread_rows(x.template const_data_ptr<scalar>() + start,
                      y.template data_ptr<scalar>() + start, n, row, factor, one_sided, false,
                      run_);
        });
        x = y;
      }
      along(a, [&](int64_t start, int64_t n, int64_t row, scalar factor, bool one_sided) {
        const double slope = spread_slope(
            x.template const_data_ptr<scalar>() + start,
            spread_.template const_data_ptr<scalar>() + start, n, row, factor, one_sided,
            slope_scratch_.template data_ptr<scalar>(), run_);
        drates[box_.axes[a]] -= factor * slope;
      });
    }
  }

  // Visits the lines of states along one of the other axes: (start, length, numbers in a row, ...).
  template <typename Visit>
  void along(size_t a, Visit visit) const {
    int64_t row = width(), lines = 1;
    for (size_t i = a + 1; i < box_.sizes.size(); ++i) row *= box_.sizes[i];
    for (size_t i = 0; i < a; ++i) lines *= box_.sizes[i];
    const scalar factor = std::exp(-rates_[box_.axes[a]]);
    for (int64_t line = 0; line < lines; ++line)
      visit(line * box_.sizes[a] * row, box_.sizes[a], row, factor, (*one_sided_)[box_.axes[a]]);
  }

  // sum distance * (change . rows), and the sum without distances.
  double moment(const Tensor& change, const Tensor& rows, const std::vector<int64_t>& distance,
                double* total) const {
    const scalar *x = change.template const_data_ptr<scalar>();
    const scalar *y = rows.template const_data_ptr<scalar>();
    double sum = 0;
    for (int64_t r = 0; r < rows.size(0) * rows.size(1); ++r) {
      const double product = dot(x + r * m_, y + r * m_, m_);
      sum += distance[r % rows.size(1)] * product;
      if (total) *total += product;
    }
    return sum;
  }

  double inner(const Tensor& x, const Tensor& y) const {
    double sum = 0;
    for (int64_t p = 0; p < cells(); ++p)
      sum += dot(x.template const_data_ptr<scalar>() + p * width(),
                 y.template const_data_ptr<scalar>() + p * width(), width());
    return sum;
  }

  const Box& box_;
  const int64_t b_, m_, c_;
  const Tensor& like_;
  const double* rates_ = nullptr;
  int64_t axis_ = 0;
  const std::vector<bool>* one_sided_ = nullptr;
  Tensor q_, v_, out_, state_, spread_, other_, states_, slope_scratch_;
  std::vector<scalar> run_;
};

// What all calls share: boxes of the grid, and how boxes and value columns are dealt out.
struct Plan {
  std::vector<Box> boxes;
  std::vector<bool> one_sided;
  int64_t axis, block, groups, columns;

  Plan(const Tensor& v, IntArrayRef grid, IntArrayRef sides, int64_t axis, int64_t block,
       IntArrayRef one_sided_axes)
      : one_sided(grid.size()), axis(axis), block(block), columns(v.size(3)) {
    int64_t count = 1;
    for (size_t a = 0; a < grid.size(); ++a) count *= quotient(grid[a], sides[a]);
    for (int64_t i = 0; i < count; ++i) boxes.push_back(make_box(grid, sides, axis, i));
    for (int64_t a : one_sided_axes) one_sided[a] = true;
    const int64_t items = std::max<int64_t>(v.size(0) * v.size(1) * count, 1);
    const int64_t most = std::max<int64_t>(columns / kFewestColumns, 1);
    groups = std::min(quotient(at::get_num_threads(), items), most);
  }

  int64_t units(const Tensor& v) const {
    return v.size(0) * v.size(1) * static_cast<int64_t>(boxes.size()) * groups;
  }
  int ways() const { return one_sided[axis] ? 1 : 2; }
};

struct Unit {
  int64_t t, s, box, group, first, count;  // the last two: its value columns
};

Unit unit_of(const Plan& plan, const Tensor& v, int64_t number) {
  const int64_t boxes = static_cast<int64_t>(plan.boxes.size()), group = number % plan.groups;
  const int64_t box = number / plan.groups % boxes, item = number / plan.groups / boxes;
  const int64_t first = group * plan.columns / plan.groups;
  const int64_t last = (group + 1) * plan.columns / plan.groups;
  return {item / v.size(1), item % v.size(1), box, group, first, last - first};
}

using Gradients = std::array<Tensor, 5>;  // of q, k, v, rates and weights

// Adds to out (T, S, L, C). q, k (T, S, L, M), v (T, S, L, C); rates (T, R, axes) and weights (T, R)
// in double precision. Boxes have these sides and are cut along `axis` into blocks.
void add_level(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
               const Tensor& rates, const Tensor& weights, IntArrayRef grid, IntArrayRef sides,
               int64_t axis, int64_t block, IntArrayRef one_sided) {
  const Plan plan(v, grid, sides, axis, block, one_sided);
  at::parallel_for(0, plan.units(v), 1, [&](int64_t begin, int64_t end) {
    at::AutoDispatchBelowADInplaceOrView plain;  // threads know no mode of their caller
    for (int64_t number = begin; number < end; ++number) {
      const Unit u = unit_of(plan, v, number);
      auto columns = [&](const Tensor& x) { return x[u.t][u.s].narrow(1, u.first, u.count); };
      AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "scan_grid", [&] {
        Sweep<scalar_t> sweep(plan.boxes[u.box], plan.block, q.size(3), u.count, q);
        for (int64_t r = 0; r < weights.size(1); ++r)
          for (int way = 0; way < plan.ways(); ++way)
            sweep.forward(q[u.t][u.s], k[u.t][u.s], columns(v), columns(out),
                          rates[u.t][r].const_data_ptr<double>(),
                          weights[u.t][r].item<double>(), axis, plan.one_sided, way == 0);
      });
    }
  });
}

// The gradients of q, k, v, rates and weights, given that of what `add_level` adds.
Gradients level_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rates,
    const Tensor& weights, IntArrayRef grid, IntArrayRef sides, int64_t axis, int64_t block,
    IntArrayRef one_sided) {
  const Plan plan(v, grid, sides, axis, block, one_sided);
  auto parts = [&](const Tensor& x, int64_t count) {  // of those that several units add to
    std::vector<int64_t> shape = x.sizes().vec();
    shape.insert(shape.begin(), count);
    return at::zeros(shape, x.options());
  };
  const int64_t boxes = static_cast<int64_t>(plan.boxes.size());
  Tensor dq = parts(q, plan.groups), dk = parts(k, plan.groups), dv = parts(v, 1)[0];
  const int64_t shares = v.size(1) * boxes * plan.groups;
  Tensor drates = parts(rates, shares), dweights = parts(weights, shares);
  at::parallel_for(0, plan.units(v), 1, [&](int64_t begin, int64_t end) {
    at::AutoDispatchBelowADInplaceOrView plain;  // threads know no mode of their caller
    for (int64_t number = begin; number < end; ++number) {
      const Unit u = unit_of(plan, v, number);
      const int64_t share = number % shares;
      auto columns = [&](const Tensor& x) { return x[u.t][u.s].narrow(1, u.first, u.count); };
      AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "scan_grid_backward", [&] {
        Sweep<scalar_t> sweep(plan.boxes[u.box], plan.block, q.size(3), u.count, q);
        for (int64_t r = 0; r < weights.size(1); ++r)
          for (int way = 0; way < plan.ways(); ++way)
            sweep.backward(q[u.t][u.s], k[u.t][u.s], columns(v), columns(grad),
                           dq[u.group][u.t][u.s], dk[u.group][u.t][u.s], columns(dv),
                           rates[u.t][r].const_data_ptr<double>(),
                           weights[u.t][r].item<double>(), axis, plan.one_sided, way == 0,
                           drates[share][u.t][r].data_ptr<double>(),
                           dweights[share][u.t][r].data_ptr<double>());
      });
    }
  });
  auto all = [](const Tensor& x) { return x.size(0) == 1 ? x[0] : x.sum(0); };
  return {all(dq), all(dk), dv, all(drates), all(dweights)};
}

// The same numbers, those of a row next to each other.
Tensor row_contiguous(const Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

// Visits the cuts one after the other: the sides of the boxes, the axis and the block size.
template <typename Visit>
void each_level(IntArrayRef grid, IntArrayRef blocks, Visit visit) {
  std::vector<int64_t> sides = grid.vec();
  for (size_t axis = 0; axis < blocks.size(); ++axis) {
    visit(IntArrayRef(sides), static_cast<int64_t>(axis), blocks[axis]);
    sides[axis] = blocks[axis];
  }
}

// What queries take from other blocks, (T, S, L, C). The grid is cut into blocks of blocks[0] slices
// along its first axis, each of these along the next axis, and so on.
Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rates,
               const Tensor& weights, IntArrayRef grid, IntArrayRef blocks, IntArrayRef one_sided) {
  const Tensor q_rows = row_contiguous(q), k_rows = row_contiguous(k), v_rows = row_contiguous(v);
  const Tensor all_rates = rates.contiguous(), all_weights = weights.contiguous();
  Tensor out = at::zeros(v.sizes(), v.options());
  each_level(grid, blocks, [&](IntArrayRef sides, int64_t axis, int64_t block) {
    add_level(out, q_rows, k_rows, v_rows, all_rates, all_weights, grid, sides, axis, block,
              one_sided);
  });
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rates,
    const Tensor& weights, IntArrayRef grid, IntArrayRef blocks, IntArrayRef one_sided) {
  const Tensor q_rows = row_contiguous(q), k_rows = row_contiguous(k), v_rows = row_contiguous(v);
  const Tensor all_rates = rates.contiguous(), all_weights = weights.contiguous();
  const Tensor grad_rows = row_contiguous(grad);
  Gradients total;
  each_level(grid, blocks, [&](IntArrayRef sides, int64_t axis, int64_t block) {
    Gradients level = level_backward(grad_rows, q_rows, k_rows, v_rows, all_rates, all_weights,
                                     grid, sides, axis, block, one_sided);
    for (size_t i = 0; i < total.size(); ++i)
      total[i] = total[i].defined() ? total[i].add_(level[i]) : level[i];
  });
  return std::tuple_cat(total);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(vit_rpe, m) {
  m.def(
      "scan_grid(Tensor q, Tensor k, Tensor v, Tensor rates, Tensor weights, int[] grid,"
      " int[] blocks, int[] one_sided) -> Tensor");
  m.def(
      "scan_grid_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor rates, Tensor weights,"
      " int[] grid, int[] blocks, int[] one_sided) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(vit_rpe, CPU, m) {
  m.impl("scan_grid", TORCH_FN(forward));
  m.impl("scan_grid_backward", TORCH_FN(backward));
}
