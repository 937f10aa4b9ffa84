// Softmax attention with the logarithms of a mask as bias: the tiles of softmax.py.
//
// Products are ATen's; between them each row of a tile gets its bias and goes through the online
// softmax: a running maximum and sum, and what was summed before is scaled to the new maximum.
//
// Shapes: T tables, S samples that share a table, L tokens (p prefix tokens, then n slices of P
// cells), M channels of q and k, D of v. Weights of the mask and of the keys are logarithms here;
// -inf hides a key. A row without any key gives zeros, and its `lse` is +inf: weights of 0.

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "grid.h"
#include "vectors.h"

namespace {

using namespace vit_rpe;

// --- tables ------------------------------------------------------------------------------------

// A table of offsets and the same with all axes but the first written out, where a row of the mask
// is a window: see `Layout`.
class Unfolding {
 public:
  explicit Unfolding(at::IntArrayRef grid) : slices_(grid[0]), cells_(1), width_(1) {
    for (int64_t n : grid.slice(1)) {
      cells_ *= n;
      width_ *= 2 * n - 1;
    }
    index_.resize(cells_ * cells_);
    for (int64_t query = 0; query < cells_; ++query) {
      for (int64_t key = 0; key < cells_; ++key) {
        int64_t offset = 0, stride = 1, i = query, j = key;
        for (size_t axis = grid.size() - 1; axis >= 1; --axis) {
          const int64_t n = grid[axis];
          offset += (i % n - j % n + n - 1) * stride;
          stride *= 2 * n - 1;
          i /= n;
          j /= n;
        }
        index_[(cells_ - 1 - query) * cells_ + key] = static_cast<int32_t>(offset);
      }
    }
  }

  int64_t size() const { return cells_ * (2 * slices_ - 1) * cells_; }
  Layout layout(int64_t prefix) const { return {prefix, slices_, cells_}; }

  template <typename scalar>
  void unfold(const scalar* table, scalar* unfolded) const {
    each([&](int64_t row, const int32_t* index) {
      for (int64_t j = 0; j < cells_; ++j) *unfolded++ = table[row * width_ + index[j]];
    });
  }

  // Adds the gradient of what was unfolded to that of the table.
  template <typename scalar>
  void fold(const scalar* unfolded, scalar* table) const {
    each([&](int64_t row, const int32_t* index) {
      for (int64_t j = 0; j < cells_; ++j) table[row * width_ + index[j]] += *unfolded++;
    });
  }

 private:
  template <typename Visit>
  void each(const Visit& visit) const {
    for (int64_t line = 0; line < cells_; ++line) {
      for (int64_t s = 2 * slices_ - 2; s >= 0; --s) visit(s, index_.data() + line * cells_);
    }
  }

  int64_t slices_, cells_, width_;
  std::vector<int32_t> index_;
};

// --- rows of a tile ----------------------------------------------------------------------------

// Adds the bias of keys to a row, if there is one.
template <typename scalar>
inline void add_bias(scalar* row, const scalar* bias, int64_t keys) {
  if (bias == nullptr) return;
#pragma omp simd
  for (int64_t i = 0; i < keys; ++i) row[i] += bias[i];
}

// Logits become weights relative to the largest logit of their row so far, in `top`; their sum is
// added to `total`. Both, and what is in `sums` already, are brought to the new scale.
template <typename scalar>
void weigh(const Layout& layout, const Weights<scalar>& mask, const scalar* bias, const Tile& tile,
           scalar* weights, scalar* top, scalar* total, scalar* sums, int64_t columns) {
  constexpr scalar kNone = -std::numeric_limits<scalar>::infinity();
  for (int64_t r = 0; r < tile.rows; ++r) {
    scalar* row = weights + r * tile.keys;
    add_bias(row, bias, tile.keys);
    scalar largest = kNone;
    for (const Piece& piece : layout.pieces(tile.row + r, tile.key, tile.key + tile.keys)) {
      scalar* x = row + piece.key - tile.key;
      const scalar* w = mask.at(piece);
      if (piece.step) {
#pragma omp simd reduction(max : largest)
        for (int64_t i = 0; i < piece.count; ++i) {
          x[i] += w[i];
          largest = std::max(largest, x[i]);
        }
      } else {
#pragma omp simd reduction(max : largest)
        for (int64_t i = 0; i < piece.count; ++i) {
          x[i] += *w;
          largest = std::max(largest, x[i]);
        }
      }
    }
    const bool first = tile.key == 0;
    if (!first) largest = std::max(largest, top[r]);
    const scalar shift = largest == kNone ? 0 : largest;  // no key so far: all weights are 0
    scalar sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < tile.keys; ++i) {
      row[i] = exponential(row[i] - shift);
      sum += row[i];
    }
    if (!first) {
      const scalar scale = std::exp(top[r] - shift);
      sum += total[r] * scale;
      scalar* s = sums + r * columns;
#pragma omp simd
      for (int64_t i = 0; i < columns; ++i) s[i] *= scale;
    }
    top[r] = largest;
    total[r] = sum;
  }
}

