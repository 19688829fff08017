// Package locks keeps the file locks of repositories.
//
// A lock is a small file whose name is a hash of the locked path, so a path has at most one lock. The ID of a lock
// begins with that name, so the file is found without a search. It ends with random digits, so the ID of an earlier
// lock does not match a later one. Files are durable before a request succeeds.
package locks

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

const (
	// MaxLocks is the maximum number of locks of a repository.
	MaxLocks = 10_000
	// MaxPage is the maximum number of locks in an answer.
	MaxPage = 1000
	// maxPageBytes is the maximum length of their paths in bytes together, because messages between nodes have a limit.
	maxPageBytes = 1 << 20
	// maxPath is the maximum length of a path in bytes.
	maxPath = 4096

	nameDigits   = 32 // of the hash of the path
	randomDigits = 16
)

// Files has the lock files of one repository.
type Files interface {
	// Create creates a file durably. The error is Exists if there is one with the name.
	Create(ctx context.Context, name string, content []byte) error
	// Read returns the content of a file. The error is NotFound if it does not exist.
	Read(ctx context.Context, name string) ([]byte, error)
	// Remove removes a file durably.
	Remove(ctx context.Context, name string) error
	// Names lists the files in any order, also some that are not locks.
	Names(ctx context.Context) ([]string, error)
}

// Server answers requests about locks. It is safe for concurrent use. The zero value is ready.
type Server struct {
	// changing are held while a lock is made or removed, by its name. No other lock of the path may take its place
	// between the check of its owner and its removal.
	changing [64]sync.Mutex
}

// file is the content of a lock file.
type file struct {
	ID    string    `json:"id"`
	Path  string    `json:"path"`
	Owner string    `json:"owner"`
	Time  time.Time `json:"time"`
}

// Do answers a request about the locks in files. Errors: those of lfs.LockAction, Invalid for a path, cursor or ID that
// cannot be one, Full if the repository has MaxLocks locks, Corrupt for a damaged lock file.
func (s *Server) Do(ctx context.Context, files Files, q lfs.LockRequest) (lfs.LockAnswer, error) {
	switch q.Action {
	case lfs.CreateLock:
		return s.create(ctx, files, q)
	case lfs.Unlock:
		return s.unlock(ctx, files, q)
	default:
		return list(ctx, files, q)
	}
}

func (s *Server) create(ctx context.Context, files Files, q lfs.LockRequest) (answer lfs.LockAnswer, err error) {
	switch {
	case q.Path == "" || len(q.Path) > maxPath || !utf8.ValidString(q.Path) || strings.ContainsAny(q.Path, "\x00\n"):
		return answer, fault.New(fault.Invalid, "%.80q cannot be locked: it is not the path of a file", q.Path)
	case q.Caller == "":
		return answer, fault.New(fault.Denied, "a lock needs an owner: sign in")
	}
	name := nameOf(q.Path)
	defer s.lock(name)()
	f, err := read(ctx, files, name)
	if err == nil {
		answer.Locks = []lfs.Lock{f.lock(q.Caller)}
		return answer, fault.New(fault.Exists, "%s is locked by %s", f.Path, f.Owner)
	}
	if !fault.Is(err, fault.NotFound) {
		return answer, err
	}
	names, err := files.Names(ctx)
	if err != nil {
		return answer, err
	}
	if len(names) >= MaxLocks {
		return answer, fault.New(fault.Full, "the repository has %d locks, which is the maximum: unlock some",
			len(names))
	}
	f = &file{ID: name + randomHex(), Path: q.Path, Owner: q.Caller, Time: time.Now().UTC().Truncate(time.Second)}
	content, err := json.Marshal(f)
	if err == nil {
		err = files.Create(ctx, name, append(content, '\n'))
	}
	if fault.Is(err, fault.Exists) { // another node was faster
		if other, err := read(ctx, files, name); err == nil {
			answer.Locks = []lfs.Lock{other.lock(q.Caller)}
		}
		return answer, err
	}
	if err != nil {
		return answer, err
	}
	answer.Locks = []lfs.Lock{f.lock(q.Caller)}
	return answer, nil
}

