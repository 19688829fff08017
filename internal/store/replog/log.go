package replog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

// ErrBrokenPromise reports that the store broke a promise on which the log depends. Its kind is fault.Corrupt.
var ErrBrokenPromise = errors.New("the object store broke its promise to create each object once and to keep it: " +
	"stop all writers, and compare the records with a copy of the bucket")

// ErrNewer reports that only a newer version can read a record. Its kind is fault.Unavailable.
var ErrNewer = errors.New("newer format")

// entry is what the records of all logs have in common.
type entry interface {
	position() (number uint64, txn, parent string)
	Encode() ([]byte, error)
}

// Series is a log of records of one type. It keeps no state, and is safe for concurrent use.
type Series[R entry] struct {
	bucket bucket.Bucket
	prefix string // of all keys; ends with a slash
	decode func([]byte) (R, error)
}

// Log is the log of a repository.
type Log = Series[*Record]

// NameLog is the log of a name.
type NameLog = Series[*Name]

// Open returns the log of a repository, without I/O.
func Open(b bucket.Bucket, id string) *Log {
	return &Log{bucket: b, prefix: "repos/" + id + "/log/", decode: Decode}
}

// maxNumber is the end of the numbers: keys count down from it.
const maxNumber = 1 << 62

// Down returns the last part of the key of record n.
func Down(n uint64) string { return fmt.Sprintf("%016x", uint64(maxNumber)-n) }

// ParseDown is the inverse of Down.
func ParseDown(s string) (n uint64, ok bool) {
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil || v >= maxNumber || v == 0 {
		return 0, false
	}
	n = maxNumber - v
	return n, Down(n) == s
}

// Key returns the key of record n.
func (l *Series[R]) Key(n uint64) string { return l.prefix + Down(n) }

// Get reads record n. The error is fault.NotFound if it does not exist yet: then a record below n was the head at a
// moment during the call.
func (l *Series[R]) Get(ctx context.Context, n uint64) (R, error) {
	var none R
	key := l.Key(n)
	body, _, err := l.bucket.Get(ctx, key, MaxRecord)
	if errors.Is(err, bucket.ErrNotFound) {
		return none, fault.Wrap(fault.NotFound, "no such record", err)
	}
	if err != nil {
		return none, err
	}
	r, err := l.decode(body)
	if fault.Is(err, fault.Unavailable) {
		return none, fmt.Errorf("%s: %w", key, err)
	}
	if err == nil {
		if number, _, _ := r.position(); number != n {
			err = fmt.Errorf("its number is %d, want %d", number, n)
		}
	}
	if err != nil {
		return none, fault.Wrap(fault.Corrupt, "a record of the repository is damaged",
			fmt.Errorf("object %s: %w; restore it from a version or a copy of the bucket", key, err))
	}
	return r, nil
}

// Next reads the record after r and checks that it follows r. The error is fault.NotFound if r is the head, and
// ErrBrokenPromise if the record does not follow.
func (l *Series[R]) Next(ctx context.Context, r R) (R, error) {
	var none R
	number, txn, _ := r.position()
	next, err := l.Get(ctx, number+1)
	if err != nil {
		return none, err
	}
	if _, _, parent := next.position(); parent != txn {
		return none, l.broken(number+1, parent, txn)
	}
	return next, nil
}

// Confirm checks that the store still has r, which was read or appended before. The error is ErrBrokenPromise if the
// record does not exist, or is another one: the store may be in an earlier state, from a backup.
func (l *Series[R]) Confirm(ctx context.Context, r R) error {
	number, txn, _ := r.position()
	stored, err := l.Get(ctx, number)
	problem := "it does not exist any more"
	switch {
	case err == nil:
		_, storedTxn, _ := stored.position()
		if storedTxn == txn {
			return nil
		}
		problem = fmt.Sprintf("its txn is %q, and it was %q before", storedTxn, txn)
	case !fault.Is(err, fault.NotFound):
		return err
	}
	return fault.Wrap(fault.Corrupt, "the repository is read-only: its log in the object store is older than it was",
		fmt.Errorf("object %s: %s: %w; if the bucket was restored from a backup, run packhorse store promote and start "+
			"each node with an empty root", l.Key(number), problem, ErrBrokenPromise))
}

func (l *Series[R]) broken(number uint64, parent, want string) error {
	return fault.Wrap(fault.Corrupt, "the repository is read-only: its log in the object store is damaged",
		fmt.Errorf("object %s: parent is %q, want %q: %w", l.Key(number), parent, want, ErrBrokenPromise))
}

// maxSteps is the number of records that Latest reads one by one before it looks for the head in a listing.
const maxSteps = 4

// Latest is a freshness check: it returns the head, where r is a record that is known already. It returns r itself if
// there is no later record, for the price of one GET.
func (l *Series[R]) Latest(ctx context.Context, r R) (R, error) {
	for steps := 1; ; steps++ {
		next, err := l.Next(ctx, r)
		switch {
		case fault.Is(err, fault.NotFound):
			return r, nil
		case err != nil:
			var none R
			return none, err
		}
		r = next
		if steps%maxSteps != 0 {
			continue
		}
		if r, err = l.skip(ctx, r); err != nil {
			return r, err
		}
	}
}

// Head returns the head. The error is fault.NotFound if the log is empty. The listing only finds a record to begin
// with: some stores list late.
func (l *Series[R]) Head(ctx context.Context) (R, error) {
	var none R
	r, err := l.skip(ctx, none)
	if err != nil {
		return none, err
	}
	return l.Latest(ctx, r)
}

// skip returns the newest record that a listing shows, or r if it is not older. The zero R is older than all.
func (l *Series[R]) skip(ctx context.Context, r R) (R, error) {
	var none R
	known := uint64(0)
	if any(r) != any(none) {
		known, _, _ = r.position()
	}
	list, err := l.bucket.List(ctx, l.prefix, "", 1)
	if err != nil {
		return none, err
	}
	number := uint64(1)
	if len(list) > 0 {
		var ok bool
		if number, ok = ParseDown(strings.TrimPrefix(list[0].Key, l.prefix)); !ok {
			return none, fault.Wrap(fault.Corrupt, "the repository's log contains an object of another program",
				fmt.Errorf("object %s: not the key of a record: remove it", list[0].Key))
		}
	}
	if number <= known {
		return r, nil
	}
	return l.Get(ctx, number)
}