// Logits become weights, and the gradients of weights those of logits, which are added to the
// gradients of mask and bias. `delta` is what a row's gradient has along its weights.
template <typename scalar>
void weigh_backward(const Layout& layout, const Weights<scalar>& mask, const scalar* bias,
                    const Tile& tile, scalar* weights, scalar* dweights, const scalar* delta,
                    const scalar* lse, const Weights<scalar>& dmask, scalar* dbias) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    const scalar shift = lse[r], along = delta[r];
    add_bias(weights + r * tile.keys, bias, tile.keys);
    for (const Piece& piece : layout.pieces(tile.row + r, tile.key, tile.key + tile.keys)) {
      const int64_t start = r * tile.keys + piece.key - tile.key;
      scalar *x = weights + start, *dx = dweights + start, *dw = dmask.at(piece);
      const scalar* w = mask.at(piece);
      if (piece.step) {
#pragma omp simd
        for (int64_t i = 0; i < piece.count; ++i) {
          const scalar p = exponential(x[i] + w[i] - shift);
          const scalar d = p * (dx[i] - along);
          dw[i] += d;
          x[i] = p;
          dx[i] = d;
        }
      } else {
        scalar sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < piece.count; ++i) {
          const scalar p = exponential(x[i] + *w - shift);
          const scalar d = p * (dx[i] - along);
          sum += d;
          x[i] = p;
          dx[i] = d;
        }
        *dw += sum;
      }
    }
    if (dbias != nullptr) add_bias(dbias, dweights + r * tile.keys, tile.keys);
  }
}

// sums / total, row by row, to a result whose rows may be apart; top becomes the log of the sum of
// all exponentials.
template <typename scalar>
void divide(const Tensor& result, const scalar* sums, const scalar* total, const scalar* top,
            scalar* lse) {
  const int64_t rows = result.size(0), columns = result.size(1);
  for (int64_t r = 0; r < rows; ++r, sums += columns) {
    const bool empty = total[r] == 0;
    const scalar factor = empty ? 0 : 1 / total[r];
    lse[r] = empty ? std::numeric_limits<scalar>::infinity() : top[r] + std::log(total[r]);
    scalar* y = result.data_ptr<scalar>() + r * result.stride(0);
#pragma omp simd
    for (int64_t i = 0; i < columns; ++i) y[i] = sums[i] * factor;
  }
}

// The dot products of the rows of a gradient with those of the result.
template <typename scalar>
void row_dots(const Tensor& grad, const Tensor& result, scalar* delta) {
  const int64_t rows = grad.size(0), columns = grad.size(1);
  for (int64_t r = 0; r < rows; ++r) {
    const scalar* g = grad.const_data_ptr<scalar>() + r * grad.stride(0);
    const scalar* y = result.const_data_ptr<scalar>() + r * result.stride(0);
    scalar sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < columns; ++i) sum += g[i] * y[i];
    delta[r] = sum;
  }
}

// --- operators ---------------------------------------------------------------------------------

// An empty (T, S, L, C) tensor, stored as (S, L, T, C): what a model reads next.
Tensor tokens_first(const Tensor& like) {
  return at::empty({like.size(1), like.size(2), like.size(0), like.size(3)}, like.options())
      .permute({2, 0, 1, 3});
}

// Where the bias of an item's keys begins; nothing if keys have none.
template <typename scalar>
scalar* of_item(const std::optional<Tensor>& x, int64_t item) {
  return x ? x->data_ptr<scalar>() + item * x->size(-1) : nullptr;
}

