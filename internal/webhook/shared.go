package webhook

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/bucket"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/receivepack"
)

// Store is the store of a node. With it, another node delivers the pushes of one that is lost.
//
// Before a push can change refs, the bucket gets outbox/SESSION/PUSH. The object is deleted when all targets have the
// push, or if it changed nothing. A session is one process. While it has such objects, it renews outbox/SESSION/!alive.
// Other nodes watch the sessions. When one does not change any more, the node that creates outbox/SESSION/!taken takes
// its pushes: the log of the repository shows which of them were committed. PUSH.TARGET marks a target that has a push
// which others do not have yet. No clocks are compared.
type Store interface {
	Bucket() bucket.Bucket
	// Position returns the ID of a repository, and the number of a record that exists.
	Position(ctx context.Context, repo git.RepoPath) (id string, record uint64, err error)
	// PushResult looks in the log of a repository, after a record, for the one that commits a push. It returns its number
	// and those of the updates that it makes: none if no record commits the push.
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

// sharedPush is a receivepack.Record. The fields are guarded by sharing.mu.
type sharedPush struct {
	*sharing
	push   *receivepack.Push
	event  event
	queues []*queue

	key     string          // without its session it is in that of another node
	left    map[string]bool // targets that do not have it; nil: the push has not ended
	unknown time.Time       // since when the result is not known; zero: it is not, or the push runs
}

func newSharing(h *Hooks, s Store) *sharing {
	return &sharing{hooks: h, store: s, session: rand.Text(), pushes: map[string]*sharedPush{}}
}

// begin implements Hooks.Begin.
func (s *sharing) begin(p *receivepack.Push, queues []*queue) (receivepack.Record, error) {
	ctx, cancel := context.WithTimeout(s.hooks.ctx, defaultTimeout)
	defer cancel()
	id, after, err := s.store.Position(ctx, p.Repo)
	if err != nil {
		return nil, err
	}
	r := &sharedPush{sharing: s, push: p, queues: queues,
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
	key := outboxPrefix + s.session + "/" + r.push.ID
	s.mu.Unlock()
	for range 3 {
		if err = s.store.Bucket().Create(ctx, key, body); err == nil || errors.Is(err, bucket.ErrExists) {
			s.mu.Lock()
			defer s.mu.Unlock()
			r.key, s.pushes[r.push.ID] = key, r
			return nil
		}
	}
	return err
}

// End implements receivepack.Record.
func (r *sharedPush) End(updates []receivepack.Update) error {
	s := r.sharing
	s.mu.Lock()
	if len(updates) == 0 {
		s.forget(r)
		s.mu.Unlock()
		return nil
	}
	r.left, r.unknown = map[string]bool{}, time.Time{}
	for _, q := range r.queues {
		r.left[q.target.Name] = true
	}
	wasTaken := !strings.HasPrefix(r.key, outboxPrefix+s.session+"/")
	s.mu.Unlock()
	if wasTaken { // while the push was running; its process was slow and not lost
		_ = s.keep(s.hooks.ctx, r) // it is delivered anyhow
	}
	_, err := s.hooks.enqueue(r.push, updates, time.Now(), r.queues)
	if err != nil {
		s.mu.Lock()
		r.left = nil
		s.mu.Unlock()
		r.Unknown() // tries again
	}
	return err
}

// Unknown implements receivepack.Record.
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
	if delete(r.left, target); len(r.left) == 0 {
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

// run works until Close.
func (s *sharing) run() {
	tick := time.NewTicker(renewInterval)
	defer tick.Stop()
	isFailing := false
	for i := 0; ; i++ {
		select {
		case <-s.hooks.ctx.Done():
			return
		case <-tick.C:
		}
		err := errors.Join(s.flush(s.hooks.ctx), s.renew(s.hooks.ctx), s.findUnknown(s.hooks.ctx))
		if i%2 == 0 {
			err = errors.Join(err, s.watch(s.hooks.ctx))
		}
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

// renew shows other nodes that this process works, and finds out whether they believe it.
func (s *sharing) renew(ctx context.Context) error {
	s.mu.Lock()
	session, wasAlive := s.session, s.isAlive
	s.isAlive = len(s.pushes) > 0
	if wasAlive && !s.isAlive {
		s.garbage = append(s.garbage, outboxPrefix+session+aliveKey)
	}
	isAlive := s.isAlive
	s.mu.Unlock()
	if !isAlive {
		return nil
	}
	body := []byte(time.Now().UTC().Format(time.RFC3339Nano) + "\n")
	if err := s.store.Bucket().Put(ctx, outboxPrefix+session+aliveKey, bytes.NewReader(body), int64(len(body)),
		sha256.Sum256(body)); err != nil {
		return err
	}
	_, _, err := s.store.Bucket().Get(ctx, outboxPrefix+session+takenKey, maxEvent)
	if errors.Is(err, bucket.ErrNotFound) {
		return nil
	}
	if err == nil {
		s.lose()
	}
	return err
}

// lose begins another session, because another node has taken this one. That node delivers the pushes that have ended.
func (s *sharing) lose() {
	s.mu.Lock()
	s.session, s.isAlive = rand.Text(), false
	lost := map[string]bool{}
	for id, r := range s.pushes {
		if r.left != nil {
			lost[id] = true
			delete(s.pushes, id)
		}
	}
	s.mu.Unlock()
	for _, q := range s.hooks.queues {
		q.drop(lost)
	}
	s.hooks.o.Log.Warn("another node has taken over the deliveries of webhooks of this node", "deliveries", len(lost))
}

// findUnknown looks for pushes whose result was not known when they ended.
func (s *sharing) findUnknown(ctx context.Context) error {
	s.mu.Lock()
	var unknown []*sharedPush
	for _, r := range s.pushes {
		if !r.unknown.IsZero() {
			unknown = append(unknown, r)
		}
	}
	s.mu.Unlock()
	var failed error
	for _, r := range unknown {
		made, record, err := s.store.PushResult(ctx, r.event.Repository, r.event.After, r.push.ID, r.push.Updates)
		if err == nil && (len(made) > 0 || time.Since(r.unknown) > unknownLimit) {
			r.push.Record = record
			err = r.End(made)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// watch checks the sessions of other processes, and takes those that are lost.
func (s *sharing) watch(ctx context.Context) error {
	b, now := s.store.Bucket(), time.Now()
	seen, lost := map[string]sighting{}, []string{}
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
			if now.Sub(before.since) >= patience {
				lost = append(lost, session)
			}
		}
	}
	s.seen = seen
	var failed error
	for _, session := range lost {
		failed = errors.Join(failed, s.take(ctx, session, strings.Contains(seen[session].state, takenKey)))
	}
	return failed
}

// take delivers the pushes of a session that is lost, unless another node does. If isTaken, that node was lost, too.
func (s *sharing) take(ctx context.Context, session string, isTaken bool) error {
	b, prefix := s.store.Bucket(), outboxPrefix+session
	if err := b.Create(ctx, prefix+takenKey, []byte(s.session+"\n")); errors.Is(err, bucket.ErrExists) && !isTaken {
		return nil
	} else if err != nil && !errors.Is(err, bucket.ErrExists) {
		return err
	}
	var pushes []string
	keys := map[string][]string{} // by push
	done := map[string]bool{}     // marks
	for after := prefix + takenKey; ; {
		list, err := b.List(ctx, prefix+"/", after, 1000)
		if err != nil {
			return err
		}
		for _, info := range list {
			name := strings.TrimPrefix(info.Key, prefix+"/")
			push, _, isMark := strings.Cut(name, ".")
			if done[name] = true; !isMark {
				pushes = append(pushes, push)
			}
			keys[push], after = append(keys[push], info.Key), info.Key
		}
		if len(list) < 1000 {
			break
		}
	}
	for _, push := range pushes {
		if err := s.adopt(ctx, prefix+"/"+push, done); err != nil {
			return fmt.Errorf("push %s: %w", push, err)
		}
		if err := b.Delete(ctx, keys[push]...); err != nil {
			return err
		}
	}
	return b.Delete(ctx, prefix+aliveKey, prefix+takenKey)
}

// adopt makes a push of another session one of this session, if it was committed. done has the marks of the session.
func (s *sharing) adopt(ctx context.Context, key string, done map[string]bool) error {
	body, _, err := s.store.Bucket().Get(ctx, key, maxEvent)
	if errors.Is(err, bucket.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	var e event
	err = json.Unmarshal(body, &e)
	var p *interruptedPush
	if err == nil {
		p, err = parsePush(e.Message)
	}
	if err != nil {
		s.hooks.o.Log.Error("a push in the store is damaged; its webhooks are not delivered", "key", key, "error", err)
		return nil
	}
	made, record, err := s.store.PushResult(ctx, e.Repository, e.After, p.ID, p.Updates)
	if err != nil {
		return err
	}
	r := &sharedPush{sharing: s, push: &p.Push, event: e}
	for _, q := range s.hooks.queuesFor(p.Repo) {
		if !done[p.ID+"."+q.target.Name] {
			r.queues = append(r.queues, q)
		}
	}
	if len(made) == 0 || len(r.queues) == 0 {
		return nil
	}
	if err := s.keep(ctx, r); err != nil {
		return err
	}
	s.hooks.o.Log.Info("took over the webhooks of a push to another node", "push", p.ID, "repository", p.Repo.String())
	p.Record = record
	return r.End(made)
}
