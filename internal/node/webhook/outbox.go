package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

const (
	pushesDir = "pushes"
	deadDir   = "dead"
)

// record is a push that has begun.
type record struct {
	hooks  *Hooks
	push   *receivepack.Push
	queues []*queue
	path   string
}

// pushRecord is one push in the outbox.
type pushRecord interface {
	End(updates []receivepack.Update) error
	Unknown()
}

// Begin implements receivepack.Recorder.
func (h *Hooks) Begin(pushes ...*receivepack.Push) error {
	for _, p := range pushes {
		r, err := h.begin(p)
		if err != nil {
			return err
		}
		if r != nil {
			h.begun.Store(p.ID, r)
		}
	}
	return nil
}

// End implements receivepack.Recorder.
func (h *Hooks) End(results ...receivepack.Result) (failed error) {
	for _, result := range results {
		r, ok := h.begun.LoadAndDelete(result.Push.ID)
		switch {
		case !ok:
		case result.IsUnknown:
			r.(pushRecord).Unknown()
		default:
			failed = errors.Join(failed, r.(pushRecord).End(result.Made))
		}
	}
	return failed
}

func (h *Hooks) begin(p *receivepack.Push) (pushRecord, error) {
	queues := h.queuesFor(p.Repo)
	if len(queues) == 0 {
		return nil, nil
	}
	if strings.Trim(p.ID, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefghijklmnopqrstuvwxyz") != "" || p.ID == "" {
		return nil, fmt.Errorf("invalid push ID %.40q", p.ID)
	}
	if h.shared != nil {
		return h.shared.begin(p, queues)
	}
	r := &record{hooks: h, push: p, queues: queues, path: filepath.Join(h.o.Dir, pushesDir, p.ID)}
	return r, disk.ReplaceFile(r.path, encodeMessage("post-receive", time.Now(), p, p.Updates))
}

// End implements pushRecord.
func (r *record) End(updates []receivepack.Update) error {
	if len(updates) > 0 {
		at := time.Now()
		if left, err := r.hooks.enqueue(r.push, updates, at, r.queues); err != nil {
			r.hooks.retryEnqueue(r.push, updates, at, left, r.path)
			return err
		}
	}
	return os.Remove(r.path)
}

// Unknown implements pushRecord. The next process compares the push with the refs.
func (r *record) Unknown() {}

// retryEnqueue repeats enqueue until it succeeds, for example after the disk was full. Then it removes the file of the
// push, if it has one. Until then the push has not ended, and the next server would find out its result.
func (h *Hooks) retryEnqueue(p *receivepack.Push, updates []receivepack.Update, at time.Time, queues []*queue,
	path string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return
	}
	h.running.Go(func() {
		for failures := 1; ; failures++ {
			if h.backoff().Wait(h.ctx, failures, 0) != nil {
				return
			}
			var err error
			if queues, err = h.enqueue(p, updates, at, queues); err == nil {
				_ = os.Remove(path) // if this fails, the deliveries are repeated after the next start
				return
			}
			h.o.Log.Warn("cannot record a push for its webhooks; trying again", "push", p.ID, "repository",
				p.Repo.String(), "error", err)
		}
	})
}

// queuesFor returns the queues of the targets of a repository.
func (h *Hooks) queuesFor(repo git.RepoPath) (queues []*queue) {
	for _, q := range h.queues {
		if q.target.covers(repo) {
			queues = append(queues, q)
		}
	}
	return queues
}

// enqueue adds a delivery to each of the queues. With an error it returns the remaining queues.
func (h *Hooks) enqueue(p *receivepack.Push, updates []receivepack.Update, at time.Time,
	queues []*queue) (left []*queue, err error) {
	body := encodeMessage("post-receive", at, p, updates)
	name := h.newName(p.ID)
	if h.shared != nil && h.shared.has(p.ID) {
		name += sharedSuffix
	}
	for i, q := range queues {
		if err := disk.ReplaceFile(filepath.Join(q.dir, name), body); err != nil {
			return queues[i:], err
		}
		q.add(delivery{name: name, size: int64(len(body)), repo: p.Repo.String(), trace: p.Trace})
	}
	return nil, nil
}

// giveUp abandons the deliveries of a push whose result cannot be found.
func (r *sharedPush) giveUp(reason error) error {
	r.mu.Lock()
	queues := r.left()
	r.mu.Unlock()
	for _, q := range queues {
		d := &delivery{name: r.hooks.newName(r.push.ID)}
		if err := disk.ReplaceFile(filepath.Join(q.dir, d.name), r.event.Message); err != nil {
			return err
		}
		q.abandon(d, "cannot find out whether the push was committed: "+reason.Error())
	}
	return nil
}

// newName returns the name of the file of a delivery.
func (h *Hooks) newName(push string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = max(h.last+1, time.Now().UnixNano())
	return fmt.Sprintf("%020d-%s", h.last, push)
}

