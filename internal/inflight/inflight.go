// Package inflight knows what runs in this process now: requests, the stage that each is at, and what git has cost them. Whoever serves a
// request begins it on the process's Board and puts it into the context; whatever works for it, however deep, finds it there and says what it does.
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

// Stage is what a request waits for, or does.
type Stage int32

// The stages, in the order in which a fetch comes by them.
const (
	Reading Stage = iota // its head or body comes from the client
	Queued               // it waits for a place in a lane, or a slot
	Working              // refs, objects and negotiation are looked up
	Packing              // it waits for the first byte of a pack, or for another git command
	Sending              // the answer goes to the client
	Remote               // another process works on it
)

var stages = [...]string{"reading", "queued", "working", "packing", "sending", "remote"}

func (s Stage) String() string { return stages[s] }

// Usage is what git commands have used.
type Usage struct {
	Commands     int           // that have ended
	User, System time.Duration // CPU time, of what they started too
	Queue        time.Duration // waited for slots
	MaxRSS       int64         // bytes, of the greatest process
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

// Board lists the requests that run, and knows who was heavy in the last minutes. It is safe for concurrent use. Each part of it has a lock of its
// own, held for a step in a list.
type Board struct {
	parts [16]part
	next  atomic.Uint32
	since func() time.Duration // the board was made

	repositories, callers heavyHitters
}

type part struct {
	mu  sync.Mutex
	all map[*Request]struct{}
	_   [48]byte // a cache line for each
}

// NewBoard makes an empty one.
func NewBoard() *Board {
	made := time.Now()
	b := &Board{since: func() time.Duration { return time.Since(made) }}
	for i := range b.parts {
		b.parts[i].all = make(map[*Request]struct{})
	}
	return b
}

// Request is one request, until End. It is safe for concurrent use, and all methods of nil do nothing.
type Request struct {
	id    string
	board *Board
	began time.Time
	part  *part

	stage atomic.Int32
	since atomic.Int64 // when the stage began: ns after began
	bytes atomic.Int64 // sent

	mu                       sync.Mutex
	kind, repository, caller string
	git                      Usage
}

// Begin lists a request of a kind ("fetch") until its End, under the ID that another process gave it or, where that is no ID (IsID), a new one.
// The context is for all that works for it. A nil Board lists nothing, and its requests are nil.
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
	return r.On(ctx), r
}

// The headers in which a process tells another which request a call is for, and whose it is. The other process believes it as it believes the call.
const (
	Header       = "Packhorse-Request"
	CallerHeader = "Packhorse-For"
)

// maxID bounds an ID, in bytes.
const maxID = 64

// IsID tells whether a text can be a request's ID: it is not long, and of letters, digits and ._- alone, so that it may stand in logs and headers.
func IsID(text string) bool {
	for _, c := range []byte(text) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return text != "" && len(text) <= maxID
}

// ID is what the request is called in log lines, and in what is said to other processes; empty for nobody's.
func (r *Request) ID() string {
	if r == nil {
		return ""
	}
	return r.id
}

// End takes it off the board. More than once does nothing.
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
	r.board.ended(repository, caller, r.bytes.Load())
}

type key struct{}

// From is the request that a context belongs to; nil for none.
func From(ctx context.Context) *Request {
	r, _ := ctx.Value(key{}).(*Request)
	return r
}

// At says which stage it has come to.
func (r *Request) At(s Stage) {
	if r == nil || r.stage.Swap(int32(s)) == int32(s) {
		return
	}
	r.since.Store(int64(time.Since(r.began)))
}

// Stage is where it is.
func (r *Request) Stage() Stage {
	if r == nil {
		return Reading
	}
	return Stage(r.stage.Load())
}

// On is the context of work that goes on for a request, whatever becomes of the one that it came with.
func (r *Request) On(ctx context.Context) context.Context {
	if r == nil {
		return ctx
	}
	return context.WithValue(ctx, key{}, r)
}

// Leave says that another process works on it now, and gives the headers for the call that goes there.
func (r *Request) Leave(header func(name, value string)) {
	if r == nil {
		return
	}
	r.At(Remote)
	header(Header, r.id)
	caller := r.Caller()
	if caller != "" && !strings.ContainsFunc(caller, func(c rune) bool { return c <= ' ' || c > '~' }) {
		header(CallerHeader, caller)
	}
}

// Sent counts bytes of the answer that went to the client.
func (r *Request) Sent(n int64) {
	if r != nil {
		r.bytes.Add(n)
	}
}

// maxName bounds the names that are kept, in bytes.
const maxName = 200

func clip(name string) string {
	if len(name) <= maxName {
		return name
	}
	return strings.Clone(name[:maxName]) // so that it does not hold all of a long one
}

// Is says what it turned out to be; what is empty stays as it was. Names are cut to 200 bytes.
func (r *Request) Is(kind, repository, caller string) {
	if r == nil {
		return
	}
	repository, caller = clip(repository), clip(caller)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kind, r.repository, r.caller = cmp.Or(kind, r.kind), cmp.Or(repository, r.repository), cmp.Or(caller, r.caller)
}

// Used adds what git commands have used for it.
func (r *Request) Used(u Usage) {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.git.add(u)
	repository, caller := r.repository, r.caller
	r.mu.Unlock()
	r.board.used(repository, caller, u.User+u.System)
}

// Git is what git commands that have ended used for it.
func (r *Request) Git() Usage {
	if r == nil {
		return Usage{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.git
}

// Caller is whose it is, as far as that is known.
func (r *Request) Caller() string {
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.caller
}

// Repository is what it is about, as far as that is known.
func (r *Request) Repository() string {
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.repository
}

// Snapshot is a request at one moment.
type Snapshot struct {
	ID, Kind, Repository, Caller string
	Stage                        Stage
	Age, InStage                 time.Duration
	Bytes                        int64 // sent
	Git                          Usage
}

// Requests lists those that run now, the oldest first, most of them at most; and how many there are.
func (b *Board) Requests(most int) (all []Snapshot, running int) {
	now := time.Now()
	b.each(func(r *Request) { all = append(all, r.snapshot(now)) })
	slices.SortFunc(all, func(a, b Snapshot) int { return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.ID, b.ID)) })
	return all[:min(len(all), most)], len(all)
}

// each calls f for all requests that run, with the lock of a part.
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
	s := Snapshot{ID: r.id, Stage: Stage(r.stage.Load()), Age: age, InStage: max(age-time.Duration(r.since.Load()), 0), Bytes: r.bytes.Load()}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Kind, s.Repository, s.Caller, s.Git = r.kind, r.repository, r.caller, r.git
	return s
}
