package objects

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

// Upload reads an object, or a part of it, into a repository. The object is on disk, and size is u.Size, if there is no
// error and u.Partial is false. Otherwise size is the number of bytes with which another upload can continue.
//
// The error is Invalid for content that is not the object, an end before u.Size, an invalid offset, or an object above
// the maximum. It is Full if the disk or the quota has no room, and NotFound if the repository was removed. It is
// Exists if another upload has continued this one, because the server saw the client's new connection first, or if
// fewer bytes than u.Offset are here. It is Cancelled if the content cannot be read, unless that error has a kind.
func (s *Store) Upload(ctx context.Context, r Repository, u lfs.Upload, content io.Reader) (size int64, err error) {
	size, err = s.upload(ctx, r, u, content)
	result := "ok"
	switch {
	case err != nil:
		result = Reason(err)
	case size < u.Size:
		result = "partial"
	}
	s.metrics.uploads.WithLabelValues(result).Inc()
	return size, err
}

// upload is Upload without its metric.
func (s *Store) upload(ctx context.Context, r Repository, u lfs.Upload, content io.Reader) (int64, error) {
	if r.Purged[u.OID] {
		return 0, ErrPurged(u.OID)
	}
	release, err := s.reserve(ctx, r, u)
	if err != nil {
		return 0, err
	}
	defer release()
	if r.Remote != nil {
		grow, end, err := r.Remote.Begin(ctx, u.Object)
		if err != nil {
			return 0, err
		}
		defer end()
		content = &growingReader{content, u.Offset, grow}
	}
	to, err := makeTree(r)
	if err != nil {
		return 0, writeError(err)
	}
	defer to.Close()
	p, writer, err := s.acquirePart(ctx, r, u)
	if err != nil {
		return 0, err
	}
	err = p.receive(ctx, writer, u, content)
	if err == nil && p.Size() == u.Size {
		err = p.finish(ctx, writer, r, to, u.Object)
	}
	if err == nil && !p.isShared {
		s.expire(s.partPath(r, u.OID)) // of an upload that was interrupted before
	}
	size := s.releasePart(p, writer, err)
	if err == nil && size == u.Size && r.Remote != nil {
		err = r.Remote.Put(ctx, u.Object)
	}
	return size, err
}

// growingReader makes room for bytes before it reads them.
type growingReader struct {
	content io.Reader
	size    int64 // bytes of the object that were read
	grow    func(bytes int64) error
}

// Read implements io.Reader.
func (r *growingReader) Read(b []byte) (int, error) {
	if err := r.grow(r.size + int64(len(b))); err != nil {
		return 0, err
	}
	n, err := r.content.Read(b)
	r.size += int64(n)
	return n, err
}

// part returns the part with a path, which it adds to the table if necessary.
func (s *Store) part(path string) *Part {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.parts[path]
	if p == nil {
		p = s.newPart(path)
		p.isShared = true
		s.parts[path] = p
	}
	return p
}

// acquirePart returns the part of an upload with a file that ends at u.Offset, and the number of the upload. If another
// upload writes to the part, an upload from the beginning gets a part of its own, and any other one takes over.
func (s *Store) acquirePart(ctx context.Context, r Repository, u lfs.Upload) (*Part, uint64, error) {
	if u.Offset < 0 || u.Offset > u.Size {
		return nil, 0, fault.New(fault.Invalid, "offset %d is outside of the object's %d bytes", u.Offset, u.Size)
	}
	path := s.partPath(r, u.OID)
	for {
		p := s.part(path)
		writer, err := p.acquire(ctx, u)
		switch {
		case err == nil:
			return p, writer, nil
		case errors.Is(err, errRemoved):
			s.dropPart(p)
		case !errors.Is(err, errInUse):
			s.releasePart(p, 0, err)
			return nil, 0, err
		case u.Offset > 0:
			return nil, 0, fault.Retry(fault.Unavailable, fault.RetryLater, "another process of the server has this upload")
		default:
			own, err := s.Create()
			if err != nil {
				return nil, 0, err
			}
			own.setWriter()
			return own, own.writer, nil
		}
	}
}

// errRemoved means that a part's file was removed before the part could be used.
var errRemoved = errors.New("the part was removed")

