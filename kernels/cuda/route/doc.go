// Package route has the kernels that choose experts: router logits, top-k, and the
// sorting of assignments into tiles of one expert for the grouped products.
package route
