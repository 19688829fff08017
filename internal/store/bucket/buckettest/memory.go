// Package buckettest provides object storage for tests: a bucket in memory with faults, and real servers.
package buckettest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

// Memory is a Bucket in memory. Without faults it keeps every promise of bucket.Bucket. It uses only the clock of
// package time and no goroutines, so it works in bubbles of testing/synctest. Two that have the same seed and the same
// calls in the same order behave alike.
type Memory struct {
	mu       sync.Mutex
	random   *rand.Rand
	faults   Faults
	hook     func(operation, key string) error
	objects  map[string]*object
	delayed  []write              // writes that were given up and have not landed yet
	missing  map[string]time.Time // keys that were read as missing, for Faults.CachedMisses
	requests map[string]int
}

// object is one key. body is nil if the key does not exist; previous is the body before the last write.
type object struct {
	body, previous []byte
	modified       time.Time
	raced          bool // there was a second create of this key
}

// write is a change of a key. body is nil for a deletion.
type write struct {
	operation, key string
	body           []byte
	after          int // operations until it lands
}

// NewMemory returns an empty bucket. The seed determines all faults.
func NewMemory(seed uint64) *Memory {
	return &Memory{
		random: rand.New(rand.NewPCG(seed, 34)), objects: map[string]*object{}, missing: map[string]time.Time{},
		requests: map[string]int{},
	}
}

// SetFaults replaces the faults of later calls.
func (m *Memory) SetFaults(f Faults) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = f
}

// SetHook sets a function that is called before each operation with the name of the method in lower case and the key
// (or prefix). If it returns an error, the operation does nothing and returns this error. It may block, and it may call
// the bucket.
func (m *Memory) SetHook(hook func(operation, key string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hook = hook
}

// Requests returns the number of calls by the name of the method in lower case.
func (m *Memory) Requests() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.requests)
}

// Keys returns the keys that exist, sorted.
func (m *Memory) Keys() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.keys()
}