// acquire makes an upload the only one that writes to the part. The error is errRemoved or errInUse if that is not
// possible.
func (p *Part) acquire(ctx context.Context, u lfs.Upload) (writer uint64, err error) {
	if !p.mu.TryAcquire(1) {
		if u.Offset == 0 {
			return 0, errInUse
		}
		if err := p.mu.Acquire(ctx, 1); err != nil {
			return 0, err
		}
	}
	defer p.mu.Release(1)
	if p.isRemoved {
		return 0, errRemoved
	}
	if p.writer != 0 && u.Offset == 0 {
		return 0, errInUse
	}
	if p.file == nil {
		if err := p.open(os.O_CREATE); err != nil {
			return 0, err
		}
		info, err := p.file.Stat()
		if err != nil {
			return 0, err
		}
		if info.Size() != p.Size() {
			p.hash = nil
			p.size.Store(info.Size())
		}
	}
	if u.Offset > p.Size() {
		return 0, fault.New(fault.Exists, "offset %d: only %d bytes of the object have arrived", u.Offset, p.Size())
	}
	if p.hash == nil || u.Offset < p.Size() {
		if err := p.rehash(ctx, u.Offset); err != nil {
			p.clearWriter()
			return 0, writeError(err)
		}
	}
	p.clearWriter()
	p.setWriter()
	return p.writer, nil
}

// setWriter lets a new upload write to the part. The caller holds p.mu.
func (p *Part) setWriter() {
	p.writers++
	p.writer = p.writers
	now := &progress{done: make(chan struct{})}
	now.arrived()
	p.running.Store(now)
}

// clearWriter ends the right of an upload to write to the part, if there is one. The caller holds p.mu.
func (p *Part) clearWriter() {
	p.writer = 0
	if before := p.running.Swap(nil); before != nil {
		close(before.done)
	}
}

// receive appends content until u.Size bytes have arrived or the content ends.
func (p *Part) receive(ctx context.Context, writer uint64, u lfs.Upload, content io.Reader) error {
	buf := p.store.buffers.Get().(*[bufferSize]byte)
	defer p.store.buffers.Put(buf)
	for size := u.Offset; ; {
		n, readErr := fill(content, buf[:min(bufferSize, u.Size-size+1)])
		if int64(n) > u.Size-size {
			return wrongLength.error(fault.Invalid, "object %s: the content has more than %d bytes", u.OID, u.Size)
		}
		if err := p.append(ctx, writer, buf[:n]); err != nil {
			return err
		}
		size += int64(n)
		switch {
		case readErr == io.EOF:
			if size < u.Size && !u.Partial {
				return truncated.error(fault.Invalid, "object %s: the content ends after %d of %d bytes", u.OID, size, u.Size)
			}
			return nil
		case readErr != nil:
			if fault.KindOf(readErr) == fault.Internal {
				return fault.Wrap(fault.Cancelled, "the upload was interrupted", readErr)
			}
			return readErr
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// fill reads until the buffer is full or there is an error, which is io.EOF at the end of the content only.
func fill(content io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var read int
		read, err = content.Read(buf[n:])
		n += read
	}
	return n, err
}

// append is Write for the upload with this number.
func (p *Part) append(ctx context.Context, writer uint64, b []byte) error {
	if err := p.mu.Acquire(ctx, 1); err != nil {
		return err
	}
	defer p.mu.Release(1)
	if p.writer != writer {
		return errTakenOver
	}
	p.running.Load().arrived()
	_, err := p.Write(b)
	return err
}

// finish makes a complete part an object of the repository.
func (p *Part) finish(ctx context.Context, writer uint64, r Repository, to tree, o lfs.Object) error {
	if err := p.mu.Acquire(ctx, 1); err != nil {
		return err
	}
	defer p.mu.Release(1)
	if p.writer != writer {
		return errTakenOver
	}
	if err := p.Verify(o); err != nil {
		p.remove()
		return err
	}
	return p.commit(r, to, o)
}

// releasePart ends the use of a part by an upload, and returns the number of bytes with which another one can continue.
// The writer of an upload that did not begin is 0.
func (s *Store) releasePart(p *Part, writer uint64, err error) int64 {
	_ = p.mu.Acquire(context.Background(), 1) // not even a cancelled upload leaves the part
	size := p.Size()
	if p.writer == writer {
		p.clearWriter()
		useless := !p.isShared || size == 0 || reasonOf(err) == wrongLength
		if !p.isRemoved && (useless || fault.Is(err, fault.Full) || fault.Is(err, fault.NotFound)) {
			p.remove()
		}
		p.closeFile()
	}
	removed := p.isRemoved
	p.mu.Release(1)
	if removed {
		s.dropPart(p)
	}
	if removed && err != nil {
		return 0
	}
	return size
}

// dropPart removes a part that is gone from the table.
func (s *Store) dropPart(p *Part) {
	s.mu.Lock()
	if s.parts[p.path] == p {
		delete(s.parts, p.path)
	}
	s.mu.Unlock()
}

// closeFile closes the file of a part that is not in use. The caller holds p.mu. The lock ends first, because a child
// process can have a copy of the descriptor until it runs its program.
func (p *Part) closeFile() {
	if p.file != nil {
		_ = unix.Flock(int(p.file.Fd()), unix.LOCK_UN)
		p.file.Close()
		p.file = nil
	}
}

// remove removes the file of a part. The caller holds p.mu.
func (p *Part) remove() {
	p.isRemoved = true
	_ = os.Remove(p.path)
}
