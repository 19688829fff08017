// Package inflight tracks the requests that a process serves: their stages, the cost of their git commands, and
// whether they were answered fast enough. The code that serves a request begins it on the Board of the process, which
// puts it into the context. Code further down finds it there and reports its work.
package inflight

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Stage is the current stage of a request.
type Stage int32

// The stages, in the order of a fetch.
const (
	Reading Stage = iota // receiving the header or body from the client
	Queued               // waiting for a lane or slot
	Working              // reading refs and objects, negotiating
	Packing              // waiting for the first byte of a pack, or for another git command
	Sending              // sending the response to the client
	Remote               // waiting for another process
)

var stages = [...]string{"reading", "queued", "working", "packing", "sending", "remote"}

func (s Stage) String() string { return stages[s] }

// Usage is the resource usage of git commands.
type Usage struct {
	Commands     int           // that have ended
	User, System time.Duration // CPU time, including child processes
	Queue        time.Duration // time in the queue for slots
	MaxRSS       int64         // bytes, of the largest process
	In, Out      int64         // bytes of standard input and output
}

func (u *Usage) add(v Usage) {
	u.Commands += v.Commands
	u.User += v.User
	u.System += v.System
	u.Queue += v.Queue
	u.MaxRSS = max(u.MaxRSS, v.MaxRSS)
	u.In += v.In
	u.Out += v.Out
}

// Board lists the requests in flight, and the heaviest repositories and callers of the last minutes. Safe for
// concurrent use. Each part has its own lock, which is held for one step of a loop.
type Board struct {
	parts [16]part
	next  atomic.Uint32
	since func() time.Duration // time since the board was made

	repositories, callers heavyHitters
}

type part struct {
	mu  sync.Mutex
	all map[*Request]struct{}
	_   [48]byte // a cache line for each
}

// NewBoard returns an empty board.
func NewBoard() *Board {
	made := time.Now()
	b := &Board{since: func() time.Duration { return time.Since(made) }}
	for i := range b.parts {
		b.parts[i].all = make(map[*Request]struct{})
	}
	return b
}

// Request is one request, from Begin to End. Safe for concurrent use. All methods of a nil Request do nothing.
type Request struct {
	id    string
	board *Board
	began time.Time
	part  *part

	stage atomic.Int32
	since atomic.Int64 // start of the stage, in nanoseconds after began
	bytes atomic.Int64 // sent

	mu                       sync.Mutex
	waits                    int           // for an origin, at present
	waiting                  time.Time     // start of the first of them
	waited                   time.Duration // before it
	kind, repository, caller string
	git                      Usage
}

// Begin lists a request of a kind ("fetch") until End. id is the ID from another process. If it is not an ID (IsID),
// the request gets a new one. The returned context carries the request. A nil Board lists nothing, and its requests are
// nil.
func (b *Board) Begin(ctx context.Context, kind, id string) (context.Context, *Request) {
	if b == nil {
		return ctx, nil
	}
	if !IsID(id) {
		id = strconv.FormatUint(rand.Uint64(), 36)
	}
	r := &Request{id: id, board: b, began: time.Now(), kind: kind, part: &b.parts[b.next.Add(1)%uint32(len(b.parts))]}
	r.part.mu.Lock()
	r.part.all[r] = struct{}{}
	r.part.mu.Unlock()
	return r.WithRequest(ctx), r
}

// The headers with the ID and the caller of a request, for calls to other processes. They are trusted as much as the
// call.
const (
	Header       = "Packhorse-Request"
	CallerHeader = "Packhorse-For"
)

// maxID is the maximum length of an ID in bytes.
const maxID = 64

// IsID reports whether a text is a valid request ID: at most 64 letters, digits and "._-", which are safe in logs and
// headers.
func IsID(text string) bool {
	for _, c := range []byte(text) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return text != "" && len(text) <= maxID
}

// ID returns the ID of the request in logs and calls. It is empty for nil.
func (r *Request) ID() string {
	if r == nil {
		return ""
	}
	return r.id
}

// End removes the request from the board. Further calls do nothing.
func (r *Request) End() {
	if r == nil {
		return
	}
	r.part.mu.Lock()
	_, there := r.part.all[r]
	delete(r.part.all, r)
	r.part.mu.Unlock()
	if !there {
		return
	}
	r.mu.Lock()
	repository, caller := r.repository, r.caller
	r.mu.Unlock()
	r.board.countRequest(repository, caller, r.bytes.Load())
}

type key struct{}

