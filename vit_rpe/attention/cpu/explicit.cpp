// The tiles of explicit.py, each core on its own: products by ATen, and the mask in between.
//
// Shapes as there: T tables, S samples that share a table, L tokens (p prefix tokens, then n slices
// of P cells), M features, D value channels. A tile is some rows by some keys of one item's matrix
// and stays in a core's cache; no core waits for another before all is done.

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
#include <optional>
#include <tuple>

#include "grid.h"

namespace {

using namespace vit_rpe;

// weights *= mask; their sums and absolute sums are added to those of the rows.
template <typename scalar>
void multiply(const Layout& layout, const Weights<scalar>& mask, const Tile& tile, scalar* weights,
              scalar* total, scalar* absolute) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    scalar sum = 0, norm = 0;
    for (const Piece& piece : layout.pieces(tile.row + r, tile.key, tile.key + tile.keys)) {
      scalar* x = weights + r * tile.keys + piece.key - tile.key;
      const scalar* w = mask.at(piece);
      if (piece.step) {
#pragma omp simd reduction(+ : sum, norm)
        for (int64_t i = 0; i < piece.count; ++i) {
          x[i] *= w[i];
          sum += x[i];
          norm += std::abs(x[i]);
        }
      } else {
#pragma omp simd reduction(+ : sum, norm)
        for (int64_t i = 0; i < piece.count; ++i) {
          x[i] *= *w;
          sum += x[i];
          norm += std::abs(x[i]);
        }
      }
    }
    total[r] += sum;
    absolute[r] += norm;
  }
}

// weights *= mask and dweights *= mask, after their product has been added to the mask's gradient.
// The gradient of a row's sum is that of each of its weights.
template <typename scalar>
void multiply_backward(const Layout& layout, const Weights<scalar>& mask, const Tile& tile,
                       scalar* weights, scalar* dweights, const scalar* dtotal,
                       const Weights<scalar>& dmask) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    const scalar more = dtotal[r];
    for (const Piece& piece : layout.pieces(tile.row + r, tile.key, tile.key + tile.keys)) {
      const int64_t start = r * tile.keys + piece.key - tile.key;
      scalar *x = weights + start, *dx = dweights + start, *dw = dmask.at(piece);
      const scalar* w = mask.at(piece);
      if (piece.step) {
#pragma omp simd
        for (int64_t i = 0; i < piece.count; ++i) {
          const scalar d = dx[i] + more;
          dw[i] += x[i] * d;
          x[i] *= w[i];
          dx[i] = d * w[i];
        }
      } else {
        scalar sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < piece.count; ++i) {
          const scalar d = dx[i] + more;
          sum += x[i] * d;
          x[i] *= *w;
          dx[i] = d * *w;
        }
        *dw += sum;
      }
    }
  }
}

// A v, the sums of A's rows and their absolute sums: (T, S, L, D) and twice (T, S, L, 1).
std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const Tensor& table, const Tensor& border,
                                           int64_t prefix, int64_t slices, int64_t cells) {
  const Layout layout{prefix, slices, cells};
  const int64_t samples = q.size(1), length = q.size(2), row_blocks = quotient(length, kRows);
  Tensor sums = at::empty(v.sizes(), v.options());
  Tensor total = at::zeros({q.size(0), samples, length, 1}, v.options());
  Tensor absolute = at::zeros(total.sizes(), v.options());
  at::parallel_for(0, q.size(0) * samples * row_blocks, 1, [&](int64_t begin, int64_t end) {
    at::AutoDispatchBelowADInplaceOrView plain;  // threads know no mode of their caller
    Tensor buffer = at::empty({kRows * std::min(kKeys, length)}, q.options());
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t item = unit / row_blocks, t = item / samples, s = item % samples;
      const int64_t row = unit % row_blocks * kRows, rows = std::min(kRows, length - row);
      const Tensor q_rows = q[t][s].narrow(0, row, rows), keys = k[t][s], values = v[t][s];
      Tensor out = sums[t][s].narrow(0, row, rows);
      for (int64_t key = 0; key < length; key += kKeys) {
        const Tile tile{row, rows, key, std::min(kKeys, length - key)};
        Tensor weights = buffer.narrow(0, 0, rows * tile.keys).view({rows, tile.keys});
        at::mm_out(weights, q_rows, keys.narrow(0, key, tile.keys).t());
        AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "masked_attention", [&] {
          const int64_t first = item * length + row;
          multiply<scalar_t>(layout, weights_of<scalar_t>(table[t], border[t]), tile,
                             weights.data_ptr<scalar_t>(), total.data_ptr<scalar_t>() + first,
                             absolute.data_ptr<scalar_t>() + first);
        });
        at::addmm_out(out, out, weights, values.narrow(0, key, tile.keys), key ? 1 : 0);
      }
    }
  });
  return {sums, total, absolute};
}

