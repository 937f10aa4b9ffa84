// A mask on a grid as its operators read it, the tiles of a call, and how they are dealt out.
//
// Shapes: T tables, S samples that share a table, L tokens (p prefix tokens, then n slices of P
// cells). A tile is some rows by some keys of one item's matrix and stays in a core's cache.

#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>

namespace vit_rpe {

using at::Tensor;

constexpr int64_t kRows = 256, kKeys = 512;  // of the largest tile: half a megabyte in float32

inline int64_t quotient(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The size of equal blocks of a length, at most `most` long: no thin one is left at the end.
inline int64_t even_block(int64_t length, int64_t most) {
  return quotient(length, quotient(length, most));
}

// Neighbors in a row of the mask: their first key, and where their weights begin, in the table or
// in the border. `step` is 0 where they all have one weight.
struct Piece {
  int64_t key, count, weight, step;
  bool border;
};

// Where the weights of a mask are: in the table with all axes but the first written out, so that a
// row is a window of it, and in row, column and corner of the border (`border_weights` in Python).
struct Layout {
  int64_t prefix, slices, cells;

  std::array<Piece, 2> pieces(int64_t query, int64_t first, int64_t last) const {
    const int64_t p = prefix, split = std::clamp(p, first, last);
    const int64_t near = split - first, far = last - split;
    if (query < p) {
      const int64_t corner = 2 * p + query * p;
      return {Piece{first, near, corner + first, 1, true}, Piece{split, far, query, 0, true}};
    }
    const int64_t slice = (query - p) / cells, cell = (query - p) % cells;
    const int64_t line = (cells - 1 - cell) * (2 * slices - 1) * cells;
    const int64_t window = line + (slices - 1 - slice) * cells;
    return {Piece{first, near, p + first, 1, true}, Piece{split, far, window + split - p, 1, false}};
  }
};

// The weights of one table's mask, or their gradients.
template <typename scalar>
struct Weights {
  scalar *table, *border;

  scalar* at(const Piece& piece) const { return (piece.border ? border : table) + piece.weight; }
};

template <typename scalar>
Weights<scalar> weights_of(const Tensor& table, const Tensor& border) {
  return {table.data_ptr<scalar>(), border.data_ptr<scalar>()};
}

struct Tile {
  int64_t row, rows, key, keys;
};

// The same numbers, those of a row next to each other.
inline Tensor row_contiguous(const Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

// How a backward pass deals out the rows of all items: a table's samples and rows are cut into parts,
// each of which adds to its own gradients of the table and, where samples are cut, of k and v. There
// are parts enough for all cores, and they depend only on their number.
struct Parts {
  int64_t samples, length, block, row_blocks, of_samples, of_rows;

  Parts(int64_t tables, int64_t samples, int64_t length, int64_t block, int64_t threads)
      : samples(samples), length(length), block(block), row_blocks(quotient(length, block)) {
    const int64_t wanted = quotient(threads, std::max<int64_t>(tables, 1));
    of_samples = std::max<int64_t>(std::min(wanted, samples), 1);  // or an empty batch
    of_rows = std::min(quotient(wanted, of_samples), row_blocks);
  }

  int64_t count() const { return of_samples * of_rows; }

  // Calls visit(sample, row, rows) for the blocks of rows of a part, one sample after the other.
  template <typename Visit>
  void each(int64_t part, const Visit& visit) const {
    const int64_t sp = part / of_rows, rp = part % of_rows;
    for (int64_t s = sp * samples / of_samples; s < (sp + 1) * samples / of_samples; ++s) {
      for (int64_t b = rp * row_blocks / of_rows; b < (rp + 1) * row_blocks / of_rows; ++b) {
        visit(s, b * block, std::min(block, length - b * block));
      }
    }
  }
};

// The sum over parts.
inline Tensor all_parts(const Tensor& x) { return x.size(0) == 1 ? x[0] : x.sum(0); }

}  // namespace vit_rpe
