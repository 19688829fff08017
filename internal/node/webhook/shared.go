package webhook

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

// Store is the store of a node. With it, another node delivers the pushes of one that is lost.
//
// Before a push can change refs, the bucket gets outbox/SESSION/PUSH. The object is deleted when all targets have the
// push, or if it changed nothing. A session is one process. While it has such objects, it renews outbox/SESSION/!alive.
// Other nodes watch the sessions. When one does not change any more, the node that creates outbox/SESSION/!taken takes
// its pushes: the log of the repository shows which of them were committed. PUSH.TARGET marks a target that has a push
// which others do not have yet. No clocks are compared. A node whose objects are gone leaves its session: all pushes in
// it are those of the other node, which waits for the ends of those that are running.
type Store interface {
	Bucket() bucket.Bucket
	// Position returns the ID of a repository, and the number of a record that exists.
	Position(ctx context.Context, repo git.RepoPath) (id string, record uint64, err error)
	// PushResult looks in the log of a repository, after a record, for the one that commits a push. It returns its number
	// and those of the updates that it makes. If there is none yet, or with an error, it returns no updates, and the
	// number of the last record that it has read.
	PushResult(ctx context.Context, id string, after uint64, push string, updates []receivepack.Update) (
		made []receivepack.Update, record uint64, err error)
}

const (
	outboxPrefix = "outbox/"
	aliveKey     = "/!alive" // sorts before pushes
	takenKey     = "/!taken"
	sharedSuffix = ".shared" // of files in the outbox that the bucket has, too: the next process removes them

	renewInterval = 2 * time.Second
	deadAfter     = 8 * time.Second  // without a change of a session
	takenAfter    = 60 * time.Second // the same for one that a node takes
	unknownLimit  = 20 * time.Minute // for the result of a push
	maxEvent      = 64 << 20         // bytes of an object
)

// sharing keeps the pushes of this process in the bucket, and takes those of lost processes.
type sharing struct {
	hooks *Hooks
	store Store

	mu      sync.Mutex
	session string
	isAlive bool                   // the session has !alive
	pushes  map[string]*sharedPush // by ID
	marks   []string               // keys to create
	garbage []string               // keys to delete
	seen    map[string]sighting    // other sessions
}

// sighting is when a session was seen to change.
type sighting struct {
	state string
	since time.Time
}

// event is a push in the bucket.
type event struct {
	Repository string          `json:"repository_id"`
	After      uint64          `json:"after"` // a record before that of the push
	Message    json.RawMessage `json:"message"`
}

// sharedPush is a pushRecord.
type sharedPush struct {
	*sharing
	push   *receivepack.Push
	event  event // findUnknown advances After
	queues []*queue
	key    string

	done    map[string]bool // targets that have it, or never get it; guarded by sharing.mu
	unknown time.Time       // since when the result is not known, otherwise zero; guarded by sharing.mu
}

func newSharing(h *Hooks, s Store) *sharing {
	return &sharing{hooks: h, store: s, session: rand.Text(), pushes: map[string]*sharedPush{}}
}

// begin implements Hooks.Begin.
func (s *sharing) begin(p *receivepack.Push, queues []*queue) (pushRecord, error) {
	ctx, cancel := context.WithTimeout(s.hooks.ctx, defaultTimeout)
	defer cancel()
	id, after, err := s.store.Position(ctx, p.Repo)
	if err != nil {
		return nil, err
	}
	r := &sharedPush{sharing: s, push: p, queues: queues, done: map[string]bool{},
		event: event{Repository: id, After: after, Message: encodeMessage("post-receive", time.Now(), p, p.Updates)}}
	return r, s.keep(ctx, r)
}

// keep writes a push into the bucket, below the present session.
func (s *sharing) keep(ctx context.Context, r *sharedPush) error {
	body, err := json.Marshal(r.event)
	if err != nil {
		return err
	}
	s.mu.Lock()
	session := s.session
	s.mu.Unlock()
	r.key = outboxPrefix + session + "/" + r.push.ID
	for range 3 {
		if err = s.store.Bucket().Create(ctx, r.key, body); err == nil || errors.Is(err, bucket.ErrExists) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.session == session { // otherwise it is taken with the former session
				s.pushes[r.push.ID] = r
				for target := range r.done {
					s.marks = append(s.marks, r.key+"."+target)
				}
			}
			return nil
		}
	}
	return err
}

