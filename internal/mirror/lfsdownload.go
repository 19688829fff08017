package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/packhorse-git/packhorse/internal/bulk"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/client"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/origin"
)

const (
	hostDownloads = 8         // concurrent downloads of objects from the LFS servers of one origin
	heldBack      = 64 << 10  // bytes that followers get after the object was verified
	copyBytes     = 128 << 10 // of an object that are read at once
	// finishBytes is the maximum number of missing bytes for which a download without followers goes on.
	finishBytes = 16 << 20

	maxFailures   = 5                // in a row end a download
	progressBytes = 1 << 20          // an attempt that brings so many begins a new row
	firstBackoff  = time.Second / 4  // after a failure; it doubles with each one
	maxRetryAfter = 30 * time.Second // an origin that demands a longer pause fails the download

	wrongTime     = time.Minute      // how long an object is not asked for after the origin sent a wrong one
	maxActions    = 8192             // actions of origins in memory
	actionTime    = 10 * time.Minute // how long one is used if the origin does not say
	actionReserve = 10 * time.Second // one that expires so soon is not used
)

// lfsObjects has the LFS objects of mirrors. It is safe for concurrent use.
type lfsObjects struct {
	m       *Mirrors
	store   *objects.Store
	budget  *lfsBudget
	actions *lru.Cache[actionKey, *client.Action]
	wrong   *lru.Cache[downloadKey, time.Time] // objects that an origin sent wrongly, with the time

	mu        sync.Mutex
	downloads map[downloadKey]*download
	slots     map[string]chan struct{} // by host of the origin
}

// actionKey identifies an object of a repository at an origin, by its URL.
type actionKey struct {
	url string
	lfs.Object
}

// downloadKey identifies an object at an origin, by its host. Other origins cannot delay it.
type downloadKey struct {
	host string
	lfs.Object
}

func newLFSObjects(m *Mirrors, store *objects.Store, limit int64) *lfsObjects {
	l := &lfsObjects{m: m, store: store, budget: newLFSBudget(m, store, limit),
		downloads: make(map[downloadKey]*download), slots: make(map[string]chan struct{})}
	l.actions, _ = lru.New[actionKey, *client.Action](maxActions) // the sizes are valid
	l.wrong, _ = lru.New[downloadKey, time.Time](maxActions)
	return l
}

// known returns an action that the origin gave for an object, or nil. The origin has the object in this repository.
func (l *lfsObjects) known(url string, o lfs.Object) *client.Action {
	key := actionKey{url, o}
	a, _ := l.actions.Get(key)
	if a != nil && !a.IsValid(l.m.now().Add(actionReserve)) {
		l.actions.Remove(key)
		return nil
	}
	return a
}

// remember keeps an action until it expires.
func (l *lfsObjects) remember(url string, o lfs.Object, a *client.Action) {
	if a.Expires.IsZero() {
		a.Expires = l.m.now().Add(actionTime)
	}
	l.actions.Add(actionKey{url, o}, a)
}

// touch notes the use of an object of a mirror.
func (l *lfsObjects) touch(ctx context.Context, path git.RepoPath, o lfs.Object) {
	if r, release, err := l.m.node.LFSRepository(ctx, path); err == nil {
		l.store.Touch(r, o, l.m.now())
		release()
	}
}

// link adds an object that the node has to a mirror. It reports whether the node has it.
func (l *lfsObjects) link(ctx context.Context, path git.RepoPath, o lfs.Object) (bool, error) {
	r, release, err := l.m.node.LFSRepository(ctx, path)
	if err != nil {
		return false, err
	}
	defer release()
	return l.store.Link(r, o)
}

// download is one download of an object. One goroutine writes the part, any number of followers send it to clients
// while it grows. The last one closes it.
type download struct {
	l      *lfsObjects
	key    downloadKey
	server client.Repository // of the caller who began it
	url    string            // of the repository at the origin
	cancel context.CancelFunc

	// Used only by the goroutine.
	action *client.Action // nil: to be asked for
	etag   string         // of the part
	kept   bool           // a mirror has the object

	// Guarded by lfsObjects.mu.
	followers int
	paths     []git.RepoPath // of the mirrors that get the object

	mu      sync.Mutex
	users   int
	part    *objects.Part // nil: there is none yet
	ended   bool
	err     error         // why there is no object; valid if ended
	changed chan struct{} // closed at the next change; nil: no follower waits
}