// The attention, (T, S, L, D), and the logarithms of the sums of exponentials of its rows, (T, S, L).
std::tuple<Tensor, Tensor> forward(const Tensor& any_q, const Tensor& any_k, const Tensor& any_v,
                                   const Tensor& any_table, const Tensor& any_border,
                                   const std::optional<Tensor>& any_bias, at::IntArrayRef grid,
                                   int64_t prefix, double scale) {
  const Tensor q = row_contiguous(any_q), k = row_contiguous(any_k), v = row_contiguous(any_v);
  const Tensor table = any_table.contiguous(), border = any_border.contiguous();
  std::optional<Tensor> bias;
  if (any_bias) bias = any_bias->contiguous();
  const Unfolding unfolding(grid);
  const Layout layout = unfolding.layout(prefix);
  const int64_t samples = q.size(1), length = q.size(2);
  const int64_t block = even_block(length, kRows), row_blocks = quotient(length, block);
  const int64_t key_block = even_block(length, kKeys);
  Tensor result = tokens_first(v);
  Tensor lse = at::empty({q.size(0), samples, length}, v.options());
  at::parallel_for(0, q.size(0) * samples * row_blocks, 1, [&](int64_t begin, int64_t end) {
    at::AutoDispatchBelowADInplaceOrView plain;  // threads know no mode of their caller
    Tensor buffer = at::empty({block * key_block}, q.options());
    Tensor sums_buffer = at::empty({block, v.size(3)}, q.options());
    Tensor row_buffer = at::empty({2, block}, q.options());
    Tensor unfolded = at::empty({unfolding.size()}, q.options());
    AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "softmax_grid", [&] {
      scalar_t *top = row_buffer.data_ptr<scalar_t>(), *total = top + block;
      int64_t table_at_hand = -1;
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t item = unit / row_blocks, t = item / samples, s = item % samples;
        const int64_t row = unit % row_blocks * block, rows = std::min(block, length - row);
        if (t != table_at_hand) {
          unfolding.unfold(table[t].const_data_ptr<scalar_t>(), unfolded.data_ptr<scalar_t>());
          table_at_hand = t;
        }
        const Weights<scalar_t> mask = weights_of<scalar_t>(unfolded, border[t]);
        const scalar_t* key_bias = of_item<scalar_t>(bias, item);
        const Tensor q_rows = q[t][s].narrow(0, row, rows), keys = k[t][s], values = v[t][s];
        Tensor sums = sums_buffer.narrow(0, 0, rows);
        for (int64_t key = 0; key < length; key += key_block) {
          const Tile tile{row, rows, key, std::min(key_block, length - key)};
          Tensor weights = buffer.narrow(0, 0, rows * tile.keys).view({rows, tile.keys});
          at::addmm_out(weights, weights, q_rows, keys.narrow(0, key, tile.keys).t(), 0, scale);
          weigh<scalar_t>(layout, mask, key_bias == nullptr ? nullptr : key_bias + key, tile,
                          weights.data_ptr<scalar_t>(), top, total, sums.data_ptr<scalar_t>(),
                          v.size(3));
          at::addmm_out(sums, sums, weights, values.narrow(0, key, tile.keys), key ? 1 : 0);
        }
        divide<scalar_t>(result[t][s].narrow(0, row, rows), sums.data_ptr<scalar_t>(), total, top,
                         lse.data_ptr<scalar_t>() + item * length + row);
      }
    });
  });
  return {result, lse};
}

