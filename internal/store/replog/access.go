package replog

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

// Access is a record of the log of tokens and rules, which all gateways of a store share. Its change is JSON whose form
// only they know.
type Access struct {
	Number     uint64
	Txn        string
	Parent     string
	At         time.Time
	Node       string
	Change     json.RawMessage
	Checkpoint string // key of the content up to a record, below the log's prefix; empty: there is none yet
	Covers     uint64 // number of the last record in the checkpoint

	Unknown map[string][]byte // see Record.Unknown
}

// AccessPrefix is the prefix of the keys of the log of tokens and rules, and of its checkpoints.
const AccessPrefix = "access/"

// AccessLog is the log of tokens and rules.
type AccessLog = Series[*Access]

// OpenAccess returns the log of tokens and rules, without I/O.
func OpenAccess(b bucket.Bucket) *AccessLog {
	return &AccessLog{bucket: b, prefix: AccessPrefix + "log/", decode: decodeAccess}
}

// Next returns the record with the next change. The receiver may be nil, for an empty log.
func (r *Access) Next(change []byte, node string, now time.Time) *Access {
	next := &Access{Number: 1, Txn: NewID(), Node: node, At: now, Change: change}
	if r != nil {
		next.Number, next.Parent, next.Unknown = r.Number+1, r.Txn, r.Unknown
		next.Checkpoint, next.Covers = r.Checkpoint, r.Covers
	}
	return next
}

func (r *Access) position() (number uint64, txn, parent string) { return r.Number, r.Txn, r.Parent }

func (r *Access) validate() error {
	if err := validatePosition(r.Number, r.Txn, r.Parent); err != nil {
		return err
	}
	if len(r.Change) == 0 || (r.Checkpoint == "") != (r.Covers == 0) || r.Covers >= r.Number {
		return errors.New("no change, or an impossible checkpoint")
	}
	return nil
}

func (r *Access) fields(version *int64, kind *git.Text) map[string]any {
	return map[string]any{"format": version, "n": &r.Number, "txn": &r.Txn, "parent": &r.Parent, "kind": kind,
		"at": (*stamp)(&r.At), "node": (*git.Text)(&r.Node), "change": &r.Change, "checkpoint": &r.Checkpoint,
		"covers": &r.Covers}
}

// Encode returns the record as canonical JSON.
func (r *Access) Encode() ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("access log: record %d: %w", r.Number, err)
	}
	version, kind := int64(format), git.Text("access")
	return encodeFields(r.fields(&version, &kind), r.Unknown)
}

func decodeAccess(body []byte) (*Access, error) {
	r := &Access{}
	var version int64
	var kind git.Text
	var err error
	if r.Unknown, err = decodeFields(body, r.fields(&version, &kind)); err != nil {
		return nil, err
	}
	return r, r.validate()
}
