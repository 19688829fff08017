package lfs

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

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
)

const (
	// MaxLocks is the maximum number of locks of a repository.
	MaxLocks = 10_000
	// MaxLockPage is the maximum number of locks in an answer.
	MaxLockPage = 1000
	// maxPageBytes is the maximum length of their paths in bytes together, because messages between nodes have a limit.
	maxPageBytes = 1 << 20
	// maxLockPath is the maximum length of a path in bytes.
	maxLockPath = 4096

	nameDigits   = 32 // of the hash of the path
	randomDigits = 16
)

// LockFiles has the lock files of one repository.
type LockFiles interface {
	// Create creates a file durably. The error is Exists if there is one with the name.
	Create(ctx context.Context, name string, content []byte) error
	// Read returns the content of a file. The error is NotFound if it does not exist.
	Read(ctx context.Context, name string) ([]byte, error)
	// Remove removes a file durably.
	Remove(ctx context.Context, name string) error
	// Names lists the files in any order, also some that are not locks.
	Names(ctx context.Context) ([]string, error)
}

// LockServer answers requests about locks. It is safe for concurrent use. The zero value is ready.
//
// A lock is a small file whose name is a hash of the locked path, so a path has at most one lock. The ID of a lock
// begins with that name, so the file is found without a search. It ends with random digits, so the ID of an earlier
// lock does not match a later one. Files are durable before a request succeeds.
type LockServer struct {
	mu sync.Mutex
	// changing has the names of locks that are being made or removed. No other lock of the path may take the place of
	// one between the check of its owner and its removal. Channels are closed when the change has ended.
	changing map[string]chan struct{}
}

// lockFile is the content of a lock file.
type lockFile struct {
	ID    string    `json:"id"`
	Path  string    `json:"path"`
	Owner string    `json:"owner"`
	Time  time.Time `json:"time"`
}

// Do answers a request about the locks in files. Errors: those of LockAction, Invalid for a path, cursor or ID that
// cannot be one, Full if the repository has MaxLocks locks, Corrupt for a damaged lock file.
func (s *LockServer) Do(ctx context.Context, files LockFiles, q LockRequest) (LockAnswer, error) {
	switch q.Action {
	case CreateLock:
		return s.create(ctx, files, q)
	case Unlock:
		return s.unlock(ctx, files, q)
	default:
		return listLocks(ctx, files, q)
	}
}

// isFilePath reports whether Git accepts a path as that of a file in a repository. It has to be UTF-8 of one line too.
func isFilePath(path string) bool {
	if len(path) > maxLockPath || !utf8.ValidString(path) || strings.ContainsAny(path, "\x00\n") {
		return false
	}
	for part := range strings.SplitSeq(path, "/") { // that of an absolute path begins with an empty one
		if part == "" || part == "." || part == ".." || strings.EqualFold(part, ".git") {
			return false
		}
	}
	return true
}

func (s *LockServer) create(ctx context.Context, files LockFiles, q LockRequest) (answer LockAnswer, err error) {
	switch {
	case !isFilePath(q.Path):
		return answer, fault.New(fault.Invalid, "%q cannot be locked: it is not the path of a file", fault.Short(q.Path))
	case q.Caller == "":
		return answer, fault.New(fault.Denied, "a lock needs an owner: sign in")
	}
	name := lockName(q.Path)
	end, err := s.change(ctx, name)
	if err != nil {
		return answer, err
	}
	defer end()
	f, err := readLock(ctx, files, name)
	if err == nil {
		answer.Locks = []Lock{f.lock(q.Caller)}
		return answer, fault.New(fault.Exists, "%s is locked by %s", f.Path, f.Owner)
	}
	if !fault.Is(err, fault.NotFound) {
		return answer, err
	}
	names, err := files.Names(ctx)
	if err != nil {
		return answer, err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !isLockName(name) })
	if len(names) >= MaxLocks {
		return answer, fault.New(fault.Full, "the repository has %d locks, which is the maximum: unlock some",
			len(names))
	}
	f = &lockFile{ID: name + randomHex(), Path: q.Path, Owner: q.Caller, Time: time.Now().UTC().Truncate(time.Second)}
	content, err := json.Marshal(f)
	if err == nil {
		err = files.Create(ctx, name, append(content, '\n'))
	}
	if fault.Is(err, fault.Exists) { // another node was faster
		if other, err := readLock(ctx, files, name); err == nil {
			answer.Locks = []Lock{other.lock(q.Caller)}
		}
		return answer, err
	}
	if err != nil {
		return answer, err
	}
	answer.Locks = []Lock{f.lock(q.Caller)}
	return answer, nil
}

