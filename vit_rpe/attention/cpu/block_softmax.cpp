// Softmax attention inside the parts of a mask, such as the graphs of a batch: a part and head at a
// time, from q, k and v to the result. No matrix is stored but some rows, which stay in a core's
// cache.
//
// Shapes: H heads, L tokens, C channels of q and k, D of v. Part b has n tokens, which begin at
// `start`; the bias of its n x n logits begins at `first` of E numbers, with rows `stride` apart: the
// logarithms of weights. -inf hides a key. A row without any key gives zeros, and its `lse` is +inf.

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "grid.h"
#include "vectors.h"

namespace {

using namespace vit_rpe;

constexpr int64_t kTileRows = 32;

// --- small products ----------------------------------------------------------------------------

// A matrix by its strides.
template <typename scalar>
struct Strided {
  const scalar* data;
  int64_t row, column;

  Strided below(int64_t rows) const { return {data + rows * row, row, column}; }
};

// out (+)= a b for R rows and U vectors of columns; rows of b and out are `b_row` and `out_row`
// apart.
template <typename scalar, int R, int U>
inline void product_tile(const Strided<scalar>& a, const scalar* b, int64_t b_row, int64_t inner,
                         scalar* out, int64_t out_row, bool add) {
  using V = typename Vector<scalar>::type;
  constexpr int64_t width = Vector<scalar>::width;
  V sums[R][U] = {};
  for (int64_t i = 0; i < inner; ++i) {
    V right[U];
    for (int u = 0; u < U; ++u) right[u] = vector_at(b + i * b_row + u * width);
    for (int r = 0; r < R; ++r) {
      const scalar left = a.data[r * a.row + i * a.column];
      for (int u = 0; u < U; ++u) sums[r][u] += left * right[u];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int u = 0; u < U; ++u) {
      V& place = vector_at(out + r * out_row + u * width);
      place = add ? place + sums[r][u] : sums[r][u];
    }
  }
}

template <typename scalar, int U>
void product_columns(const Strided<scalar>& a, int64_t rows, const scalar* b, int64_t b_row,
                     int64_t inner, scalar* out, int64_t out_row, bool add) {
  constexpr int R = 4;
  int64_t r = 0;
  for (; r + R <= rows; r += R) {
    product_tile<scalar, R, U>(a.below(r), b, b_row, inner, out + r * out_row, out_row, add);
  }
  for (; r < rows; ++r) {
    product_tile<scalar, 1, U>(a.below(r), b, b_row, inner, out + r * out_row, out_row, add);
  }
}

// out (+)= a b; there are whole vectors of columns.
template <typename scalar>
void product(const Strided<scalar>& a, int64_t rows, const scalar* b, int64_t b_row, int64_t inner,
             scalar* out, int64_t out_row, int64_t columns, bool add = false) {
  constexpr int64_t width = Vector<scalar>::width;
  int64_t j = 0;
  for (; j + 2 * width <= columns; j += 2 * width) {
    product_columns<scalar, 2>(a, rows, b + j, b_row, inner, out + j, out_row, add);
  }
  if (j < columns) product_columns<scalar, 1>(a, rows, b + j, b_row, inner, out + j, out_row, add);
}

template <typename scalar>
int64_t whole(int64_t size) {
  constexpr int64_t width = Vector<scalar>::width;
  return quotient(size, width) * width;
}

// --- parts -------------------------------------------------------------------------------------

struct Part {
  int64_t start, size, first, stride;
};

const Part* parts_of(const Tensor& blocks) {
  static_assert(sizeof(Part) == 4 * sizeof(int64_t), "a part is a row of `blocks`");
  return reinterpret_cast<const Part*>(blocks.const_data_ptr<int64_t>());
}

int64_t largest_part(const Tensor& blocks) {
  int64_t largest = 0;
  for (int64_t b = 0; b < blocks.size(0); ++b) {
    largest = std::max(largest, parts_of(blocks)[b].size);
  }
  return largest;
}

// The tokens of a part in one head, (n, C).
template <typename scalar>
Strided<scalar> tokens_of(const Tensor& x, int64_t head, int64_t start) {
  return {x.const_data_ptr<scalar>() + head * x.stride(0) + start * x.stride(1), x.stride(1), 1};
}

// Copies (n, C) tokens to rows of `row` numbers, of which the last are 0.
template <typename scalar>
void pack(const Strided<scalar>& x, int64_t tokens, int64_t channels, scalar* out, int64_t row) {
  for (int64_t i = 0; i < tokens; ++i, out += row) {
    std::copy_n(x.data + i * x.row, channels, out);
    std::fill(out + channels, out + row, scalar(0));
  }
}

// The same for their transpose, (C, n).
template <typename scalar>
void pack_transposed(const Strided<scalar>& x, int64_t tokens, int64_t channels, scalar* out,
                     int64_t row) {
  for (int64_t c = 0; c < channels; ++c, out += row) {
    for (int64_t i = 0; i < tokens; ++i) out[i] = x.data[i * x.row + c];
    std::fill(out + tokens, out + row, scalar(0));
  }
}

// --- rows --------------------------------------------------------------------------------------

// Scales a row of logits and adds their bias; what pads the row to whole vectors is -inf.
template <typename scalar>
void add_bias(scalar* row, const scalar* bias, int64_t keys, scalar scale) {
#pragma omp simd
  for (int64_t j = 0; j < keys; ++j) row[j] = row[j] * scale + bias[j];
  std::fill(row + keys, row + whole<scalar>(keys), -std::numeric_limits<scalar>::infinity());
}

// The largest number of whole vectors; NaN counts as none.
template <typename scalar>
scalar largest_of(const scalar* row, int64_t size) {
  using V = typename Vector<scalar>::type;
  V most = vector_at(row);
  for (int64_t j = 0; j < size; j += Vector<scalar>::width) {
    const V x = vector_at(row + j);
    most = x > most ? x : most;
  }
  scalar largest = -std::numeric_limits<scalar>::infinity();
  for (int64_t i = 0; i < Vector<scalar>::width; ++i) largest = std::max(largest, most[i]);
  return largest;
}

// Logits become weights relative to the largest of their row; returns their sum, and its logarithm
// in `lse`.
template <typename scalar>
scalar weigh(scalar* row, int64_t size, scalar* lse) {
  constexpr scalar kNone = -std::numeric_limits<scalar>::infinity();
  const scalar largest = largest_of(row, size);
  const scalar shift = largest == kNone ? 0 : largest;  // no key: all weights are 0
  scalar sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < size; ++j) {
    row[j] = exponential(row[j] - shift);
    sum += row[j];
  }
  *lse = sum == 0 ? -kNone : shift + std::log(sum);
  return sum;
}

