package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// commitQueue has the pushes to a repository that are ready. While a record is being appended, others wait for the next
// one, which has all of them.
type commitQueue struct {
	mu        sync.Mutex
	waiting   []*pendingPush
	isRunning bool // commitAll runs
}

// pendingPush is a push that waits for its record.
type pendingPush struct {
	receivepack.Proposal
	ctx    context.Context
	shadow *shadow
	peeled []git.ObjectID // by update: the object that an annotated tag points to
	after  *pendingPush   // of the same shadow, whose changes the push may depend on; or nil
	out    *receivepack.CommitResult

	done    chan struct{}          // closed when the following fields are valid
	refused []*receivepack.Refusal // see receivepack.CommitResult
	result  appended
	err     error
}

// errUploadAgain is the error of a push whose uploads may have been condemned.
var errUploadAgain = errors.New("the objects have to be uploaded again")

// Commit implements receivepack.Shadow.
func (s *shadow) Commit(ctx context.Context, proposals []receivepack.Proposal) []receivepack.CommitResult {
	start := time.Now()
	results := make([]receivepack.CommitResult, len(proposals))
	var pending []*pendingPush
	var last *pendingPush
	for i, p := range proposals {
		last = &pendingPush{Proposal: p, ctx: ctx, shadow: s, after: last, out: &results[i]}
		if last.peeled, last.err = s.peel(p.Updates); last.err == nil {
			pending = append(pending, last)
		}
		last.out.Err = last.err
	}
	for len(pending) > 0 {
		if err := s.uploaded(ctx); err != nil {
			for _, c := range pending {
				c.out.Err = err
			}
			break
		}
		s.enqueue(pending)
		pending = slices.DeleteFunc(pending, func(c *pendingPush) bool { return c.wait(start) })
	}
	return results
}

// wait waits for the record of a push, and sets its result. It reports false if the push has to be enqueued again.
func (p *pendingPush) wait(start time.Time) bool {
	<-p.done
	if errors.Is(p.err, errUploadAgain) {
		return false
	}
	if errors.Is(p.err, receivepack.ErrUnknown) || errors.Is(p.err, replog.ErrBrokenPromise) {
		for _, u := range p.shadow.uploads {
			u.committed = true
		}
	}
	p.out.Refused, p.out.Err = p.refused, p.err
	if p.result.record != nil {
		p.out.Stored.Record = p.result.record.Number
	}
	p.out.Stored.Tries, p.out.Stored.Append = p.result.tries, time.Since(start)
	return true
}

// peel finds the objects that annotated tags point to, so that refs can be listed without objects.
func (s *shadow) peel(updates []receivepack.Update) ([]git.ObjectID, error) {
	peeled := make([]git.ObjectID, len(updates))
	refreshed := false
	for i, u := range updates {
		if u.New.IsZero() || strings.HasPrefix(string(u.Ref), "refs/heads/") { // Git accepts only commits there
			continue
		}
		if !refreshed {
			if err := s.repo.Refresh(); err != nil {
				return nil, err
			}
			refreshed = true
		}
		id, known, err := s.repo.PeelRef(refs.Ref{Name: u.Ref, ID: u.New})
		if err != nil {
			return nil, err
		}
		if !known {
			return nil, fault.New(fault.Invalid, "push not accepted: the tag %s cannot be read", u.Ref)
		}
		peeled[i] = id
	}
	return peeled, nil
}

// enqueue adds pushes to those that wait for a record.
func (r *repository) enqueue(list []*pendingPush) {
	q := &r.commits
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range list {
		p.done, p.err = make(chan struct{}), nil
		q.waiting = append(q.waiting, p)
	}
	if !q.isRunning {
		q.isRunning = true
		r.store.running.Go(r.commitAll)
	}
}

// take returns the pushes that wait, or nil. With last, none means that commitAll ends.
func (q *commitQueue) take(last bool) []*pendingPush {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := q.waiting
	q.waiting = nil
	if last && len(taken) == 0 {
		q.isRunning = false
	}
	return taken
}