func (m *Memory) keys() []string {
	var keys []string
	for key, o := range m.objects {
		if o.body != nil {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Settle lets all delayed writes land.
func (m *Memory) Settle() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.delayed {
		m.apply(w)
	}
	m.delayed = nil
}

// Set stores an object without faults, or removes the key if body is nil.
func (m *Memory) Set(key string, body []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.apply(write{operation: "put", key: key, body: body})
}

// Age makes all objects older.
func (m *Memory) Age(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.objects {
		o.modified = o.modified.Add(-by)
	}
}

// Connection reports the faults that S3 would see in the headers of answers.
func (m *Memory) Connection() bucket.Connection {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bucket.Connection{ClockSkew: m.faults.ClockSkew, Proxy: m.faults.Proxy}
}

// begin counts an operation, lets delayed writes land, and returns with m locked unless the operation fails.
func (m *Memory) begin(ctx context.Context, operation, key string) error {
	m.mu.Lock()
	hook, latency := m.hook, m.faults.Latency
	m.mu.Unlock()
	if hook != nil {
		if err := hook(operation, key); err != nil {
			return err
		}
	}
	if latency > 0 {
		_ = retry.Sleep(ctx, latency)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s %s: %w", operation, key, err)
	}
	m.mu.Lock()
	m.requests[operation]++
	m.delayed = slices.DeleteFunc(m.delayed, func(w write) bool {
		return w.after == 0 && m.apply(w)
	})
	for i := range m.delayed {
		m.delayed[i].after--
	}
	switch {
	case m.faults.Down:
		m.mu.Unlock()
		return unavailable(operation, key, "connection refused")
	case m.chance(m.faults.Throttled):
		m.mu.Unlock()
		return unavailable(operation, key, "503 SlowDown")
	}
	return nil
}

func (m *Memory) chance(p float64) bool { return p > 0 && m.random.Float64() < p }

// apply performs a write and reports true. A create changes nothing if the key exists.
func (m *Memory) apply(w write) bool {
	o := m.objects[w.key]
	if o == nil {
		o = &object{}
		m.objects[w.key] = o
	}
	if w.operation == "create" && o.body != nil && !m.faults.IgnoredCondition {
		return true
	}
	o.previous, o.body, o.modified = o.body, w.body, time.Now().Add(m.faults.ClockSkew)
	return true
}

// write performs a change with the faults of writes. m is locked.
func (m *Memory) write(w write) error {
	w.after = m.random.IntN(11)
	switch {
	case m.chance(m.faults.LostRequests):
		return unavailable(w.operation, w.key, "connection reset by peer")
	case m.chance(m.faults.LateWrites):
		m.delayed = append(m.delayed, w)
		return unavailable(w.operation, w.key, "timeout")
	case m.chance(m.faults.DoubledWrites):
		m.delayed = append(m.delayed, w)
	}
	m.apply(w)
	if m.chance(m.faults.LostAnswers) {
		return unavailable(w.operation, w.key, "unexpected EOF")
	}
	return nil
}

// Create implements bucket.Bucket.
func (m *Memory) Create(ctx context.Context, key string, body []byte) error {
	if err := m.begin(ctx, "create", key); err != nil {
		return err
	}
	defer m.mu.Unlock()
	w := write{operation: "create", key: key, body: append([]byte{}, body...)}
	if o := m.objects[key]; o != nil && o.body != nil && !m.faults.IgnoredCondition {
		won := !o.raced && m.chance(m.faults.TwoWinners)
		o.raced = true
		if !won {
			return fault.Wrap(fault.Exists, "the object exists already", fmt.Errorf("create %s: %w", key, bucket.ErrExists))
		}
		w.operation = "put"
	}
	return m.write(w)
}

// Put implements bucket.Bucket.
func (m *Memory) Put(ctx context.Context, key string, body io.ReaderAt, size int64, sum [32]byte) error {
	content := make([]byte, size)
	if _, err := io.ReadFull(io.NewSectionReader(body, 0, size), content); err != nil {
		return fmt.Errorf("put %s: read the file: %w", key, err)
	}
	if err := m.begin(ctx, "put", key); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if sha256.Sum256(content) != sum && !m.faults.IgnoredChecksum {
		return fault.New(fault.Corrupt, "put %s: the checksum does not match", key)
	}
	return m.write(write{operation: "put", key: key, body: content})
}

// Copy implements bucket.Bucket. The key for the hook is that of the copied object.
func (m *Memory) Copy(ctx context.Context, from, to string, _ int64) error {
	if err := m.begin(ctx, "copy", from); err != nil {
		return err
	}
	defer m.mu.Unlock()
	body, _, err := m.read("copy", from)
	if err != nil {
		return err
	}
	return m.write(write{operation: "put", key: to, body: body})
}

// Delete implements bucket.Bucket.
func (m *Memory) Delete(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		if err := m.delete(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

func (m *Memory) delete(ctx context.Context, key string) error {
	if err := m.begin(ctx, "delete", key); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if m.faults.IgnoredDelete {
		return nil
	}
	return m.write(write{operation: "delete", key: key})
}

// read returns what a reader sees of a key. m is locked.
func (m *Memory) read(operation, key string) (body []byte, info bucket.Info, err error) {
	if m.chance(m.faults.FailedReads) {
		return nil, bucket.Info{}, unavailable(operation, key, "connection reset by peer")
	}
	if o := m.objects[key]; o != nil {
		body, info = o.body, bucket.Info{Key: key, Size: int64(len(o.body)), Modified: o.modified}
		if m.chance(m.faults.StaleReads) {
			body, info.Size = o.previous, int64(len(o.previous))
		}
	}
	if until := m.missing[key]; m.faults.CachedMisses > 0 && time.Now().Before(until) {
		body = nil
	}
	if body == nil {
		m.missing[key] = time.Now().Add(m.faults.CachedMisses)
		return nil, bucket.Info{}, fault.Wrap(fault.NotFound, "the object does not exist",
			fmt.Errorf("%s %s: %w", operation, key, bucket.ErrNotFound))
	}
	return body, info, nil
}

// Get implements bucket.Bucket.
func (m *Memory) Get(ctx context.Context, key string, limit int64) ([]byte, bucket.Info, error) {
	if err := m.begin(ctx, "get", key); err != nil {
		return nil, bucket.Info{}, err
	}
	defer m.mu.Unlock()
	body, info, err := m.read("get", key)
	switch {
	case err != nil:
		return nil, bucket.Info{}, err
	case info.Size > limit:
		return nil, info, fault.New(fault.Corrupt, "get %s: %d bytes, more than %d", key, info.Size, limit)
	}
	return m.damage(body), info, nil
}

// Open implements bucket.Bucket.
func (m *Memory) Open(ctx context.Context, key string, offset, length int64) (io.ReadCloser, bucket.Info, error) {
	if err := m.begin(ctx, "open", key); err != nil {
		return nil, bucket.Info{}, err
	}
	defer m.mu.Unlock()
	body, info, err := m.read("open", key)
	if err != nil {
		return nil, bucket.Info{}, err
	}
	if offset < 0 || offset > info.Size || length > info.Size-offset {
		return nil, info, fault.New(fault.Corrupt, "open %s: %d bytes, shorter than the range", key, info.Size)
	}
	end := info.Size
	if length >= 0 {
		end = offset + length
	}
	if m.faults.IgnoredRange {
		offset, end = 0, info.Size
	}
	return io.NopCloser(bytes.NewReader(m.damage(body[offset:end]))), info, nil
}

// damage returns a copy of a body, which may be cut or changed. m is locked.
func (m *Memory) damage(body []byte) []byte {
	body = bytes.Clone(body)
	if len(body) > 0 && m.chance(m.faults.Truncated) {
		body = body[:m.random.IntN(len(body))]
	}
	if len(body) > 0 && m.chance(m.faults.Flipped) {
		body[m.random.IntN(len(body))] ^= 1 << m.random.IntN(8)
	}
	return body
}

// List implements bucket.Bucket.
func (m *Memory) List(ctx context.Context, prefix, after string, limit int) ([]bucket.Info, error) {
	if err := m.begin(ctx, "list", prefix); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	if m.chance(m.faults.FailedReads) {
		return nil, unavailable("list", prefix, "connection reset by peer")
	}
	var list []bucket.Info
	for _, key := range m.keys() {
		o := m.objects[key]
		late := o.previous == nil && m.chance(m.faults.LateList)
		if strings.HasPrefix(key, prefix) && key > after && !late {
			list = append(list, bucket.Info{Key: key, Size: int64(len(o.body)), Modified: o.modified})
		}
	}
	if m.faults.UnsortedList {
		slices.Reverse(list)
	}
	return list[:min(limit, len(list))], nil
}

// unavailable is the error of a request without an answer, or with one that leaves the outcome open.
func unavailable(operation, key, problem string) error {
	return &fault.Error{
		Kind: fault.Unavailable, Msg: "the object storage does not answer; try again", RetryAfter: fault.RetrySoon,
		Err: fmt.Errorf("%s %s: %s", operation, key, problem),
	}
}