// Logits become weights that sum to 1, and the gradients of these those of the logits; `along` is
// what a row's gradient has along its weights.
template <typename scalar>
void weigh_backward(scalar* row, scalar* drow, int64_t size, scalar lse, scalar along) {
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) {
    const scalar p = exponential(row[j] - lse);
    row[j] = p;
    drow[j] = p * (drow[j] - along);
  }
}

template <typename scalar>
void add(const scalar* x, int64_t size, scalar* sums) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) sums[i] += x[i];
}

template <typename scalar>
scalar dot(const scalar* x, const scalar* y, int64_t size) {
  scalar sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) sum += x[i] * y[i];
  return sum;
}

// --- operators ---------------------------------------------------------------------------------

// An empty (H, L, C) tensor, stored as (L, H, C): what a layer reads next.
Tensor tokens_first(const Tensor& like) {
  return at::empty({like.size(1), like.size(0), like.size(2)}, like.options()).transpose(0, 1);
}

// The attention, (H, L, D), and the logarithms of the sums of exponentials of its rows, (H, L).
std::tuple<Tensor, Tensor> forward(const Tensor& any_q, const Tensor& any_k, const Tensor& any_v,
                                   const Tensor& any_bias, const Tensor& any_blocks,
                                   double any_scale) {
  const Tensor q = row_contiguous(any_q), k = row_contiguous(any_k), v = row_contiguous(any_v);
  const Tensor bias = any_bias.contiguous(), blocks = any_blocks.contiguous();
  const int64_t heads = q.size(0), channels = q.size(2), values = v.size(2);
  Tensor result = tokens_first(v);
  Tensor lse = at::empty({heads, q.size(1)}, v.options());
  AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "softmax_blocks", [&] {
    const scalar_t scale = static_cast<scalar_t>(any_scale);
    const int64_t most = whole<scalar_t>(largest_part(blocks)), value_row = whole<scalar_t>(values);
    at::parallel_for(0, blocks.size(0), 1, [&](int64_t begin, int64_t end) {
      std::vector<scalar_t> keys(channels * most), own(most * value_row);
      std::vector<scalar_t> tile(kTileRows * most), sums(kTileRows * value_row);
      scalar_t totals[kTileRows];
      for (int64_t b = begin; b < end; ++b) {
        const auto [start, size, first, stride] = parts_of(blocks)[b];
        const int64_t key_row = whole<scalar_t>(size);
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t table = bias.size(0) == 1 ? 0 : h * bias.size(1);
          const scalar_t* own_bias = bias.const_data_ptr<scalar_t>() + table + first;
          scalar_t* own_lse = lse.data_ptr<scalar_t>() + h * q.size(1) + start;
          const auto queries = tokens_of<scalar_t>(q, h, start);
          pack_transposed(tokens_of<scalar_t>(k, h, start), size, channels, keys.data(), key_row);
          pack(tokens_of<scalar_t>(v, h, start), size, values, own.data(), value_row);
          for (int64_t row = 0; row < size; row += kTileRows) {
            const int64_t rows = std::min(kTileRows, size - row);
            product(queries.below(row), rows, keys.data(), key_row, channels, tile.data(), key_row,
                    key_row);
            for (int64_t r = 0; r < rows; ++r) {
              scalar_t* logits = tile.data() + r * key_row;
              add_bias(logits, own_bias + (row + r) * stride, size, scale);
              totals[r] = weigh(logits, key_row, own_lse + row + r);
            }
            product<scalar_t>({tile.data(), key_row, 1}, rows, own.data(), value_row, size,
                              sums.data(), value_row, value_row);
            for (int64_t r = 0; r < rows; ++r) {
              const scalar_t factor = totals[r] == 0 ? 0 : 1 / totals[r];
              scalar_t* y = result.data_ptr<scalar_t>() + h * result.stride(0) +
                            (start + row + r) * result.stride(1);
              for (int64_t i = 0; i < values; ++i) y[i] = sums[r * value_row + i] * factor;
            }
          }
        }
      }
    });
  });
  return {result, lse};
}

