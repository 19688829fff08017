package mirror

import (
	"bytes"
	"context"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/ingest"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

// update brings the repository to one state of the origin. Updates of a mirror run one after the other.
type update struct {
	refs   *origin.Refs // the state to reach; nil when the update has ended
	digest [32]byte     // of refs
	at     time.Time    // when the origin had this state
	auth   node.Secret  // zero when the update has ended
	rule   *Rule        // by which the refs were selected
	first  bool         // the mirror is not complete: everything is fetched

	ctx      context.Context
	cancel   context.CancelFunc
	begin    func()        // closes fetching
	fetching chan struct{} // closed when the origin is asked for the pack: mirror.hydration is set
	done     chan struct{} // closed when err is valid
	err      error
}

// failure is a failed update. The zero value means that the last update did not fail.
type failure struct {
	digest [32]byte
	err    error
	count  int       // of consecutive ones
	until  time.Time // no earlier than that the same state is tried again
}

var updatePauses = retry.Policy{First: time.Second, Max: 5 * time.Minute}

// startUpdate starts an update, or returns one that reaches the same state. While one runs, the new one waits for its
// end; a later state replaces one that waits. forced ignores the pause after a failure. The caller holds r.mu.
func (r *mirror) startUpdate(refs *origin.Refs, auth node.Secret, at time.Time, forced bool) *update {
	if u := r.running; u != nil && u.digest == refs.Digest && r.waiting == nil {
		return u
	}
	if u := r.waiting; u != nil {
		u.refs, u.digest, u.at, u.auth = refs, refs.Digest, at, auth
		return u
	}
	u := &update{refs: refs, digest: refs.Digest, at: at, auth: auth, first: !r.state.Complete,
		fetching: make(chan struct{}), done: make(chan struct{})}
	u.begin = sync.OnceFunc(func() { close(u.fetching) })
	switch {
	case r.gone:
		u.err = errCancelled()
	case r.failed.digest == u.digest && !forced && r.m.now().Before(r.failed.until):
		u.err = r.failed.err
	}
	if u.err != nil {
		u.refs, u.auth = nil, node.Secret{}
		close(u.done)
		return u
	}
	u.ctx, u.cancel = context.WithCancel(r.m.ctx)
	if r.running != nil {
		r.waiting = u
		return u
	}
	r.running = u
	r.m.running.Go(r.runUpdates)
	return u
}

// runUpdates runs the update and those that wait for its end.
func (r *mirror) runUpdates() {
	for u := r.running; u != nil; {
		start := r.m.now()
		result, err := r.apply(u)
		u.cancel()
		next, h := r.endUpdate(u, result, err)
		if h != nil {
			h.release()
		}
		if err == nil {
			r.logUpdate(result, r.m.now().Sub(start))
		}
		if err == nil && u.first && r.m.node.Maintains() {
			r.m.running.Go(r.maintain)
		}
		r.save()
		close(u.done)
		u = next
	}
}

// endUpdate notes the result of an update. It returns the next one, and the pack that the caller has to release.
func (r *mirror) endUpdate(u *update, result ingest.Result, err error) (next *update, h *hydration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u.err, u.refs, u.auth, r.text = err, nil, node.Secret{}, ""
	h, r.hydration = r.hydration, nil
	if r.last.update == u {
		r.forgetRefs(r.last)
	}
	switch {
	case err == nil:
		if u.rule == r.rule { // otherwise the next check updates again
			r.digest = u.digest
		}
		r.state.Complete = true
		if result.IsChange() {
			r.state.Updated = r.m.now().Round(0)
		}
		r.upToDate(u.at)
	case !isRefusal(err): // otherwise another caller may succeed
		r.fail(err)
		count := r.failed.count + 1
		r.failed = failure{digest: u.digest, err: err, count: count, until: r.m.now().Add(updatePauses.Pause(count))}
	}
	r.running, r.waiting = r.waiting, nil
	if r.running != nil {
		r.running.first = !r.state.Complete
	}
	return r.running, h
}

// apply brings the repository to the state of an update.
func (r *mirror) apply(u *update) (ingest.Result, error) {
	limits := []chan struct{}{r.m.updates}
	if u.first {
		limits = []chan struct{}{r.m.firsts, r.m.updates}
	}
	for _, limit := range limits {
		select {
		case limit <- struct{}{}:
			defer func() { <-limit }()
		case <-u.ctx.Done():
			return ingest.Result{}, errCancelled()
		}
	}
	result, err := r.ingest(u)
	if err == nil || origin.IsDown(err) || u.ctx.Err() != nil {
		return result, err
	}
	// the origin may have changed since it listed its refs, so that it refuses to send an old commit
	again, listErr := r.currentRule().list(u.ctx, r.firstPath(), u.auth)
	if listErr != nil || again.Digest == u.digest {
		return result, err
	}
	r.mu.Lock()
	u.refs, u.digest = again, again.Digest
	r.mu.Unlock()
	return r.ingest(u)
}

// ingest has the storage node take over the state of an update.
func (r *mirror) ingest(u *update) (ingest.Result, error) {
	list, err := u.refs.List()
	if err != nil {
		return ingest.Result{}, err
	}
	rule := r.currentRule()
	u.rule = rule
	in := ingest.State{Format: format(u.refs), Head: branch(list), Fsck: r.m.fsck, MaxPack: rule.MaxPack,
		Progress: r.setProgress, Refs: make([]refs.Ref, 0, len(list.Refs))}
	for _, ref := range list.Refs {
		if rule.mirrors(ref.Name) {
			in.Refs = append(in.Refs, refs.Ref{Name: ref.Name, ID: ref.ID})
		}
	}
	in.Fetch = func(ctx context.Context, wants, haves []git.ObjectID) (io.ReadCloser, error) {
		return r.fetch(ctx, u, origin.FetchRequest{Format: in.Format, Wants: wants, Haves: haves})
	}
	return r.m.node.Ingest(u.ctx, r.path, in)
}

// fetch asks the origin for a pack.
func (r *mirror) fetch(ctx context.Context, u *update, request origin.FetchRequest) (io.ReadCloser, error) {
	fetch := func() (io.ReadCloser, error) {
		return r.currentRule().Origin.Fetch(ctx, r.firstPath(), u.auth, request)
	}
	if u.first && len(request.Haves) == 0 {
		return r.hydrate(u, request.Wants, fetch)
	}
	u.begin()
	return fetch()
}

// format returns the object format of a repository at an origin.
func format(r *origin.Refs) git.ObjectFormat {
	if r.Format == 0 {
		return git.SHA1
	}
	return r.Format
}

// branch returns the branch that HEAD points to. For a detached HEAD it is a branch at the same commit, main or master
// first; "" if there is none.
func branch(list *origin.List) (found git.RefName) {
	if list.Head != "" || list.HeadID.IsZero() {
		return list.Head
	}
	for _, ref := range list.Refs {
		if ref.ID != list.HeadID || !strings.HasPrefix(string(ref.Name), "refs/heads/") {
			continue
		}
		if found == "" || ref.Name == "refs/heads/main" || ref.Name == "refs/heads/master" {
			found = ref.Name
		}
	}
	return found
}

// received matches the progress of git index-pack: "Receiving objects:  43% (430/1000), 1.20 MiB | 2.00 MiB/s".
var received = regexp.MustCompile(`Receiving objects: +(\d+)% \([^)]*\)(, [\d.]+ [KMG]?i?B)?`)

// setProgress keeps the last progress in the output of Git.
func (r *mirror) setProgress(output []byte) {
	last := output[bytes.LastIndex(output, []byte("Receiving"))+1:]
	m := received.FindSubmatch(append([]byte("R"), last...))
	if m == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text = string(m[1]) + " %" + string(m[2])
}

// maintain gives the repository a bitmap and a commit-graph after the first update.
func (r *mirror) maintain() {
	_, err := r.m.node.Maintain(r.m.ctx, r.path)
	if err != nil && r.m.ctx.Err() == nil && !fault.Is(err, fault.Exhausted) { // otherwise it is being maintained
		r.m.log.Warn("cannot maintain a mirror", "repository", r.path.String(), "error", err)
	}
}

// maxLoggedRefs is the maximum number of skipped refs in a line of the log.
const maxLoggedRefs = 10

func (r *mirror) logUpdate(i ingest.Result, took time.Duration) {
	if i.IsChange() {
		r.m.log.Info("updated a mirror", "repository", r.path.String(), "refs_created", i.Created,
			"refs_changed", i.Changed, "refs_deleted", i.Deleted, "bytes", i.Bytes, "seconds", took.Seconds())
	}
	if n := len(i.Skipped); n > 0 {
		r.m.log.Warn("skipped refs of an origin", "repository", r.path.String(), "count", n,
			"refs", i.Skipped[:min(n, maxLoggedRefs)])
	}
}

// errCancelled is the error of updates that wait when the mirror is removed or the server shuts down.
func errCancelled() error {
	return fault.Retry(fault.Unavailable, fault.RetrySoon, "the update was cancelled")
}