// send sends an object to a client while it is downloaded. If the origin refuses it, only the caller with whose
// credential it was asked gets the refusal.
func (l *lfsObjects) send(ctx context.Context, x *exchange, d lfs.Download, a *client.Action) error {
	if err := x.response.StartBulk(true); err != nil {
		return err
	}
	for try := 1; ; try++ {
		y, leads, err := l.join(x, d.Object, a)
		if err != nil {
			return err
		}
		x.outcome = node.Outcome{Command: node.CommandLFSDownload, Objects: 1, Mirror: node.MirrorRelay, Pack: "follow"}
		if leads {
			x.outcome.Pack = "miss"
		}
		err = y.follow(ctx, x, d)
		l.leave(y)
		if err == nil || x.outcome.Bytes > 0 || leads || try == maxTries || !isOfCaller(err) {
			return err
		}
	}
}

// join returns the download of an object, with the caller as a follower. leads reports whether it began for this
// caller.
func (l *lfsObjects) join(x *exchange, o lfs.Object, a *client.Action) (y *download, leads bool, err error) {
	key := downloadKey{x.rule.Origin.Host(), o}
	if at, ok := l.wrong.Get(key); ok && l.m.now().Sub(at) < wrongTime {
		return nil, false, wrongObject(key, client.ErrWrong)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	y = l.downloads[key]
	if leads = y == nil; leads {
		if l.m.ctx.Err() != nil {
			return nil, false, fault.Retry(fault.Unavailable, fault.RetrySoon, "the server is shutting down")
		}
		y = &download{l: l, key: key, server: x.server(), url: x.mirror.originURL(), action: a, users: 1}
		l.downloads[key] = y
		ctx, cancel := context.WithCancel(l.m.ctx)
		y.cancel = cancel
		l.m.running.Go(func() { y.run(ctx) })
	}
	if !slices.Contains(y.paths, x.mirror.path) {
		y.paths = append(y.paths, x.mirror.path)
	}
	y.followers++
	y.mu.Lock()
	defer y.mu.Unlock()
	y.users++
	return y, leads, nil
}

// leave removes a follower. A download without followers ends, unless it is nearly done.
func (l *lfsObjects) leave(y *download) {
	l.mu.Lock()
	y.followers--
	if y.followers == 0 {
		_, size, ended, _, _ := y.state()
		if left := y.key.Size - size; !ended && left > finishBytes && left > size {
			y.cancel()
			l.removeLocked(y) // later callers begin another one
		}
	}
	l.mu.Unlock()
	y.release()
}

// removeLocked lets later requests begin a new download. The caller holds the lock.
func (l *lfsObjects) removeLocked(y *download) {
	if l.downloads[y.key] == y {
		delete(l.downloads, y.key)
	}
}

// release removes a user. After the last one the part is closed.
func (y *download) release() {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.users--; y.users == 0 && y.part != nil {
		_ = y.part.Close()
	}
}

// state returns what there is for a follower, and a channel that is closed when there is more.
func (y *download) state() (file *os.File, size int64, ended bool, err error, changed <-chan struct{}) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.changed == nil && !y.ended {
		y.changed = make(chan struct{})
	}
	if y.part != nil {
		file, size = y.part.File(), y.part.Size()
	}
	return file, size, y.ended, y.err, y.changed
}

// notify changes the state and wakes the waiting followers.
func (y *download) notify(change func()) {
	y.mu.Lock()
	defer y.mu.Unlock()
	change()
	if y.changed != nil {
		close(y.changed)
		y.changed = nil
	}
}