func (s *LockServer) unlock(ctx context.Context, files LockFiles, q LockRequest) (answer LockAnswer, err error) {
	name, err := lockNameIn(q.ID)
	if err != nil {
		return answer, err
	}
	end, err := s.change(ctx, name)
	if err != nil {
		return answer, err
	}
	defer end()
	f, err := readLock(ctx, files, name)
	if err != nil {
		return answer, err
	}
	if f.ID != q.ID {
		return answer, errNoLock(q.ID)
	}
	if f.Owner != q.Caller && !q.Force {
		return answer, fault.New(fault.Denied, "the lock of %s belongs to %s: ask them, or use force", f.Path, f.Owner)
	}
	if err := files.Remove(ctx, name); err != nil {
		return answer, err
	}
	answer.Locks = []Lock{f.lock(q.Caller)}
	return answer, nil
}

// listLocks reads one lock if the request has its path or its ID, otherwise a page of all. Pages are in the order of
// names, so only the locks of the page are read, and each page is in the order of paths.
func listLocks(ctx context.Context, files LockFiles, q LockRequest) (answer LockAnswer, err error) {
	after, err := base64.RawURLEncoding.DecodeString(q.Cursor)
	if err != nil {
		return answer, fault.New(fault.Invalid, "%.80q is not a cursor of a list of locks", q.Cursor)
	}
	var names []string
	switch {
	case q.Path != "":
		names = []string{lockName(q.Path)}
	case q.ID != "":
		name, err := lockNameIn(q.ID)
		if err != nil {
			return answer, nil
		}
		names = []string{name}
	default:
		if names, err = files.Names(ctx); err != nil {
			return answer, err
		}
		names = slices.DeleteFunc(names, func(name string) bool { return !isLockName(name) || name <= string(after) })
		slices.Sort(names)
		if limit := min(cmp.Or(max(q.Limit, 0), MaxLockPage), MaxLockPage); len(names) > limit {
			names = names[:limit]
			answer.Next = cursorAfter(names[limit-1])
		}
	}
	found, err := readLocks(ctx, files, names)
	if err != nil {
		return LockAnswer{}, err
	}
	size := 0
	for i, f := range found {
		if f == nil || q.ID != "" && f.ID != q.ID {
			continue
		}
		if size += len(f.Path); size > maxPageBytes && len(answer.Locks) > 0 {
			answer.Next = cursorAfter(names[i-1])
			break
		}
		answer.Locks = append(answer.Locks, f.lock(q.Caller))
	}
	slices.SortFunc(answer.Locks, func(a, b Lock) int { return strings.Compare(a.Path, b.Path) })
	return answer, nil
}

func cursorAfter(name string) string { return base64.RawURLEncoding.EncodeToString([]byte(name)) }

// change makes the caller the only one in this process that changes the lock with a name, until it calls end.
func (s *LockServer) change(ctx context.Context, name string) (end func(), err error) {
	for {
		s.mu.Lock()
		running := s.changing[name]
		if running == nil {
			break
		}
		s.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer s.mu.Unlock()
	if s.changing == nil {
		s.changing = make(map[string]chan struct{})
	}
	done := make(chan struct{})
	s.changing[name] = done
	return func() {
		s.mu.Lock()
		delete(s.changing, name)
		s.mu.Unlock()
		close(done)
	}, nil
}

// parallelReads is the number of locks that a list reads at the same time. An object storage needs some time for each.
const parallelReads = 32

// readLocks reads lock files. Those that do not exist are nil.
func readLocks(ctx context.Context, files LockFiles, names []string) ([]*lockFile, error) {
	found := make([]*lockFile, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelReads)
	for i, name := range names {
		group.Go(func() error {
			f, err := readLock(ctx, files, name)
			if fault.Is(err, fault.NotFound) { // unlocked meanwhile
				return nil
			}
			found[i] = f
			return err
		})
	}
	return found, group.Wait()
}

// readLock reads a lock file. The error is NotFound if the file does not exist.
func readLock(ctx context.Context, files LockFiles, name string) (*lockFile, error) {
	content, err := files.Read(ctx, name)
	if fault.Is(err, fault.NotFound) {
		return nil, errNoLock(name)
	}
	if err != nil {
		return nil, err
	}
	f := new(lockFile)
	if err := json.Unmarshal(content, f); err != nil || lockName(f.Path) != name || !strings.HasPrefix(f.ID, name) {
		return nil, fault.New(fault.Corrupt, "the lock file %s of the repository is damaged: an operator has to remove it",
			name)
	}
	return f, nil
}

func (f *lockFile) lock(caller string) Lock {
	return Lock{ID: f.ID, Path: f.Path, Owner: f.Owner, Time: f.Time, Ours: caller != "" && f.Owner == caller}
}

func errNoLock(id string) error { return fault.New(fault.NotFound, "there is no lock %.80q", id) }

// lockName returns the name of the lock file of a path.
func lockName(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:nameDigits/2])
}

// lockNameIn returns the name of the lock file in an ID. The error is NotFound if the ID cannot be one.
func lockNameIn(id string) (string, error) {
	if len(id) != nameDigits+randomDigits || !isLockName(id[:nameDigits]) {
		return "", errNoLock(id)
	}
	return id[:nameDigits], nil
}

func isLockName(s string) bool {
	return len(s) == nameDigits && strings.Trim(s, "0123456789abcdef") == ""
}

func randomHex() string {
	var b [randomDigits / 2]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
