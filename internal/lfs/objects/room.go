package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

// reason is why an upload was refused, as a word for logs and metrics.
type reason string

const (
	wrongHash   reason = "wrong_hash"
	wrongLength reason = "wrong_length"
	truncated   reason = "truncated"
	overQuota   reason = "quota"
	diskFull    reason = "disk_full"
	TooLarge    reason = "too_large" // the cause of errors about objects that are too large
)

// Error is error's. The text is for the log only.
func (r reason) Error() string { return string(r) }

// error returns an error with the reason as its cause.
func (r reason) error(kind fault.Kind, format string, args ...any) error {
	return fault.Wrap(kind, fmt.Sprintf(format, args...), r)
}

// Reason returns why an upload failed, as a word for logs and metrics.
func Reason(err error) string {
	if r := reasonOf(err); r != "" {
		return string(r)
	}
	return fault.KindOf(err).String()
}

// bySeverity are reasons for refusals, the most severe first: faults of the server, full disks, limits.
var bySeverity = []string{fault.Internal.String(), fault.Corrupt.String(), string(diskFull), fault.Full.String(),
	fault.Unavailable.String(), string(overQuota), string(TooLarge)}

// Refusals returns how many objects of a batch are refused, and the most severe Reason, or "".
func Refusals(states []lfs.Status) (n uint32, reason string) {
	least := len(bySeverity) + 1
	for i := range states {
		if states[i].State != lfs.Refused {
			continue
		}
		n++
		why := Reason(states[i].Err)
		rank := slices.Index(bySeverity, why)
		if rank < 0 {
			rank = len(bySeverity)
		}
		if rank < least {
			least, reason = rank, why
		}
	}
	return n, reason
}

func reasonOf(err error) reason {
	r, _ := errors.AsType[reason](err)
	return r
}

// floorInterval is the number of bytes that an upload writes between two checks of free space.
const floorInterval = 16 << 20

// room is the room for the objects of one request.
type room struct {
	store      *Store
	repository Repository
	asked      int64 // bytes reserved by the request so far, at most those that are free
	free       int64 // of the file system above the floor
	used       int64 // of the quota
	err        error
	known      bool
}

func (s *Store) newRoom(r Repository) *room { return &room{store: s, repository: r} }

// reserve returns an error if an object may not be uploaded: Invalid if it is too large, Full if there is no room. It
// has arrived up to offset.
func (m *room) reserve(ctx context.Context, o lfs.Object, offset int64) error {
	s := m.store
	if limit := s.options.MaxObject; limit > 0 && o.Size > limit {
		return TooLarge.error(fault.Invalid, "object %s has %d bytes: the maximum is %d (lfs.max_object)", o.OID, o.Size,
			limit)
	}
	if r := m.repository.Remote; r != nil && o.Size > r.MaxObject() {
		return TooLarge.error(fault.Full, "object %s has %d bytes: the maximum on this node is %d (half of store.cache)",
			o.OID, o.Size, r.MaxObject())
	}
	if !m.known {
		m.known = true
		if m.free = s.room(); m.repository.Remote != nil {
			m.free = math.MaxInt64 // Remote.Begin makes room
		}
		if m.err == nil && s.Quota(m.repository) > 0 {
			m.used, m.err = s.Usage(ctx, m.repository)
			m.used += s.usage.reserved(m.repository)
		}
	}
	if m.err != nil {
		return m.err
	}
	if quota := s.Quota(m.repository); quota > 0 && o.Size > quota-m.used-m.asked {
		return errOverQuota(m.used, quota)
	}
	if o.Size-offset > m.free-m.asked {
		return errNoSpace()
	}
	m.asked += o.Size - offset
	return nil
}

func errOverQuota(used, quota int64) error {
	return overQuota.error(fault.Full,
		"the object does not fit into the quota of the repository for LFS objects: %d of %d bytes are used (lfs.quota)",
		used, quota)
}

// Quota returns the maximum total size of the objects of a repository in bytes. Zero means no limit.
func (s *Store) Quota(r Repository) int64 {
	if r.Quota != 0 {
		return max(r.Quota, 0)
	}
	return s.options.Quota
}

func errNoSpace() error {
	return diskFull.error(fault.Full, "the server's disk has no room for LFS objects")
}

// room returns how many bytes uploads may write. If the free space is unknown, the file system decides.
func (s *Store) room() int64 {
	room := s.roomIn(s.options.Dir)
	if room == unknownRoom && os.MkdirAll(s.options.Dir, 0o700) == nil {
		room = s.roomIn(s.options.Dir)
	}
	return room
}

// unknownRoom is the room of a file system whose free space is unknown.
const unknownRoom = 1 << 62

// roomIn is room for the file system of another directory.
func (s *Store) roomIn(dir string) int64 {
	size, free, err := disk.Space(dir)
	if err != nil {
		return unknownRoom
	}
	floor := cmp.Or(s.options.MinFree, disk.Floor(size))
	if s.options.Copies {
		floor /= 4
	}
	return free - max(floor, 0)
}