// The gradient of some rows of A v, (rows, D), and of their sums, given that of the rows of a result:
// of A v over the denominators, if there are any, and otherwise of A v and the sums beside it.
template <typename scalar>
void undivided(const Tensor& grad, const Tensor& result, const Tensor& denominator, scalar* g,
               scalar* dtotal) {
  const int64_t rows = grad.size(0), columns = grad.size(1) - (denominator.defined() ? 0 : 1);
  for (int64_t r = 0; r < rows; ++r, g += columns) {
    const scalar* x = grad.const_data_ptr<scalar>() + r * grad.stride(0);
    if (!denominator.defined()) {
      std::copy(x, x + columns, g);
      dtotal[r] = x[columns];
      continue;
    }
    const scalar* y = result.const_data_ptr<scalar>() + r * result.stride(0);
    const scalar divisor = denominator.const_data_ptr<scalar>()[r];
    scalar sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < columns; ++i) {
      g[i] = x[i] / divisor;
      sum += g[i] * y[i];
    }
    dtotal[r] = -sum;
  }
}

// The gradients of q, k, v, table and border, given that of the result: see `undivided`. Rows of the
// gradient and of the result need not be contiguous.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& any_grad,
    const std::optional<Tensor>& any_result, const std::optional<Tensor>& denominator,
    const Tensor& table, const Tensor& border, int64_t prefix, int64_t slices, int64_t cells) {
  const Tensor grad = row_contiguous(any_grad);
  std::optional<Tensor> result;
  if (any_result) result = row_contiguous(*any_result);
  const Layout layout{prefix, slices, cells};
  const int64_t tables = q.size(0), samples = q.size(1), length = q.size(2);
  const Parts parts(tables, samples, length, kRows, at::get_num_threads());
  Tensor dq = at::empty(q.sizes(), q.options());
  Tensor dk = at::zeros({parts.of_rows, tables, samples, length, k.size(3)}, k.options());
  Tensor dv = at::zeros({parts.of_rows, tables, samples, length, v.size(3)}, v.options());
  Tensor dtable = at::zeros({parts.count(), tables, table.size(1)}, table.options());
  Tensor dborder = at::zeros({parts.count(), tables, border.size(1)}, border.options());
  at::parallel_for(0, tables * parts.count(), 1, [&](int64_t begin, int64_t end) {
    at::AutoDispatchBelowADInplaceOrView plain;  // threads know no mode of their caller
    const int64_t size = kRows * std::min(kKeys, length);
    Tensor buffers = at::empty({2, size}, q.options());
    Tensor g_buffer = at::empty({kRows, v.size(3)}, q.options());
    Tensor dtotal = at::empty({kRows}, q.options());
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t t = unit / parts.count(), part = unit % parts.count();
      parts.each(part, [&](int64_t s, int64_t row, int64_t rows) {
        const Tensor keys = k[t][s], values = v[t][s];
        const int64_t own = part % parts.of_rows;
        Tensor dkeys = dk[own][t][s], dvalues = dv[own][t][s];
        const Tensor q_rows = q[t][s].narrow(0, row, rows);
        Tensor g_rows = g_buffer.narrow(0, 0, rows);
        auto in_block = [&](const std::optional<Tensor>& x) {
          return x ? (*x)[t][s].narrow(0, row, rows) : Tensor();
        };
        AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "undivided", [&] {
          undivided<scalar_t>(grad[t][s].narrow(0, row, rows), in_block(result),
                              in_block(denominator), g_rows.data_ptr<scalar_t>(),
                              dtotal.data_ptr<scalar_t>());
        });
        Tensor dq_rows = dq[t][s].narrow(0, row, rows);
        for (int64_t key = 0; key < length; key += kKeys) {
          const Tile tile{row, rows, key, std::min(kKeys, length - key)};
          const Tensor k_tile = keys.narrow(0, key, tile.keys);
          auto buffer = [&](int64_t i) {
            return buffers[i].narrow(0, 0, rows * tile.keys).view({rows, tile.keys});
          };
          Tensor weights = buffer(0), dweights = buffer(1);
          at::mm_out(weights, q_rows, k_tile.t());
          at::mm_out(dweights, g_rows, values.narrow(0, key, tile.keys).t());
          AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "masked_attention_backward", [&] {
            multiply_backward<scalar_t>(
                layout, weights_of<scalar_t>(table[t], border[t]), tile,
                weights.data_ptr<scalar_t>(), dweights.data_ptr<scalar_t>(),
                dtotal.const_data_ptr<scalar_t>(),
                weights_of<scalar_t>(dtable[part][t], dborder[part][t]));
          });
          at::addmm_out(dq_rows, dq_rows, dweights, k_tile, key ? 1 : 0);
          Tensor dk_tile = dkeys.narrow(0, key, tile.keys);
          Tensor dv_tile = dvalues.narrow(0, key, tile.keys);
          at::addmm_out(dk_tile, dk_tile, dweights.t(), q_rows);
          at::addmm_out(dv_tile, dv_tile, weights.t(), g_rows);
        }
      });
    }
  });
  return {dq, all_parts(dk), all_parts(dv), all_parts(dtable), all_parts(dborder)};
}

}  // namespace

TORCH_LIBRARY(vit_rpe, m) {
  m.def(
      "explicit_grid(Tensor q, Tensor k, Tensor v, Tensor table, Tensor border, int prefix,"
      " int slices, int cells) -> (Tensor, Tensor, Tensor)");
  m.def(
      "explicit_grid_backward(Tensor q, Tensor k, Tensor v, Tensor grad, Tensor? result,"
      " Tensor? denominator, Tensor table, Tensor border, int prefix, int slices, int cells)"
      " -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(vit_rpe, CPU, m) {
  m.impl("explicit_grid", TORCH_FN(forward));
  m.impl("explicit_grid_backward", TORCH_FN(backward));
}