// End implements pushRecord.
func (r *sharedPush) End(updates []receivepack.Update) error { return r.end(r.push, updates) }

// end delivers a push, unless it was taken from this node. Then the other node finds its result.
func (r *sharedPush) end(p *receivepack.Push, updates []receivepack.Update) error {
	s := r.sharing
	s.mu.Lock()
	var queues []*queue
	if s.pushes[p.ID] == r && len(updates) > 0 {
		r.unknown, queues = time.Time{}, r.left()
	} else if s.pushes[p.ID] == r {
		s.forget(r)
	}
	s.mu.Unlock()
	at := time.Now()
	left, err := s.hooks.enqueue(p, updates, at, queues)
	if err != nil {
		s.hooks.retryEnqueue(p, updates, at, left, "")
	}
	return err
}

// left returns the queues of the targets that do not have the push. sharing.mu is locked.
func (r *sharedPush) left() (queues []*queue) {
	for _, q := range r.queues {
		if !r.done[q.target.Name] {
			queues = append(queues, q)
		}
	}
	return queues
}

// Unknown implements pushRecord.
func (r *sharedPush) Unknown() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unknown = time.Now()
}

// forget deletes a push without pending deliveries. s.mu is locked.
func (s *sharing) forget(r *sharedPush) {
	delete(s.pushes, r.push.ID)
	s.garbage = append(s.garbage, r.key)
	if len(r.queues) > 1 {
		for _, q := range r.queues {
			s.garbage = append(s.garbage, r.key+"."+q.target.Name)
		}
	}
}

// settle notes that a target has a delivery, or never gets it.
func (s *sharing) settle(push, target string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.pushes[push]
	if r == nil {
		return
	}
	if r.done[target] = true; len(r.left()) == 0 {
		s.forget(r)
	} else {
		s.marks = append(s.marks, r.key+"."+target)
	}
}

// has reports whether the bucket has a push.
func (s *sharing) has(push string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pushes[push] != nil
}

// run works until Close. The session is renewed however long the other work takes.
func (s *sharing) run() {
	s.hooks.running.Go(func() { s.repeat(func(ctx context.Context, _ int) error { return s.renew(ctx) }) })
	s.repeat(func(ctx context.Context, i int) error {
		err := s.flush(ctx)
		if i%2 == 0 {
			err = errors.Join(err, s.check(ctx), s.watch(ctx))
		}
		return errors.Join(err, s.findUnknown(ctx))
	})
}

// repeat calls step until Close, with the number of the call.
func (s *sharing) repeat(step func(ctx context.Context, i int) error) {
	tick := time.NewTicker(renewInterval)
	defer tick.Stop()
	isFailing := false
	for i := 0; ; i++ {
		select {
		case <-s.hooks.ctx.Done():
			return
		case <-tick.C:
		}
		err := step(s.hooks.ctx, i)
		wasFailing := isFailing
		if isFailing = err != nil; isFailing && !wasFailing && s.hooks.ctx.Err() == nil {
			s.hooks.o.Log.Warn("cannot keep the deliveries of webhooks in the store; trying again", "error", err)
		}
	}
}

// flush makes the changes of the bucket that no request waits for.
func (s *sharing) flush(ctx context.Context) error {
	s.mu.Lock()
	marks, garbage := s.marks, s.garbage
	s.marks, s.garbage = nil, nil
	s.mu.Unlock()
	var failed error
	for i, key := range marks {
		if err := s.store.Bucket().Create(ctx, key, []byte("\n")); err != nil && !errors.Is(err, bucket.ErrExists) {
			failed, marks = err, marks[i:]
			break
		}
	}
	err := failed
	if err == nil {
		marks = nil
		err = s.store.Bucket().Delete(ctx, garbage...)
	}
	if err != nil {
		s.mu.Lock()
		s.marks, s.garbage = append(marks, s.marks...), append(garbage, s.garbage...)
		s.mu.Unlock()
	}
	return err
}