// checkFloor returns an error of kind Full if n more bytes would take space that has to stay free.
func (s *Store) checkFloor(n int64) error {
	if s.room() < n {
		return errNoSpace()
	}
	return nil
}

// reserve is room.reserve for one upload, until release is called. An object that the repository has needs no room.
func (s *Store) reserve(ctx context.Context, r Repository, u lfs.Upload) (release func(), err error) {
	if err := s.newRoom(r).reserve(ctx, u.Object, u.Offset); err != nil {
		f, openErr := s.Open(r, u.Object)
		if openErr != nil {
			return nil, err
		}
		f.Close()
		return func() {}, nil
	}
	quota := s.Quota(r)
	if err := s.usage.reserve(r, u.Size, quota); err != nil {
		return nil, err
	}
	if quota > 0 {
		s.trimParts(r, u.OID, quota)
	}
	return func() { _ = s.usage.reserve(r, -u.Size, 0) }, nil
}

// usageTime is how long the usage of a repository is known. Other programs may change it.
const usageTime = time.Minute

// usageTable has the usage of the repositories with recent uploads.
type usageTable struct {
	mu       sync.Mutex
	known    map[string]usage // by Repository.ID
	incoming map[string]int64 // bytes of the objects of running uploads, by Repository.ID
	added    map[string]int64 // bytes that were added since a running walk began, by Repository.ID
	walks    singleflight.Group
}

type usage struct {
	bytes int64
	time  time.Time // when the repository was walked
}

// Usage returns the total size of the objects of a repository in bytes, as of less than a minute ago. All callers share
// one walk through the objects, which continues when they leave.
func (s *Store) Usage(ctx context.Context, r Repository) (int64, error) {
	t := &s.usage
	t.mu.Lock()
	u, known := t.known[r.ID]
	t.mu.Unlock()
	if known && time.Since(u.time) < usageTime {
		return u.bytes, nil
	}
	walk := t.walks.DoChan(r.ID, func() (any, error) { return s.walkUsage(r) })
	select {
	case result := <-walk:
		if result.Err != nil {
			return 0, result.Err
		}
		return result.Val.(int64), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// walkUsage adds the sizes of all objects of a repository. Objects that are added meanwhile count at least once, and
// perhaps twice until the next walk.
func (s *Store) walkUsage(r Repository) (total int64, err error) {
	t := &s.usage
	t.startWalk(r)
	u := usage{time: time.Now()}
	if r.Remote != nil {
		u.bytes, err = r.Remote.Usage()
	} else {
		err = s.Walk(r, func(o lfs.Object, _ fs.FileInfo) error {
			u.bytes += o.Size
			return nil
		})
	}
	return t.endWalk(r, u, err), err
}

// startWalk notes that a walk starts.
func (t *usageTable) startWalk(r Repository) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.added == nil {
		t.added = make(map[string]int64)
	}
	t.added[r.ID] = 0
}

// endWalk notes the result of a walk plus the bytes that were added during it, and returns the sum. After an error it
// notes nothing and returns zero.
func (t *usageTable) endWalk(r Repository, u usage, err error) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	u.bytes += t.added[r.ID]
	delete(t.added, r.ID)
	if err != nil {
		return 0
	}
	if t.known == nil {
		t.known = make(map[string]usage)
	}
	for id, other := range t.known {
		if time.Since(other.time) >= usageTime {
			delete(t.known, id)
		}
	}
	t.known[r.ID] = u
	return u.bytes
}

// reserve counts an upload that begins, or with a negative size one that ends. The error is Full if another upload has
// taken the rest of the quota meanwhile.
func (t *usageTable) reserve(r Repository, n, quota int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if used := t.known[r.ID].bytes + t.incoming[r.ID]; quota > 0 && n > quota-used {
		return errOverQuota(used, quota)
	}
	if t.incoming == nil {
		t.incoming = make(map[string]int64)
	}
	if t.incoming[r.ID] += n; t.incoming[r.ID] == 0 {
		delete(t.incoming, r.ID)
	}
	return nil
}

// reserved returns the number of bytes of the objects of running uploads.
func (t *usageTable) reserved(r Repository) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.incoming[r.ID]
}

// total returns the number of bytes of the objects of a repository, with those of running uploads.
func (t *usageTable) total(r Repository) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known[r.ID].bytes + t.incoming[r.ID]
}

// add counts an object that was added to a repository.
func (t *usageTable) add(r Repository, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before, isWalking := t.added[r.ID]; isWalking {
		t.added[r.ID] = before + n
	}
	if u, known := t.known[r.ID]; known {
		u.bytes += n
		t.known[r.ID] = u
	}
}

// isUnsupported reports whether a file cannot have another hard link.
func isUnsupported(err error) bool {
	for _, e := range []error{unix.EPERM, unix.EMLINK, unix.ENOTSUP, unix.ENOSYS, unix.EXDEV} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// writeError returns the error of a write with its kind if the disk is full. It returns other errors.
func writeError(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); !ok && disk.IsFull(err) {
		return fault.Wrap(fault.Full, "the server's disk is full", errors.Join(diskFull, err))
	}
	return err
}
