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
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/receivepack"
)

const (
	pushesDir = "pushes"
	deadDir   = "dead"
	newSuffix = ".new"
)

// record is a push that was begun.
type record struct {
	hooks  *Hooks
	push   *receivepack.Push
	queues []*queue
	path   string
}

// none is the record of a push that nobody is told of.
type none struct{}

func (none) End([]receivepack.Update) error { return nil }

// Begin notes that a push may be about to change refs.
func (h *Hooks) Begin(p *receivepack.Push) (receivepack.Record, error) {
	var queues []*queue
	for _, q := range h.queues {
		if q.target.covers(p.Repo) {
			queues = append(queues, q)
		}
	}
	if len(queues) == 0 {
		return none{}, nil
	}
	if strings.Trim(p.ID, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefghijklmnopqrstuvwxyz") != "" || p.ID == "" {
		return nil, fmt.Errorf("%.40q cannot be the ID of a push", p.ID)
	}
	r := &record{hooks: h, push: p, queues: queues, path: filepath.Join(h.o.Dir, pushesDir, p.ID)}
	return r, write(r.path, encode("post-receive", time.Now(), p, p.Updates))
}

// End notes which updates came to be.
func (r *record) End(done []receivepack.Update) error {
	if len(done) > 0 {
		at := time.Now()
		if left, err := r.hooks.enqueue(r.push, done, at, r.queues); err != nil {
			r.hooks.again(r, done, at, left)
			return err
		}
	}
	return os.Remove(r.path)
}

// again tries to note what could not be noted, as on a full disk, until it can. Until then the push stays begun: after an end of the server it is
// held against the refs.
func (h *Hooks) again(r *record, done []receivepack.Update, at time.Time, queues []*queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return
	}
	h.running.Go(func() {
		for failures := 1; ; failures++ {
			select {
			case <-h.ctx.Done():
				return
			case <-time.After(h.pause(failures)):
			}
			var err error
			if queues, err = h.enqueue(r.push, done, at, queues); err == nil {
				_ = os.Remove(r.path) // or it comes again after the next start
				return
			}
			h.o.Log.Warn("a push cannot be noted for its webhooks; it will be tried again", "push", r.push.ID, "repository", r.push.Repo.String(), "error", err)
		}
	})
}

// enqueue notes a delivery for each of the queues. With an error it tells for which it could not.
func (h *Hooks) enqueue(p *receivepack.Push, done []receivepack.Update, at time.Time, queues []*queue) (left []*queue, err error) {
	body := encode("post-receive", at, p, done)
	h.mu.Lock()
	h.last = max(h.last+1, time.Now().UnixNano())
	name := fmt.Sprintf("%020d-%s", h.last, p.ID)
	h.mu.Unlock()
	for i, q := range queues {
		if err := write(filepath.Join(q.dir, name), body); err != nil {
			return queues[i:], err
		}
		q.add(delivery{name: name, size: int64(len(body)), repo: p.Repo.String(), trace: p.Trace})
	}
	return nil, nil
}

// write makes a file that is whole and on disk, or is not there.
func write(path string, b []byte) error {
	err := writeSynced(path+newSuffix, b)
	if err == nil {
		err = os.Rename(path+newSuffix, path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		_ = os.Remove(path + newSuffix)
	}
	return err
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir brings a directory's entries to the disk.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Current tells what a ref points at now; the zero ID: it does not exist.
type Current func(ctx context.Context, repo git.RepoPath, ref git.RefName) (git.ObjectID, error)

// Recover delivers what came to be of the pushes that a crash cut off, as the refs tell. It is called before pushes are taken. What cannot be found
// out now stays for the next start, as do pushes that are still alive, by their IDs; the log says so.
func (h *Hooks) Recover(ctx context.Context, alive []string, current Current) error {
	if len(h.queues) == 0 {
		return nil
	}
	dir := filepath.Join(h.o.Dir, pushesDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read the outbox: %w", err)
	}
	var begun []*interrupted
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasSuffix(e.Name(), newSuffix) {
			_ = os.Remove(path) // it was never whole: nothing had begun
			continue
		}
		p, err := readPush(path)
		if err != nil {
			h.o.Log.Error("a push in the outbox cannot be read; it stays", "file", path, "error", err)
			continue
		}
		begun = append(begun, p)
	}
	slices.SortFunc(begun, func(a, b *interrupted) int { return a.at.Compare(b.at) }) // they are delivered in this order
	for _, p := range begun {
		if slices.Contains(alive, p.ID) {
			h.o.Log.Warn("a push of the server before this one is not over; it stays in the outbox", "push", p.ID, "repository", p.Repo.String())
			continue
		}
		if err := h.resume(ctx, p, begun, current); err != nil {
			h.o.Log.Error("what became of a push cannot be found out now; it stays in the outbox", "push", p.ID, "repository", p.Repo.String(), "error", err)
		}
	}
	return nil
}

// interrupted is a push that was begun and not ended.
type interrupted struct {
	receivepack.Push
	path string
	at   time.Time
}

func readPush(path string) (*interrupted, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var m message
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, err
	}
	p := &interrupted{path: path}
	p.ID, p.Options, p.Pusher = m.Push, m.options(), node.Pusher{Name: m.Pusher.Name, Address: m.Pusher.Address}
	if p.Repo, err = git.ParseRepoPath(exact(m.Repository, m.RepositoryBytes)); err != nil {
		return nil, err
	}
	if p.at, err = time.Parse(time.RFC3339Nano, m.Time); err != nil {
		return nil, err
	}
	for _, from := range m.Updates {
		var u receivepack.Update
		if u.Ref, err = git.ParseRefName(exact(from.Ref, from.RefBytes)); err != nil {
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

// resume ends one of the pushes that were begun.
func (h *Hooks) resume(ctx context.Context, p *interrupted, begun []*interrupted, current Current) error {
	var done []receivepack.Update
	for _, u := range p.Updates {
		now, err := current(ctx, p.Repo, u.Ref)
		if fault.Is(err, fault.NotFound) { // the repository itself
			break
		} else if err != nil {
			return err
		}
		if leads(u, p.Repo, now, begun) {
			done = append(done, u)
		}
	}
	if len(done) > 0 {
		var queues []*queue
		for _, q := range h.queues {
			if q.target.covers(p.Repo) {
				queues = append(queues, q)
			}
		}
		if _, err := h.enqueue(&p.Push, done, p.at, queues); err != nil {
			return err
		}
	}
	if err := os.Remove(p.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	h.o.Log.Info("a push that was cut off is settled", "push", p.ID, "repository", p.Repo.String(), "changed", len(done), "of", len(p.Updates))
	return nil
}

// leads tells whether what a ref points at now comes of an update: by itself, or by others after it that were cut off too.
func leads(u receivepack.Update, repo git.RepoPath, now git.ObjectID, begun []*interrupted) bool {
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
