// Package bucket stores immutable objects in S3-compatible object storage.
//
// Everything of a store is below one prefix of one bucket. Keys are relative to this prefix. Packhorse writes each key
// once and never changes it, so no part of this package overwrites an object on purpose.
//
// The safety of the store depends on one promise of the object storage: of all creates of one key, exactly one
// succeeds (see Create). Not all implementations keep it. Probe checks this promise and the others that Packhorse
// needs.
package bucket

import (
	"context"
	"io"
	"time"
)

// Bucket is the object storage of one store. Its methods are safe for concurrent use.
//
// Errors have a kind of package fault, and their text names the operation, the key, the problem and what to do about
// it. ErrExists, ErrNotFound and ErrDenied are tested with errors.Is. Other errors are Unavailable, with a retry hint,
// or Corrupt. The message for clients (fault.Message) names neither bucket nor key.
type Bucket interface {
	// Create stores a small object if its key does not exist. It makes one attempt.
	//
	// ErrExists means that the storage refused the condition, so this attempt stored nothing. After any other error,
	// the outcome is unclear: the object may be there already, appear later, or never appear. Callers read the key
	// to find out.
	Create(ctx context.Context, key string, body []byte) error

	// Get returns a small object. An object of more than limit bytes is an error of kind Corrupt. Get verifies that
	// all bytes arrived, and repeats a read that was cut.
	Get(ctx context.Context, key string, limit int64) ([]byte, Info, error)

	// Open returns length bytes of an object from offset on. A negative length means the rest of the object. The
	// caller closes the reader. A transfer that is cut ends with an error other than io.EOF. Callers verify
	// checksums.
	Open(ctx context.Context, key string, offset, length int64) (io.ReadCloser, Info, error)

	// Put stores a file of size bytes with this SHA-256. It retries, and uploads large files in parts. The storage
	// verifies checksums of what it receives. Keys of files are unique, so it makes no difference if an attempt
	// that was given up stores the object once more.
	Put(ctx context.Context, key string, body io.ReaderAt, size int64, sha256 [32]byte) error

	// Copy stores an object of size bytes under another key. The storage itself copies it, a large one in parts. Retries
	// and repeated attempts are those of Put.
	Copy(ctx context.Context, from, to string, size int64) error

	// List returns up to limit objects whose keys begin with prefix and are greater than after, in ascending order
	// of the bytes of their keys. An empty after means from the beginning. Fewer than limit objects mean that no
	// more exist.
	List(ctx context.Context, prefix, after string, limit int) ([]Info, error)

	// Delete removes objects. Keys that do not exist are not an error. After an error, some may be removed.
	Delete(ctx context.Context, keys ...string) error
}

// Info describes an object.
type Info struct {
	Key      string
	Size     int64     // of the whole object, in bytes
	Modified time.Time // by the clock of the storage
}

// Version is a version of an object, or a mark of its deletion, in a bucket that keeps old ones.
type Version struct {
	Key, ID            string
	IsLatest, IsMarker bool
}

// Versioned is implemented by a Bucket that may keep old versions. Errors are those of Bucket.
type Versioned interface {
	// Versions returns all versions of objects whose keys begin with prefix. A bucket without versions has one of each.
	Versions(ctx context.Context, prefix string) ([]Version, error)
	// OpenVersion is Open for a whole version.
	OpenVersion(ctx context.Context, v Version) (io.ReadCloser, error)
	// DeleteVersion removes a version.
	DeleteVersion(ctx context.Context, v Version) error
}

// Each calls f with all objects below a prefix, in the order of their keys.
func Each(ctx context.Context, b Bucket, prefix string, f func(Info) error) error {
	const page = 1000
	for after := ""; ; {
		list, err := b.List(ctx, prefix, after, page)
		if err != nil {
			return err
		}
		for _, info := range list {
			if err := f(info); err != nil {
				return err
			}
			after = info.Key
		}
		if len(list) < page {
			return nil
		}
	}
}
