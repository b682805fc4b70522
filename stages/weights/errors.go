package weights

import "errors"

// The folder.
var (
	// ErrNoWeights: neither model.safetensors nor its index is there.
	ErrNoWeights = errors.New("no weights found")
	// ErrIndex: the index is not the JSON it should be.
	ErrIndex = errors.New("bad shard index")
	// ErrShardName: the index names a file that is not a plain name in the folder.
	ErrShardName = errors.New("impossible shard name")
	// ErrShardMissing: the index names a file that is not there.
	ErrShardMissing = errors.New("shard missing")
	// ErrShardStray: a weight file is there that the index does not name.
	ErrShardStray = errors.New("weight file not in the index")
)

// The tensors of several files together.
var (
	// ErrDuplicate: a tensor is in two shards.
	ErrDuplicate = errors.New("tensor in two shards")
	// ErrTensorMissing: the index lists a tensor that its shard does not have.
	ErrTensorMissing = errors.New("tensor missing from its shard")
	// ErrTensorStray: a shard has a tensor that the index does not list there.
	ErrTensorStray = errors.New("tensor not in the index")
)