func (s *Server) unlock(ctx context.Context, files Files, q lfs.LockRequest) (answer lfs.LockAnswer, err error) {
	name, err := nameIn(q.ID)
	if err != nil {
		return answer, err
	}
	defer s.lock(name)()
	f, err := read(ctx, files, name)
	if err != nil {
		return answer, err
	}
	if f.ID != q.ID {
		return answer, errUnknown(q.ID)
	}
	if f.Owner != q.Caller && !q.Force {
		return answer, fault.New(fault.Denied, "the lock of %s belongs to %s: ask them, or use force", f.Path, f.Owner)
	}
	if err := files.Remove(ctx, name); err != nil {
		return answer, err
	}
	answer.Locks = []lfs.Lock{f.lock(q.Caller)}
	return answer, nil
}

// list reads one lock if the request has its path or its ID, otherwise all.
func list(ctx context.Context, files Files, q lfs.LockRequest) (answer lfs.LockAnswer, err error) {
	after, err := base64.RawURLEncoding.DecodeString(q.Cursor)
	if err != nil {
		return answer, fault.New(fault.Invalid, "%.80q is not a cursor of a list of locks", q.Cursor)
	}
	var names []string
	switch {
	case q.Path != "":
		names = []string{nameOf(q.Path)}
	case q.ID != "":
		name, err := nameIn(q.ID)
		if err != nil {
			return answer, nil
		}
		names = []string{name}
	default:
		if names, err = files.Names(ctx); err != nil {
			return answer, err
		}
	}
	for _, name := range names {
		if !isName(name) {
			continue
		}
		f, err := read(ctx, files, name)
		if fault.Is(err, fault.NotFound) { // unlocked meanwhile
			continue
		}
		if err != nil {
			return answer, err
		}
		if (q.ID == "" || f.ID == q.ID) && f.Path > string(after) {
			answer.Locks = append(answer.Locks, f.lock(q.Caller))
		}
	}
	slices.SortFunc(answer.Locks, func(a, b lfs.Lock) int { return strings.Compare(a.Path, b.Path) })
	if n := pageLength(answer.Locks, q.Limit); n < len(answer.Locks) {
		answer.Locks = answer.Locks[:n]
		answer.Next = base64.RawURLEncoding.EncodeToString([]byte(answer.Locks[n-1].Path))
	}
	return answer, nil
}

// pageLength returns how many of the locks one answer has, if the caller wants at most limit; 0 means MaxPage.
func pageLength(found []lfs.Lock, limit int) int {
	limit = min(cmp.Or(max(limit, 0), MaxPage), MaxPage, len(found))
	size := 0
	for i := range limit {
		if size += len(found[i].Path); size > maxPageBytes {
			return i
		}
	}
	return limit
}

// lock locks a name until unlock is called.
func (s *Server) lock(name string) (unlock func()) {
	mu := &s.changing[(name[0]*16+name[1])%byte(len(s.changing))]
	mu.Lock()
	return mu.Unlock
}

// read reads a lock file. The error is NotFound if there is none.
func read(ctx context.Context, files Files, name string) (*file, error) {
	content, err := files.Read(ctx, name)
	if fault.Is(err, fault.NotFound) {
		return nil, errUnknown(name)
	}
	if err != nil {
		return nil, err
	}
	f := new(file)
	if err := json.Unmarshal(content, f); err != nil || nameOf(f.Path) != name || !strings.HasPrefix(f.ID, name) {
		return nil, fault.New(fault.Corrupt, "the lock file %s of the repository is damaged: an operator has to remove it",
			name)
	}
	return f, nil
}

func (f *file) lock(caller string) lfs.Lock {
	return lfs.Lock{ID: f.ID, Path: f.Path, Owner: f.Owner, Time: f.Time, Ours: caller != "" && f.Owner == caller}
}

func errUnknown(id string) error { return fault.New(fault.NotFound, "there is no lock %.80q", id) }

// nameOf returns the name of the lock file of a path.
func nameOf(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:nameDigits/2])
}

// nameIn returns the name of the lock file in an ID. The error is NotFound if the ID cannot be one.
func nameIn(id string) (string, error) {
	if len(id) != nameDigits+randomDigits || !isName(id[:nameDigits]) {
		return "", errUnknown(id)
	}
	return id[:nameDigits], nil
}

func isName(s string) bool { return len(s) == nameDigits && strings.Trim(s, "0123456789abcdef") == "" }

func randomHex() string {
	var b [randomDigits / 2]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
