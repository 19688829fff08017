package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

const (
	// IdentityKey is the key of the object that makes a prefix of a bucket a store.
	IdentityKey = "packhorse.json"

	// Format is the format of a store, as this version writes it.
	Format = 1

	maxIdentity     = 1 << 20 // bytes of the object
	probePrefix     = "probe/"
	identityOfCache = "store.json" // in cacheDir
	lockOfCache     = "store.lock" // the same
	cacheDir        = ".packhorse" // in the root of a local cache
)

// Identity is the content of IdentityKey.
type Identity struct {
	Format int      `json:"format"`
	ID     string   `json:"id"`    // random; a copy of a store has the same one until it is promoted
	Needs  []string `json:"needs"` // features that a program must know to use the store
}

// Init makes an empty prefix of a bucket a store. The error is Exists if it is one already, and Invalid if there are
// objects of another program.
func Init(ctx context.Context, b bucket.Bucket) (Identity, error) {
	switch id, err := ReadIdentity(ctx, b); {
	case err == nil:
		return id, fault.New(fault.Exists, "there is a store already: %s has ID %s", IdentityKey, id.ID)
	case !fault.Is(err, fault.NotFound):
		return Identity{}, err
	}
	if err := checkEmpty(ctx, b); err != nil {
		return Identity{}, err
	}
	id := Identity{Format: Format, ID: replog.NewID(), Needs: []string{}}
	err := b.Create(ctx, IdentityKey, id.encode())
	if err == nil {
		return id, nil
	}
	// After an unclear answer, and after another program's success, the object itself decides.
	stored, readErr := ReadIdentity(ctx, b)
	switch {
	case readErr != nil:
		return Identity{}, fmt.Errorf("create %s: %w", IdentityKey, err)
	case stored.ID != id.ID:
		return stored, fault.New(fault.Exists, "another program has just made a store here: %s has ID %s", IdentityKey,
			stored.ID)
	}
	return id, nil
}

// checkEmpty returns an error that names the first object below the prefix. Leftovers of a probe do not count.
func checkEmpty(ctx context.Context, b bucket.Bucket) error {
	for after := ""; ; {
		objects, err := b.List(ctx, "", after, 100)
		if err != nil {
			return err
		}
		for _, o := range objects {
			after = o.Key
			if strings.HasPrefix(o.Key, probePrefix) {
				continue
			}
			if strings.HasPrefix(o.Key, "names/") || strings.HasPrefix(o.Key, reposPrefix) ||
				strings.HasPrefix(o.Key, replog.AccessPrefix) ||
				strings.HasPrefix(o.Key, gcPrefix) || strings.HasPrefix(o.Key, purgesPrefix) ||
				strings.HasPrefix(o.Key, nodesPrefix) || strings.HasPrefix(o.Key, expiryPrefix) ||
				strings.HasPrefix(o.Key, eventsPrefix) || strings.HasPrefix(o.Key, "outbox/") {
				return fault.New(fault.Invalid, "%s is here, but %s is not: this was a store; restore %s from a version or a "+
					"copy of the bucket, or use another prefix", o.Key, IdentityKey, IdentityKey)
			}
			return fault.New(fault.Invalid, "%s is not an object of a store: use an empty bucket or another prefix, such as "+
				"s3://BUCKET/packhorse", o.Key)
		}
		if len(objects) == 0 {
			return nil
		}
	}
}

// ReadIdentity reads and checks the identity of a store. The error is NotFound without a store, Invalid if this
// version cannot use the store, and Corrupt if the object is damaged.
func ReadIdentity(ctx context.Context, b bucket.Bucket) (Identity, error) {
	body, _, err := b.Get(ctx, IdentityKey, maxIdentity)
	if errors.Is(err, bucket.ErrNotFound) {
		return Identity{}, &fault.Error{Kind: fault.NotFound, Err: err,
			Msg: "there is no store: " + IdentityKey + " does not exist; check the URL, or run packhorse store init"}
	}
	if err != nil {
		return Identity{}, err
	}
	return parseIdentity(body, IdentityKey)
}

// parseIdentity parses an Identity. name is that of its file or object, for errors.
func parseIdentity(text []byte, name string) (Identity, error) {
	var id Identity
	err := json.Unmarshal(text, &id)
	switch {
	case err != nil || id.Format < 1 || id.ID == "":
		return Identity{}, &fault.Error{Kind: fault.Corrupt, Err: err,
			Msg: name + " is not the identity of a store: restore it from a version or a copy of the bucket"}
	case id.Format > Format:
		return Identity{}, fault.New(fault.Invalid, "%s has format %d, and this version knows formats up to %d: use a newer "+
			"version of packhorse", name, id.Format, Format)
	case len(id.Needs) > 0:
		return Identity{}, fault.New(fault.Invalid, "%s needs %q, which this version does not know: use a newer version of "+
			"packhorse", name, id.Needs[0])
	}
	return id, nil
}