// renew shows other nodes that this process works.
func (s *sharing) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, deadAfter/2)
	defer cancel()
	s.mu.Lock()
	key, wasAlive := outboxPrefix+s.session+aliveKey, s.isAlive
	isAlive := len(s.pushes) > 0
	if s.isAlive = isAlive; wasAlive && !isAlive {
		s.garbage = append(s.garbage, key)
	}
	s.mu.Unlock()
	if !isAlive {
		return nil
	}
	return s.put(ctx, key, time.Now().UTC().Format(time.RFC3339Nano)+"\n")
}

// put replaces an object that shows a change.
func (s *sharing) put(ctx context.Context, key, body string) error {
	return s.store.Bucket().Put(ctx, key, strings.NewReader(body), int64(len(body)), sha256.Sum256([]byte(body)))
}

// list returns the names of the objects of a session, each with a slash before it.
func (s *sharing) list(ctx context.Context, session string) (map[string]bool, error) {
	prefix, names := outboxPrefix+session, map[string]bool{}
	return names, bucket.Each(ctx, s.store.Bucket(), prefix+"/", func(info bucket.Info) error {
		names[strings.TrimPrefix(info.Key, prefix)] = true
		return nil
	})
}

// check finds out whether another node has taken this session. After the end of a take, only missing pushes show it.
func (s *sharing) check(ctx context.Context) error {
	s.mu.Lock()
	session, pushes := s.session, maps.Clone(s.pushes)
	s.mu.Unlock()
	if len(pushes) == 0 {
		return nil
	}
	names, err := s.list(ctx, session)
	if err != nil {
		return err
	}
	s.mu.Lock()
	isTaken := names[takenKey]
	for id, r := range pushes {
		isTaken = isTaken || !names["/"+id] && s.pushes[id] == r
	}
	s.mu.Unlock()
	if isTaken {
		s.lose()
	}
	return nil
}

// lose begins another session, because another node has taken this one. Pushes that were not taken with it are taken
// when it does not change any more.
func (s *sharing) lose() {
	s.mu.Lock()
	lost := s.pushes
	s.session, s.isAlive, s.pushes = rand.Text(), false, map[string]*sharedPush{}
	s.mu.Unlock()
	for _, q := range s.hooks.queues {
		q.drop(lost)
	}
	s.hooks.o.Log.Warn("another node has taken over the deliveries of webhooks of this node", "deliveries", len(lost))
}

// findUnknown looks for pushes whose result was not known when they ended, and delivers them in the order of the log.
func (s *sharing) findUnknown(ctx context.Context) error {
	unknown := map[*sharedPush]time.Time{}
	s.mu.Lock()
	for _, r := range s.pushes {
		if !r.unknown.IsZero() {
			unknown[r] = r.unknown
		}
	}
	s.mu.Unlock()
	var failed error
	ended := map[*sharedPush][]receivepack.Update{}
	for r, since := range unknown {
		made, record, err := s.store.PushResult(ctx, r.event.Repository, r.event.After, r.push.ID, r.push.Updates)
		r.event.After = record
		if fault.Is(err, fault.Corrupt) {
			err = r.giveUp(err)
		} else if err == nil && (len(made) > 0 || time.Since(since) > unknownLimit) {
			ended[r] = made
		}
		failed = errors.Join(failed, err)
	}
	inOrder := func(a, b *sharedPush) int { return cmp.Compare(a.event.After, b.event.After) }
	for _, r := range slices.SortedFunc(maps.Keys(ended), inOrder) {
		p := *r.push
		p.Record = r.event.After
		failed = errors.Join(failed, r.end(&p, ended[r]))
	}
	return failed
}