// From returns the request of a context, or nil.
func From(ctx context.Context) *Request {
	r, _ := ctx.Value(key{}).(*Request)
	return r
}

// SetStage sets the current stage.
func (r *Request) SetStage(s Stage) {
	if r == nil || r.stage.Swap(int32(s)) == int32(s) {
		return
	}
	r.since.Store(int64(time.Since(r.began)))
}

// Stage returns the current stage.
func (r *Request) Stage() Stage {
	if r == nil {
		return Reading
	}
	return Stage(r.stage.Load())
}

// WaitForOrigin begins a wait for the origin of a mirror. The caller calls end after it, once.
func (r *Request) WaitForOrigin() (end func()) {
	if r == nil {
		return func() {}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waits++; r.waits == 1 {
		r.waiting = time.Now()
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.waits--; r.waits == 0 {
			r.waited += time.Since(r.waiting)
		}
	}
}

// OriginWait returns how long the request has waited for the origin of a mirror so far. The time of concurrent waits
// counts once.
func (r *Request) OriginWait() time.Duration {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waits > 0 {
		return r.waited + time.Since(r.waiting)
	}
	return r.waited
}

// WithRequest returns a context with the request, for work that continues after the original context ends.
func (r *Request) WithRequest(ctx context.Context) context.Context {
	if r == nil {
		return ctx
	}
	return context.WithValue(ctx, key{}, r)
}

// Forward records that another process works on the request, and sets the headers for the call to it.
func (r *Request) Forward(header func(name, value string)) {
	if r == nil {
		return
	}
	r.SetStage(Remote)
	header(Header, r.id)
	caller := r.Caller()
	if caller != "" && !strings.ContainsFunc(caller, func(c rune) bool { return c <= ' ' || c > '~' }) {
		header(CallerHeader, caller)
	}
}

// Sent counts bytes that were sent to the client.
func (r *Request) Sent(n int64) {
	if r != nil {
		r.bytes.Add(n)
	}
}

// maxName is the maximum length of a name in bytes.
const maxName = 200

func clip(name string) string {
	if len(name) <= maxName {
		return name
	}
	return strings.Clone(name[:maxName]) // a copy, so that the long text can be freed
}

// Describe sets the kind, the repository and the caller of the request. Empty values change nothing. Names are
// truncated to 200 bytes.
func (r *Request) Describe(kind, repository, caller string) {
	if r == nil {
		return
	}
	repository, caller = clip(repository), clip(caller)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kind, r.repository, r.caller = cmp.Or(kind, r.kind), cmp.Or(repository, r.repository), cmp.Or(caller, r.caller)
}

// AddUsage adds the usage of git commands.
func (r *Request) AddUsage(u Usage) {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.git.add(u)
	repository, caller := r.repository, r.caller
	r.mu.Unlock()
	r.board.countCPU(repository, caller, u.User+u.System)
}

// Usage returns the usage of the git commands that have ended.
func (r *Request) Usage() Usage {
	if r == nil {
		return Usage{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.git
}

// Caller returns the caller, or an empty text while it is unknown.
func (r *Request) Caller() string {
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.caller
}

// Repository returns the repository, or an empty text while it is unknown.
func (r *Request) Repository() string {
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.repository
}

// Snapshot is the state of a request at one moment.
type Snapshot struct {
	ID, Kind, Repository, Caller string
	Stage                        Stage
	Age, InStage                 time.Duration
	Bytes                        int64 // sent
	Git                          Usage
}

// Requests returns the oldest requests in flight, at most limit, and the number of all.
func (b *Board) Requests(limit int) (all []Snapshot, running int) {
	now := time.Now()
	b.each(func(r *Request) { all = append(all, r.snapshot(now)) })
	slices.SortFunc(all, func(a, b Snapshot) int { return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.ID, b.ID)) })
	return all[:min(len(all), limit)], len(all)
}

// each calls f for all requests in flight, while it holds the lock of a part.
func (b *Board) each(f func(*Request)) {
	for i := range b.parts {
		p := &b.parts[i]
		p.mu.Lock()
		for r := range p.all {
			f(r)
		}
		p.mu.Unlock()
	}
}

func (r *Request) snapshot(now time.Time) Snapshot {
	age := now.Sub(r.began)
	s := Snapshot{ID: r.id, Stage: Stage(r.stage.Load()), Age: age, InStage: max(age-time.Duration(r.since.Load()), 0),
		Bytes: r.bytes.Load()}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Kind, s.Repository, s.Caller, s.Git = r.kind, r.repository, r.caller, r.git
	return s
}