// RefValue returns the object ID of a ref. The zero ID means that the ref does not exist.
type RefValue func(ctx context.Context, repo git.RepoPath, ref git.RefName) (git.ObjectID, error)

// Recover delivers the updates of interrupted pushes that were made, as the refs show. Call it before pushes are
// accepted. Pushes with the IDs in active are not over. These pushes, and those whose refs cannot be read now, stay
// until the next start, and are logged.
func (h *Hooks) Recover(ctx context.Context, active []string, value RefValue) error {
	if len(h.queues) == 0 {
		return nil
	}
	dir := filepath.Join(h.o.Dir, pushesDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot read the outbox: %w", err)
	}
	var begun []*interruptedPush
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if isTemporary(e.Name()) {
			_ = os.Remove(path) // the push had not begun
			continue
		}
		p, err := readPush(path)
		if err != nil {
			h.o.Log.Error("cannot read a push in the outbox; keeping it", "file", path, "error", err)
			continue
		}
		begun = append(begun, p)
	}
	slices.SortFunc(begun, func(a, b *interruptedPush) int { return a.at.Compare(b.at) }) // the order of deliveries
	for _, p := range begun {
		if slices.Contains(active, p.ID) {
			h.o.Log.Warn("a push to an earlier server is still running; keeping it in the outbox", "push", p.ID, "repository",
				p.Repo.String())
			continue
		}
		if err := h.resume(ctx, p, begun, value); err != nil {
			h.o.Log.Error("cannot determine the result of an interrupted push; keeping it in the outbox", "push", p.ID,
				"repository", p.Repo.String(), "error", err)
		}
	}
	return nil
}

// interruptedPush is a push that has begun and not ended.
type interruptedPush struct {
	receivepack.Push
	path string
	at   time.Time
}

func readPush(path string) (*interruptedPush, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p, err := parsePush(b)
	if err == nil {
		p.path = path
	}
	return p, err
}

// parsePush is the inverse of encodeMessage.
func parsePush(body []byte) (*interruptedPush, error) {
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	p := &interruptedPush{}
	var err error
	p.ID, p.Options, p.Pusher = m.Push, m.options(), node.Pusher{Name: m.Pusher.Name, Address: m.Pusher.Address}
	if p.Repo, err = git.ParseRepoPath(original(m.Repository, m.RepositoryBytes)); err != nil {
		return nil, err
	}
	if p.at, err = time.Parse(time.RFC3339Nano, m.Time); err != nil {
		return nil, err
	}
	for _, from := range m.Updates {
		var u receivepack.Update
		if u.Ref, err = git.ParseRefName(original(from.Ref, from.RefBytes)); err != nil {
			return nil, err
		}
		if u.Old, err = git.ParseObjectID(from.Old); err != nil {
			return nil, err
		}
		if u.New, err = git.ParseObjectID(from.New); err != nil {
			return nil, err
		}
		p.Updates = append(p.Updates, u)
	}
	return p, nil
}

// isTemporary reports whether a file in the outbox was not written completely.
func isTemporary(name string) bool { return strings.Contains(name, ".") }

// resume ends one interrupted push.
func (h *Hooks) resume(ctx context.Context, p *interruptedPush, begun []*interruptedPush, value RefValue) error {
	var updates []receivepack.Update
	for _, u := range p.Updates {
		now, err := value(ctx, p.Repo, u.Ref)
		if fault.Is(err, fault.NotFound) { // the repository itself
			break
		} else if err != nil {
			return err
		}
		if isResultOf(u, p.Repo, now, begun) {
			updates = append(updates, u)
		}
	}
	if len(updates) > 0 {
		if _, err := h.enqueue(&p.Push, updates, p.at, h.queuesFor(p.Repo)); err != nil {
			return err
		}
	}
	if err := os.Remove(p.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	h.o.Log.Info("recovered an interrupted push", "push", p.ID, "repository", p.Repo.String(), "changed", len(updates),
		"of", len(p.Updates))
	return nil
}

// isResultOf reports whether the current value of a ref is the result of an update, directly or after later interrupted
// updates.
func isResultOf(u receivepack.Update, repo git.RepoPath, now git.ObjectID, begun []*interruptedPush) bool {
	seen := map[git.ObjectID]bool{}
	for at := []git.ObjectID{u.New}; len(at) > 0; {
		id := at[0]
		if at = at[1:]; id == now || id.IsZero() && now.IsZero() {
			return true
		}
		if seen[id] {
			continue
		}
		seen[id] = true
		for _, p := range begun {
			for _, next := range p.Updates {
				if p.Repo == repo && next.Ref == u.Ref && next.Old == id {
					at = append(at, next.New)
				}
			}
		}
	}
	return false
}