// watch checks the sessions of other processes, and takes the first one that is lost.
func (s *sharing) watch(ctx context.Context) error {
	b, now := s.store.Bucket(), time.Now()
	seen, lost := map[string]sighting{}, ""
	for after := ""; ; {
		first, err := b.List(ctx, outboxPrefix, after, 2) // !alive and !taken are the first ones
		if err != nil {
			s.seen = nil // a store that does not answer keeps others from a change
			return err
		}
		if len(first) == 0 {
			break
		}
		session, _, _ := strings.Cut(strings.TrimPrefix(first[0].Key, outboxPrefix), "/")
		after = outboxPrefix + session + "/~"
		if session == s.session {
			continue
		}
		state, patience := "", deadAfter
		for _, info := range first {
			if strings.HasPrefix(info.Key, outboxPrefix+session+"/") {
				state += fmt.Sprintln(info.Key, info.Modified)
			}
			if info.Key == outboxPrefix+session+takenKey {
				patience = takenAfter
			}
		}
		seen[session] = sighting{state, now}
		if before, ok := s.seen[session]; ok && before.state == state {
			seen[session] = before
			if lost == "" && now.Sub(before.since) >= patience {
				lost = session
			}
		}
	}
	if s.seen = seen; lost == "" {
		return nil
	}
	return s.take(ctx, lost, strings.Contains(seen[lost].state, takenKey))
}

// take makes the pushes of a session that is lost those of this one, unless another node does. If isTaken, that node
// was lost, too. If some pushes fail, !taken stays, and a later take goes on with them.
func (s *sharing) take(ctx context.Context, session string, isTaken bool) error {
	b, prefix := s.store.Bucket(), outboxPrefix+session
	if err := b.Create(ctx, prefix+takenKey, []byte(s.session+"\n")); errors.Is(err, bucket.ErrExists) && !isTaken {
		return nil
	} else if err != nil && !errors.Is(err, bucket.ErrExists) {
		return err
	}
	names, err := s.list(ctx, session)
	if err != nil {
		return err
	}
	pushes := map[string][]string{} // keys
	for name := range names {
		if push, _, _ := strings.Cut(name, "."); name != aliveKey && name != takenKey {
			pushes[push] = append(pushes[push], prefix+name)
		}
	}
	var failed error
	var renewed time.Time
	for push, keys := range pushes {
		if time.Since(renewed) > renewInterval {
			if err := s.put(ctx, prefix+takenKey, s.session+"\n"); err != nil {
				return errors.Join(failed, err)
			}
			renewed = time.Now()
		}
		err := s.adopt(ctx, prefix+push, names)
		if err == nil {
			err = b.Delete(ctx, keys...)
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("push %s: %w", push[1:], err))
		}
	}
	if failed != nil {
		return failed
	}
	return b.Delete(ctx, prefix+aliveKey, prefix+takenKey)
}

// adopt makes a push of another session one of this session. Whether it was committed is found out later, because a
// slow node can still commit it. names has the marks.
func (s *sharing) adopt(ctx context.Context, key string, names map[string]bool) error {
	body, _, err := s.store.Bucket().Get(ctx, key, maxEvent)
	if errors.Is(err, bucket.ErrNotFound) {
		return nil
	}
	if err != nil && !fault.Is(err, fault.Corrupt) {
		return err
	}
	var e event
	err = cmp.Or(err, json.Unmarshal(body, &e))
	p, parseErr := parsePush(e.Message)
	if err = cmp.Or(err, parseErr); err != nil {
		s.hooks.o.Log.Error("a push in the store is damaged; its webhooks are not delivered", "key", key, "error", err)
		return nil
	}
	r := &sharedPush{sharing: s, push: &p.Push, event: e, queues: s.hooks.queuesFor(p.Repo), done: map[string]bool{},
		unknown: time.Now()}
	for _, q := range r.queues {
		if names["/"+p.ID+"."+q.target.Name] {
			r.done[q.target.Name] = true
		}
	}
	if s.has(p.ID) || len(r.left()) == 0 {
		return nil
	}
	if err := s.keep(ctx, r); err != nil {
		return err
	}
	s.hooks.o.Log.Info("took over the webhooks of a push to another node", "push", p.ID, "repository", p.Repo.String())
	return nil
}
