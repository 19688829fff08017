package node

import "context"

// AccessLog is the log of tokens and rules that all gateways of a store share. It does not know their form. It is safe
// for concurrent use.
type AccessLog interface {
	// ReadAccess returns what follows a record; 0: everything.
	ReadAccess(ctx context.Context, after uint64) (AccessRecords, error)
	// AppendAccess appends a change as the record after head, durably. checkpoint is the whole content up to head, or nil
	// if the last checkpoint is recent. It reports false if there is another record after head. After an error the change
	// may be in the log.
	AppendAccess(ctx context.Context, head uint64, change, checkpoint []byte) (bool, error)
}

// AccessRecords are records of an AccessLog.
type AccessRecords struct {
	Checkpoint []byte   // nil: the changes follow the requested record
	At         uint64   // with Checkpoint: the last record in it
	Changes    [][]byte // the records after that
}

// CheckpointEvery is the number of records between two checkpoints of an AccessLog.
const CheckpointEvery = 64
