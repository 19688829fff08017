package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

const (
	hostDownloads = 8                     // concurrent downloads of objects from the LFS servers of one origin
	repoDownloads = 6                     // of them from one repository, so that a slow one does not stop the others
	slotTime      = 10 * time.Second      // how long a download waits for the end of others
	compareBytes  = 32 << 10              // of an object that are compared at once
	blockBytes    = 256 << 10             // of an object that are written at once, at multiples of it
	blockDelay    = 30 * time.Millisecond // after a write, an incomplete block is written, too
	maxFailures   = 5                     // in a row end a download
	progressBytes = 1 << 20               // an attempt that brings so many begins a new row
	reserveBytes  = 8 << 20               // of the cache that are reserved ahead of what has arrived
	maxRetryAfter = 30 * time.Second      // an origin that demands a longer pause fails the download
)

// run downloads the object and adds it to the mirrors of all followers.
func (y *download) run(ctx context.Context) {
	defer y.cancel()
	l, o := y.l, y.key.Object
	leave, err := l.enter(ctx, y.key.host, y.url)
	if err == nil {
		err = y.fill(ctx)
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
	l.budget.release(y.reserved, y.kept)
	l.m.metrics.downloaded(err)
	if err != nil && ctx.Err() == nil && !errors.Is(err, origin.ErrWrongObject) && !fault.Is(err, fault.Exhausted) {
		l.m.log.Warn("cannot download an LFS object", "origin", y.key.host, "repository", y.server.Path, "object",
			o.OID.String(), "error", err)
	}
	y.change(func() { y.ended, y.err = true, err })
	y.release()
}

// enter waits until another download from a repository at the host of an origin may run. It is Exhausted after
// slotTime.
func (l *lfsObjects) enter(ctx context.Context, host, url string) (leave func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, slotTime, fault.Retry(fault.Exhausted, fault.RetryLater,
		"too many downloads of LFS objects from origin %s", host))
	defer cancel()
	ofRepository, ofHost := l.slotsOf(url, repoDownloads), l.slotsOf(host, hostDownloads)
	select {
	case ofRepository <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case ofHost <- struct{}{}:
		return func() { <-ofHost; <-ofRepository }, nil
	case <-ctx.Done():
		<-ofRepository
		return nil, context.Cause(ctx)
	}
}

// slotsOf returns the slots of a host, or of a repository by its URL.
func (l *lfsObjects) slotsOf(key string, n int) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.slots[key] == nil {
		l.slots[key] = make(chan struct{}, n)
	}
	return l.slots[key]
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
	if err = y.part.Commit(r, y.key.Object); err == nil {
		y.kept = true
		y.l.proven.Add(y.key, struct{}{})
	}
	return err
}

// fill downloads the object into the part and verifies it.
func (y *download) fill(ctx context.Context) error {
	if y.key.Size > y.l.budget.limit {
		return y.l.budget.tooLarge(y.key.Object)
	}
	part, err := y.l.store.Create()
	if err != nil {
		return err
	}
	y.change(func() { y.part = part })
	for failures := 0; ; failures++ {
		before := part.Size()
		isFinal, err := y.receive(ctx)
		if err == nil {
			break
		}
		if part.Size()-before >= progressBytes {
			failures = 0
		}
		if isFinal || failures == maxFailures || part.Size() == 0 && y.isStopped() {
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

// isStopped reports whether the origin gets no requests at present, so that no client has to wait for the download.
func (y *download) isStopped() bool {
	var target *url.URL
	if y.action != nil {
		target = y.action.URL
	}
	return y.server.Origin.IsStopped(target)
}

// noteWrong logs that the origin sent another object, and keeps it from being asked for again at once.
func (y *download) noteWrong(err error) error {
	y.l.wrong.Add(actionKey{y.url, y.key.Object}, y.l.m.now())
	err = wrongObject(y.key, err)
	y.l.m.log.Error("an origin sent a wrong LFS object", "origin", y.key.host, "repository", y.server.Path,
		"object", y.key.OID.String(), "error", err)
	return err
}

func wrongObject(key downloadKey, err error) error {
	return &fault.Error{Kind: fault.Unavailable, Msg: fmt.Sprintf("origin %s sent another LFS object than %s", key.host,
		key.OID), RetryAfter: fault.RetryMuchLater, Err: errors.Join(origin.ErrWrongObject, err)}
}

var downloadPauses = retry.Policy{First: 300 * time.Millisecond, Max: 10 * time.Second}

// pause waits after a failure. The error is why there is no other attempt.
func (y *download) pause(ctx context.Context, failure error, failures int) error {
	hint := time.Duration(0)
	if e, ok := errors.AsType[*origin.Error](failure); ok {
		if e.RetryAfter > maxRetryAfter {
			return failure
		}
		hint = e.RetryAfter
	}
	return downloadPauses.Wait(ctx, failures+1, hint)
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
	if errors.Is(err, origin.ErrWrongObject) { // by its length
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
	var got, had [compareBytes]byte
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

// blocks has the buffers of downloads.
var blocks = sync.Pool{New: func() any { return new([blockBytes]byte) }}

// copy appends content to the part, and does not wait for the end of the response after the object's last byte. It
// writes whole blocks, so that the pages of the page cache are large, and each later download of the file takes less
// CPU time. Bytes that are older than blockDelay are written with the next ones.
func (y *download) copy(ctx context.Context, content io.Reader) (isFinal bool, err error) {
	block := blocks.Get().(*[blockBytes]byte)
	defer blocks.Put(block)
	from := y.part.Size() % blockBytes // of the bytes in the block that are not written
	to, left, written := from, y.key.Size-y.part.Size(), time.Now()
	for {
		n, err := content.Read(block[to:min(blockBytes, to+left)])
		to, left = to+int64(n), left-int64(n)
		if to == blockBytes || left == 0 || err != nil || time.Since(written) >= blockDelay {
			if failure := y.write(ctx, block[from:to]); failure != nil {
				return true, failure
			}
			from, written = to%blockBytes, time.Now()
			to = from
		}
		switch {
		case left == 0:
			return false, nil
		case err != nil:
			return ctx.Err() != nil, cutOff(err)
		}
	}
}

// write appends to the part, and wakes the followers. A full disk costs old objects of the cache.
func (y *download) write(ctx context.Context, p []byte) error {
	if err := y.reserve(ctx, y.part.Size()+int64(len(p))); err != nil {
		return err
	}
	n, err := y.part.Write(p)
	if fault.Is(err, fault.Full) && y.l.budget.free(ctx, y.key.Size) {
		_, err = y.part.Write(p[n:])
	}
	if err == nil {
		y.change(func() {})
	}
	return err
}

// reserve takes space in the cache for the first n bytes of the object and some more. An origin that promises an object
// and does not send it must not cost others their place.
func (y *download) reserve(ctx context.Context, n int64) error {
	if n <= y.reserved {
		return nil
	}
	step := min(n+reserveBytes, y.key.Size) - y.reserved
	err := y.l.budget.reserve(ctx, step)
	if err == nil {
		y.reserved += step
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