// follow sends the part to a client while it grows. The last bytes follow when the object is verified, so that a wrong
// one does not look complete.
func (y *download) follow(ctx context.Context, x *exchange, d lfs.Download) error {
	end := d.Size
	if d.Length >= 0 {
		end = min(end, d.Offset+d.Length)
	}
	start, isBegun := time.Now(), false
	for pos := d.Offset; ; {
		file, size, ended, err, changed := y.state()
		if ended && err != nil {
			return err
		}
		ready := min(size, end)
		if !ended {
			ready = min(size, end-heldBack)
		}
		if !isBegun && (ready > pos || ended) {
			isBegun = true
			x.originTime += time.Since(start)
			x.response.SetLength(end - d.Offset)
		}
		if ready > pos {
			section := bulk.Section{File: file, Offset: pos, N: ready - pos}
			n, err := io.Copy(x.response, &section)
			x.outcome.Bytes += n
			if section.Err() != nil {
				return section.Err()
			}
			if err != nil {
				return &node.ClientConnError{Err: err}
			}
			pos = ready
		}
		if ended {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// run downloads the object and adds it to the mirrors of all followers.
func (y *download) run(ctx context.Context) {
	defer y.cancel()
	l, o := y.l, y.key.Object
	leave, err := l.enter(ctx, y.key.host)
	isReserved := false
	if err == nil {
		if err = l.budget.reserve(ctx, o); err == nil {
			isReserved = true
			err = y.fill(ctx)
		}
		leave()
	}
	for i := 0; ; i++ {
		l.mu.Lock()
		if err != nil || i == len(y.paths) {
			l.removeLocked(y)
			l.mu.Unlock()
			break
		}
		path := y.paths[i]
		l.mu.Unlock()
		if failure := y.keep(path); failure != nil {
			l.m.log.Warn("cannot keep an LFS object of a mirror", "repository", path.String(), "object", o.OID.String(),
				"error", failure)
		}
	}
	if isReserved {
		l.budget.release(o.Size, y.kept)
	}
	l.m.metrics.lfs.downloaded(err)
	if err != nil && ctx.Err() == nil && !errors.Is(err, client.ErrWrong) {
		l.m.log.Warn("cannot download an LFS object", "origin", y.key.host, "repository", y.server.Path, "object",
			o.OID.String(), "error", err)
	}
	y.notify(func() { y.ended, y.err = true, err })
	y.release()
}

// enter waits until another download from the host of an origin may run.
func (l *lfsObjects) enter(ctx context.Context, host string) (leave func(), err error) {
	l.mu.Lock()
	slots := l.slots[host]
	if slots == nil {
		slots = make(chan struct{}, hostDownloads)
		l.slots[host] = slots
	}
	l.mu.Unlock()
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// keep adds the object to a mirror, also if no follower is left.
func (y *download) keep(path git.RepoPath) error {
	r, release, err := y.l.m.node.LFSRepository(y.l.m.ctx, path)
	if err != nil {
		return err
	}
	defer release()
	if y.kept {
		_, err = y.l.store.Link(r, y.key.Object)
		return err
	}
	err = y.part.Commit(r, y.key.Object)
	y.kept = err == nil
	return err
}

// fill downloads the object into the part and verifies it.
func (y *download) fill(ctx context.Context) error {
	part, err := y.l.store.Create()
	if err != nil {
		return err
	}
	y.notify(func() { y.part = part })
	for failures := 0; ; failures++ {
		before := part.Size()
		isFinal, err := y.receive(ctx)
		if err == nil {
			break
		}
		if part.Size()-before >= progressBytes {
			failures = 0
		}
		if isFinal || failures == maxFailures {
			return err
		}
		if err := y.pause(ctx, err, failures); err != nil {
			return err
		}
	}
	if err := part.Verify(y.key.Object); err != nil {
		return y.noteWrong(err)
	}
	return nil
}

// noteWrong logs that the origin sent another object, and keeps it from being asked for again at once.
func (y *download) noteWrong(err error) error {
	y.l.wrong.Add(y.key, y.l.m.now())
	err = wrongObject(y.key, err)
	y.l.m.log.Error("an origin sent a wrong LFS object", "origin", y.key.host, "repository", y.server.Path,
		"object", y.key.OID.String(), "error", err)
	return err
}

func wrongObject(key downloadKey, err error) error {
	return &fault.Error{Kind: fault.Unavailable, Msg: fmt.Sprintf("origin %s sent another LFS object than %s", key.host,
		key.OID), RetryAfter: fault.RetryMuchLater, Err: errors.Join(client.ErrWrong, err)}
}

// pause waits after a failure. The error is why there is no other attempt.
func (y *download) pause(ctx context.Context, failure error, failures int) error {
	wait := firstBackoff << failures
	if e, ok := errors.AsType[*origin.Error](failure); ok {
		if e.RetryAfter > maxRetryAfter {
			return failure
		}
		wait = max(wait, e.RetryAfter)
	}
	timer := time.NewTimer(wait + rand.N(wait/4))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// receive continues the part with one request. isFinal means that another attempt would fail as well.
func (y *download) receive(ctx context.Context) (isFinal bool, err error) {
	isNew := y.action == nil || !y.action.IsValid(y.l.m.now())
	if isNew {
		if isFinal, err = y.ask(ctx); err != nil {
			return isFinal, err
		}
	}
	content, err := y.server.Download(ctx, y.action, y.key.Object, y.part.Size(), y.etag)
	if err != nil {
		return y.refused(err, isNew), err
	}
	defer content.Body.Close()
	if content.Offset == 0 && y.part.Size() > 0 {
		if isFinal, err = y.compare(content.Body); err != nil {
			return isFinal, err
		}
	}
	y.etag = content.ETag
	return y.copy(ctx, content.Body)
}

// ask asks the origin for an action.
func (y *download) ask(ctx context.Context) (isFinal bool, err error) {
	answers, err := y.server.Batch(ctx, lfs.Batch{Objects: []lfs.Object{y.key.Object}})
	switch {
	case err != nil:
		return isOfCaller(err), err
	case answers[0].State == lfs.Refused:
		return true, answers[0].Err
	case answers[0].State == lfs.Missing:
		return true, fault.New(fault.NotFound, "the repository has no LFS object %s", y.key.OID)
	}
	y.action = answers[0].Action
	y.l.remember(y.url, y.key.Object, y.action)
	return false, nil
}

// refused decides about another attempt after a refused download. An action can expire early, unless it is new.
func (y *download) refused(err error, isNew bool) (isFinal bool) {
	if errors.Is(err, client.ErrWrong) { // by its length
		_ = y.noteWrong(err)
		return true
	}
	e, ok := errors.AsType[*origin.Error](err)
	if !ok {
		return true
	}
	switch e.Status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusGone:
		y.l.actions.Remove(actionKey{y.url, y.key.Object})
		y.action = nil
		return isNew
	}
	return false
}

// compare reads what the part has already. Clients may have got it.
func (y *download) compare(content io.Reader) (isFinal bool, err error) {
	var got, had [copyBytes / 4]byte
	for pos, size := int64(0), y.part.Size(); pos < size; {
		n := int(min(int64(len(got)), size-pos))
		if _, err := io.ReadFull(content, got[:n]); err != nil {
			return false, cutOff(err)
		}
		if _, err := y.part.File().ReadAt(had[:n], pos); err != nil {
			return true, err
		}
		if !bytes.Equal(got[:n], had[:n]) {
			return true, y.noteWrong(errors.New("its beginning differs from an earlier answer"))
		}
		pos += int64(n)
	}
	return false, nil
}

// copy appends content to the part.
func (y *download) copy(ctx context.Context, content io.Reader) (isFinal bool, err error) {
	buffer := make([]byte, copyBytes)
	for {
		n, err := content.Read(buffer)
		if n > 0 {
			if int64(n) > y.key.Size-y.part.Size() {
				return true, y.noteWrong(errors.New("it is longer"))
			}
			if err := y.write(ctx, buffer[:n]); err != nil {
				return true, err
			}
			y.l.m.metrics.lfs.bytes.Add(float64(n))
			y.notify(func() {})
		}
		switch {
		case err != nil && y.part.Size() == y.key.Size:
			return false, nil
		case err != nil:
			return ctx.Err() != nil, cutOff(err)
		}
	}
}

// write appends to the part. A full disk costs old objects of the cache.
func (y *download) write(ctx context.Context, p []byte) error {
	_, err := y.part.Write(p)
	if fault.Is(err, fault.Full) && y.l.budget.free(ctx, y.key.Size) {
		_, err = y.part.Write(p)
	}
	return err
}

// cutOff returns the error of a content that ended early.
func cutOff(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fault.Wrap(fault.Unavailable, "the origin cut off an LFS object", io.ErrUnexpectedEOF)
	}
	return err
}
