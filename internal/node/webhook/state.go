package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// States keeps small texts: how far each target is, and targets that were added by calls. A name has no slash. It is
// safe for concurrent use.
type States interface {
	Load(ctx context.Context, name string) ([]byte, error) // nil: there is none
	Save(ctx context.Context, name string, text []byte) error
	Remove(ctx context.Context, names ...string) error
	List(ctx context.Context) ([]string, error)
	// IsShared reports whether other processes have the same States. Then one of them delivers to a target.
	IsShared() bool
}

// Directory has States in files.
type Directory string

func (d Directory) path(name string) string { return filepath.Join(string(d), name) }

// Load implements States.
func (d Directory) Load(_ context.Context, name string) ([]byte, error) {
	text, err := os.ReadFile(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// Save implements States.
func (d Directory) Save(_ context.Context, name string, text []byte) error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return err
	}
	return disk.ReplaceFile(d.path(name), text)
}

// Remove implements States.
func (d Directory) Remove(_ context.Context, names ...string) error {
	for _, name := range names {
		if err := os.Remove(d.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// List implements States.
func (d Directory) List(context.Context) (names []string, err error) {
	entries, err := os.ReadDir(string(d))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return names, err
}

// IsShared implements States.
func (d Directory) IsShared() bool { return false }

// InBucket has States in a bucket, below webhooks/.
type InBucket struct{ bucket.Bucket }

const statesPrefix = "webhooks/"

// Load implements States.
func (b InBucket) Load(ctx context.Context, name string) ([]byte, error) {
	text, _, err := b.Get(ctx, statesPrefix+name, maxState)
	if errors.Is(err, bucket.ErrNotFound) {
		return nil, nil
	}
	return text, err
}

// Save implements States.
func (b InBucket) Save(ctx context.Context, name string, text []byte) error {
	return b.Put(ctx, statesPrefix+name, strings.NewReader(string(text)), int64(len(text)), sha256.Sum256(text))
}

// Remove implements States.
func (b InBucket) Remove(ctx context.Context, names ...string) error {
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = statesPrefix + name
	}
	return b.Delete(ctx, keys...)
}

// List implements States.
func (b InBucket) List(ctx context.Context) (names []string, err error) {
	err = bucket.Each(ctx, b.Bucket, statesPrefix, func(info bucket.Info) error {
		names = append(names, strings.TrimPrefix(info.Key, statesPrefix))
		return nil
	})
	return names, err
}

// IsShared implements States.
func (b InBucket) IsShared() bool { return true }

const maxState = 16 << 20 // bytes

// state is how far a target is.
type state struct {
	Session  string                         `json:"session,omitempty"` // of the process that delivers; "": none does
	Saved    time.Time                      `json:"saved"`             // for people, and to show that the session works
	Position string                         `json:"position"`          // the events before it are settled
	Done     []string                       `json:"done,omitempty"`    // IDs of settled events after it
	Recent   []*packhorsev1.WebhookDelivery `json:"recent,omitempty"`  // the latest ones, oldest first
}

func parseState(text []byte) (s state, err error) {
	if text != nil {
		err = json.Unmarshal(text, &s)
	}
	return s, err
}
