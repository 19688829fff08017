package store

import (
	"bytes"
	"context"
	"crypto/sha256"

	"github.com/packhorse-git/packhorse/internal/bucket"
	"github.com/packhorse-git/packhorse/internal/replog"
)

// Promote makes the copy of a store a store of its own: it gets another ID, so nodes of the former store refuse it. It
// returns the new identity. Run Check first: a copy that was made while nodes worked may lack objects.
func Promote(ctx context.Context, b bucket.Bucket) (Identity, error) {
	id, err := ReadIdentity(ctx, b)
	if err != nil {
		return Identity{}, err
	}
	id.ID = replog.NewID()
	text := id.encode()
	return id, b.Put(ctx, IdentityKey, bytes.NewReader(text), int64(len(text)), sha256.Sum256(text))
}