// The gradients of q, k, v, table, border and bias, given that of the result. With the weights P,
// G the gradient of P v and B the bias:
//
//     dP = G v^T,   dB = P * (dP - sum_j P dP),   dq = scale dB k,   dk = scale dB^T q,   dv = P^T G
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& any_grad, const Tensor& any_q, const Tensor& any_k, const Tensor& any_v,
    const Tensor& any_table, const Tensor& any_border, const std::optional<Tensor>& any_bias,
    const Tensor& any_result, const Tensor& any_lse, at::IntArrayRef grid, int64_t prefix,
    double scale) {
  const Tensor q = row_contiguous(any_q), k = row_contiguous(any_k), v = row_contiguous(any_v);
  const Tensor grad = row_contiguous(any_grad), result = row_contiguous(any_result);
  const Tensor table = any_table.contiguous(), border = any_border.contiguous();
  const Tensor lse = any_lse.contiguous();
  std::optional<Tensor> bias, dbias;
  if (any_bias) bias = any_bias->contiguous();
  const Unfolding unfolding(grid);
  const Layout layout = unfolding.layout(prefix);
  const int64_t tables = q.size(0), samples = q.size(1), length = q.size(2);
  const int64_t block = even_block(length, kRows), key_block = even_block(length, kKeys);
  const Parts parts(tables, samples, length, block, at::get_num_threads());
  Tensor dq = tokens_first(q);
  Tensor dk = at::zeros({parts.of_rows, samples, length, tables, k.size(3)}, k.options());
  Tensor dv = at::zeros({parts.of_rows, samples, length, tables, v.size(3)}, v.options());
  dk = dk.permute({0, 3, 1, 2, 4});
  dv = dv.permute({0, 3, 1, 2, 4});
  Tensor dtable = at::zeros({parts.count(), tables, table.size(1)}, table.options());
  Tensor dborder = at::zeros({parts.count(), tables, border.size(1)}, border.options());
  if (bias) dbias = at::zeros({parts.of_rows, tables, samples, length}, bias->options());
  at::parallel_for(0, tables * parts.count(), 1, [&](int64_t begin, int64_t end) {
    at::AutoDispatchBelowADInplaceOrView plain;  // threads know no mode of their caller
    Tensor buffers = at::empty({2, block * key_block}, q.options());
    Tensor delta_buffer = at::empty({block}, q.options());
    Tensor unfolded = at::empty({2, unfolding.size()}, q.options());
    AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "softmax_grid_backward", [&] {
      scalar_t* delta = delta_buffer.data_ptr<scalar_t>();
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t t = unit / parts.count(), part = unit % parts.count();
        const int64_t own = part % parts.of_rows;
        unfolding.unfold(table[t].const_data_ptr<scalar_t>(), unfolded[0].data_ptr<scalar_t>());
        unfolded[1].zero_();
        const Weights<scalar_t> mask = weights_of<scalar_t>(unfolded[0], border[t]);
        const Weights<scalar_t> dmask = weights_of<scalar_t>(unfolded[1], dborder[part][t]);
        parts.each(part, [&](int64_t s, int64_t row, int64_t rows) {
          const int64_t item = t * samples + s;
          const scalar_t* key_bias = of_item<scalar_t>(bias, item);
          scalar_t* dkey_bias = of_item<scalar_t>(dbias, own * tables * samples + item);
          const Tensor q_rows = q[t][s].narrow(0, row, rows), keys = k[t][s], values = v[t][s];
          const Tensor g_rows = grad[t][s].narrow(0, row, rows);
          Tensor dq_rows = dq[t][s].narrow(0, row, rows);
          Tensor dkeys = dk[own][t][s], dvalues = dv[own][t][s];
          row_dots<scalar_t>(g_rows, result[t][s].narrow(0, row, rows), delta);
          for (int64_t key = 0; key < length; key += key_block) {
            const Tile tile{row, rows, key, std::min(key_block, length - key)};
            const Tensor k_tile = keys.narrow(0, key, tile.keys);
            auto buffer = [&](int64_t i) {
              return buffers[i].narrow(0, 0, rows * tile.keys).view({rows, tile.keys});
            };
            Tensor weights = buffer(0), dweights = buffer(1);
            at::addmm_out(weights, weights, q_rows, k_tile.t(), 0, scale);
            at::mm_out(dweights, g_rows, values.narrow(0, key, tile.keys).t());
            weigh_backward<scalar_t>(
                layout, mask, key_bias == nullptr ? nullptr : key_bias + key, tile,
                weights.data_ptr<scalar_t>(), dweights.data_ptr<scalar_t>(), delta,
                lse.const_data_ptr<scalar_t>() + item * length + row, dmask,
                dkey_bias == nullptr ? nullptr : dkey_bias + key);
            at::addmm_out(dq_rows, dq_rows, dweights, k_tile, key ? 1 : 0, scale);
            Tensor dk_tile = dkeys.narrow(0, key, tile.keys);
            Tensor dv_tile = dvalues.narrow(0, key, tile.keys);
            at::addmm_out(dk_tile, dk_tile, dweights.t(), q_rows, 1, scale);
            at::addmm_out(dv_tile, dv_tile, weights.t(), g_rows);
          }
        });
        unfolding.fold(unfolded[1].const_data_ptr<scalar_t>(), dtable[part][t].data_ptr<scalar_t>());
      }
    });
  });
  return {dq, all_parts(dk), all_parts(dv), all_parts(dtable), all_parts(dborder),
          dbias ? all_parts(*dbias) : at::empty({0}, q.options())};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(vit_rpe, m) {
  m.def(
      "softmax_grid(Tensor q, Tensor k, Tensor v, Tensor table, Tensor border, Tensor? bias,"
      " int[] grid, int prefix, float scale) -> (Tensor, Tensor)");
  m.def(
      "softmax_grid_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor table,"
      " Tensor border, Tensor? bias, Tensor result, Tensor lse, int[] grid, int prefix,"
      " float scale) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(vit_rpe, CPU, m) {
  m.impl("softmax_grid", TORCH_FN(forward));
  m.impl("softmax_grid_backward", TORCH_FN(backward));
}