// commitAll appends records until no push waits.
func (r *repository) commitAll() {
	for {
		waiting := r.commits.take(true)
		if len(waiting) == 0 {
			return
		}
		r.commitBatch(waiting, false)
	}
}

// commitBatch appends one record for all pushes that are ready when it is made, and ends them. If the record is too
// large, commitBatch tries again without other pushes, and then with each half of them: a push that does not fit does
// not fail others.
func (r *repository) commitBatch(waiting []*pendingPush, wasTooLarge bool) {
	var large *checkpoint
	result, err := r.changeThen(r.store.ctx, func(head *state) (*replog.Record, error) {
		large.close() // of a record that lost
		large = nil
		if !wasTooLarge {
			waiting = append(waiting, r.commits.take(false)...)
		}
		b, err := r.newBatch(head)
		if err != nil {
			return nil, err
		}
		remaining := waiting[:0]
		for _, p := range waiting {
			if err := b.add(p); err != nil {
				p.end(appended{}, err)
				continue
			}
			remaining = append(remaining, p)
		}
		waiting = remaining
		next, err := r.finish(b, wasTooLarge)
		large = b.checkpoint
		return next, err
	}, func(record *replog.Record) {
		if large != nil {
			large.install(record)
		}
		for _, p := range waiting {
			p.shadow.install(record)
		}
	})
	large.close()
	half := len(waiting) / 2
	switch isTooLarge := errors.Is(err, replog.ErrTooLarge); {
	case isTooLarge && !wasTooLarge:
		r.commitBatch(waiting, true)
	case isTooLarge && half > 0:
		r.commitBatch(waiting[:half], true)
		r.commitBatch(waiting[half:], true)
	default:
		for _, p := range waiting {
			p.end(result, err)
		}
	}
}

// finish returns the record of a batch. The error is errNoChange if it changes nothing. If the record would be too
// large with the changes of refs, as it was before if wasTooLarge is set, they are in a new checkpoint.
func (r *repository) finish(b *batch, wasTooLarge bool) (*replog.Record, error) {
	changes := b.changes()
	if len(b.next.Pushes) == 0 || len(changes) == 0 {
		return nil, errNoChange
	}
	if err := r.store.keepEvents(r.store.ctx, b.next, b.events); err != nil {
		return nil, err
	}
	b.next.Refs.Tail = append(b.next.Refs.Tail, replog.TailEntry{Number: b.next.Number, Changes: changes})
	if b.next.Refs.TailBytes() < maxPushedTail && (!wasTooLarge || r.checkSize(b.next) == nil) {
		return b.next, nil
	}
	b.next.Refs = replog.Refs{}
	if err := r.checkSize(b.next); err != nil { // too large even with a checkpoint
		return nil, err
	}
	var err error
	if b.checkpoint, err = r.writeCheckpoint(r.store.ctx, b.head, changes); err != nil {
		return nil, err
	}
	b.next.Refs = b.checkpoint.refs
	return b.next, nil
}

// checkSize returns why a record cannot be encoded.
func (r *repository) checkSize(record *replog.Record) error {
	_, err := record.Encode()
	if large, ok := errors.AsType[*replog.TooLargeError](err); ok {
		return r.tooLarge(large)
	}
	return err
}

// isMade reports whether a push that is in a record, or in the one that is being made, changes its refs.
func (p *pendingPush) isMade() bool {
	return p.err == nil && !slices.ContainsFunc(p.refused, func(r *receivepack.Refusal) bool { return r != nil })
}

// end ends the push with a result.
func (p *pendingPush) end(result appended, err error) {
	p.result, p.err = result, err
	close(p.done)
}

// install moves the packs of the push that a record names into the local copy.
func (s *shadow) install(record *replog.Record) {
	for _, u := range s.uploads {
		pack := record.Pack(u.result.Key)
		if pack == nil || u.committed { // by another push of the shadow
			continue
		}
		u.committed = true
		if err := s.local.Install(record, pack, s.path("objects/pack/"+u.name)); err != nil {
			s.store.log.Warn("cannot keep the pack of a push on this node, it is downloaded again", "repository_id", s.id,
				"error", err)
		}
	}
}