func (id Identity) encode() []byte {
	text, err := json.Marshal(id)
	if err != nil {
		panic(err) // a bug: the fields are plain values
	}
	return append(text, '\n')
}

// cacheIdentity is the identity of a local cache: the store that it belongs to.
type cacheIdentity struct {
	Format int    `json:"format"`
	ID     string `json:"id"`
	URL    string `json:"url"`
}

// IsCache reports whether a directory is the local cache of a store. Such a directory must not be served as
// repositories.
func IsCache(root string) (bool, error) {
	_, err := os.Lstat(filepath.Join(root, cacheDir, identityOfCache))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// CacheURL returns the URL of the store to which a local cache belongs. The error is fault.NotFound if the directory is
// not a local cache.
func CacheURL(root string) (string, error) {
	cache, err := readCache(root)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fault.New(fault.NotFound, "%s is not the root of a node with a store", root)
	}
	return cache.URL, err
}

// lockCache locks the local cache for this process, until unlockCache is called or the process ends. Two processes on
// one root would remove each other's files.
func lockCache(root string) (*os.File, error) {
	dir := filepath.Join(root, cacheDir)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("create the local cache: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockOfCache), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the local cache: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fault.New(fault.Invalid, "the root %s is in use by another process: stop that process, or give this one "+
			"another root", root)
	} else if err != nil {
		err = fmt.Errorf("lock the local cache: %s: %w", f.Name(), err)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// unlockCache unlocks the local cache. The lock ends before the file is closed, because a child process can have a copy
// of the descriptor until it runs its program.
func unlockCache(f *os.File) error {
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
}

// readCache reads the identity of a local cache. The error is fs.ErrNotExist for a root without a cache.
func readCache(root string) (cacheIdentity, error) {
	var cache cacheIdentity
	path := filepath.Join(root, cacheDir, identityOfCache)
	text, err := os.ReadFile(path)
	if err != nil {
		return cache, fmt.Errorf("read the identity of the local cache: %w", err)
	}
	err = json.Unmarshal(text, &cache)
	if err == nil && cache.Format > Format {
		return cache, fault.New(fault.Invalid, "%s has format %d, and this version knows formats up to %d: use a newer "+
			"version of packhorse, or remove the content of %s, which has copies only", path, cache.Format, Format, root)
	}
	if err != nil || cache.ID == "" || cache.Format < 1 {
		return cache, fault.New(fault.Corrupt, "%s is damaged: remove the content of %s, or use another root", path, root)
	}
	return cache, nil
}

// claimCache makes an empty directory the local cache of a store, and refuses the cache of another one. Nothing in the
// directory is read or removed before that.
func claimCache(root, url string, store Identity) error {
	path := filepath.Join(root, cacheDir, identityOfCache)
	cache, err := readCache(root)
	if errors.Is(err, fs.ErrNotExist) {
		return createCache(root, path, cacheIdentity{Format: Format, ID: store.ID, URL: url})
	}
	if err != nil {
		return err
	}
	switch {
	case cache.ID == store.ID && cache.URL == url:
		return nil
	case cache.ID == store.ID:
		return fault.New(fault.Invalid, "%s and %s are two stores with the ID %s. Run packhorse store promote on the copy, "+
			"so that nodes cannot confuse them. If the store has moved, change url in %s", cache.URL, url, store.ID, path)
	}
	return fault.New(fault.Invalid, "%s is the cache of another store (%s, ID %s; this one has ID %s): use another root, "+
		"or remove its content", root, cache.URL, cache.ID, store.ID)
}

// createCache writes the identity of a new cache into an empty directory.
func createCache(root, path string, cache cacheIdentity) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return fmt.Errorf("create the local cache: %w", err)
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return fmt.Errorf("read the root of the local cache: %w", err)
	}
	for _, e := range entries {
		if e.Name() != cacheDir && e.Name() != "lost+found" {
			return fault.New(fault.Invalid, "%s contains %s, but the root of a store's cache must be empty at first: use "+
				"another root. packhorse store import moves repositories into a store", root, e.Name())
		}
	}
	text, err := json.Marshal(cache)
	if err != nil {
		return err
	}
	return disk.ReplaceFile(path, append(text, '\n'))
}