// Writes the transpose of (C, n) sums to tokens, times a factor.
template <typename scalar>
void unpack_transposed(const scalar* sums, int64_t row, int64_t tokens, int64_t channels,
                       scalar factor, const Tensor& out, int64_t head, int64_t start) {
  scalar* y = out.data_ptr<scalar>() + head * out.stride(0) + start * out.stride(1);
  for (int64_t i = 0; i < tokens; ++i, y += out.stride(1)) {
    for (int64_t c = 0; c < channels; ++c) y[c] = sums[c * row + i] * factor;
  }
}

// The gradients of q, k, v and, if asked for, of the bias, given that of the result. With the weights
// P, G the gradient of P v and B the bias:
//
//     dP = G v^T,   dB = P * (dP - sum_j P dP),   dq = scale dB k,   dk = scale dB^T q,   dv = P^T G
std::tuple<Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& any_grad, const Tensor& any_q, const Tensor& any_k, const Tensor& any_v,
    const Tensor& any_bias, const Tensor& any_blocks, const Tensor& any_result,
    const Tensor& any_lse, double any_scale, bool of_bias) {
  const Tensor q = row_contiguous(any_q), k = row_contiguous(any_k), v = row_contiguous(any_v);
  const Tensor grad = row_contiguous(any_grad), result = row_contiguous(any_result);
  const Tensor bias = any_bias.contiguous(), blocks = any_blocks.contiguous();
  const Tensor lse = any_lse.contiguous();
  const int64_t heads = q.size(0), channels = q.size(2), values = v.size(2);
  Tensor dq = tokens_first(q), dk = tokens_first(k), dv = tokens_first(v);
  Tensor dbias = of_bias ? at::zeros(bias.sizes(), bias.options())
                               : at::empty({0}, bias.options());
  AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "softmax_blocks_backward", [&] {
    const scalar_t scale = static_cast<scalar_t>(any_scale);
    const int64_t most = whole<scalar_t>(largest_part(blocks)), width = whole<scalar_t>(channels);
    // the heads of a part are of one thread: they may share its bias, whose gradient is their sum
    at::parallel_for(0, blocks.size(0), 1, [&](int64_t begin, int64_t end) {
      std::vector<scalar_t> keys(channels * most), own(values * most), rows_of_keys(most * width);
      std::vector<scalar_t> dkeys(channels * most), down(values * most);
      std::vector<scalar_t> tile(kTileRows * most), dtile(kTileRows * most);
      std::vector<scalar_t> sums(kTileRows * width);
      for (int64_t b = begin; b < end; ++b) {
        const auto [start, size, first, stride] = parts_of(blocks)[b];
        const int64_t key_row = whole<scalar_t>(size);
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t table = bias.size(0) == 1 ? 0 : h * bias.size(1);
          const scalar_t* own_lse = lse.const_data_ptr<scalar_t>() + h * q.size(1) + start;
          const auto queries = tokens_of<scalar_t>(q, h, start);
          const auto grads = tokens_of<scalar_t>(grad, h, start);
          const auto results = tokens_of<scalar_t>(result, h, start);
          pack_transposed(tokens_of<scalar_t>(k, h, start), size, channels, keys.data(), key_row);
          pack_transposed(tokens_of<scalar_t>(v, h, start), size, values, own.data(), key_row);
          pack(tokens_of<scalar_t>(k, h, start), size, channels, rows_of_keys.data(), width);
          for (int64_t row = 0; row < size; row += kTileRows) {
            const int64_t rows = std::min(kTileRows, size - row);
            const auto q_rows = queries.below(row), g_rows = grads.below(row);
            product(q_rows, rows, keys.data(), key_row, channels, tile.data(), key_row, key_row);
            product(g_rows, rows, own.data(), key_row, values, dtile.data(), key_row, key_row);
            for (int64_t r = 0; r < rows; ++r) {
              const scalar_t along = dot(g_rows.below(r).data, results.below(row + r).data, values);
              const int64_t place = table + first + (row + r) * stride;
              scalar_t *logits = tile.data() + r * key_row, *drow = dtile.data() + r * key_row;
              add_bias(logits, bias.const_data_ptr<scalar_t>() + place, size, scale);
              weigh_backward(logits, drow, key_row, own_lse[row + r], along);
              if (of_bias) add(drow, size, dbias.data_ptr<scalar_t>() + place);
            }
            product<scalar_t>({dtile.data(), key_row, 1}, rows, rows_of_keys.data(), width, size,
                              sums.data(), width, width);
            for (int64_t r = 0; r < rows; ++r) {
              scalar_t* y = dq.data_ptr<scalar_t>() + h * dq.stride(0) +
                            (start + row + r) * dq.stride(1);
              for (int64_t c = 0; c < channels; ++c) y[c] = sums[r * width + c] * scale;
            }
            product<scalar_t>({q_rows.data, 1, q_rows.row}, channels, dtile.data(), key_row, rows,
                              dkeys.data(), key_row, key_row, row > 0);
            product<scalar_t>({g_rows.data, 1, g_rows.row}, values, tile.data(), key_row, rows,
                              down.data(), key_row, key_row, row > 0);
          }
          unpack_transposed(dkeys.data(), key_row, size, channels, scale, dk, h, start);
          unpack_transposed(down.data(), key_row, size, values, scalar_t(1), dv, h, start);
        }
      }
    });
  });
  return {dq, dk, dv, dbias};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(vit_rpe, m) {
  m.def(
      "softmax_blocks(Tensor q, Tensor k, Tensor v, Tensor bias, Tensor blocks, float scale)"
      " -> (Tensor, Tensor)");
  m.def(
      "softmax_blocks_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor bias,"
      " Tensor blocks, Tensor result, Tensor lse, float scale, bool of_bias)"
      " -> (Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(vit_rpe, CPU, m) {
  m.impl("softmax_blocks", TORCH_FN(forward));
  m.impl("softmax_blocks_backward", TORCH_FN(backward));
}
