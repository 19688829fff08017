package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// packUpload is the upload of one pack of a push. The files stay open, because Git moves them meanwhile.
type packUpload struct {
	name      string // of the pack without extension: pack-HASH
	pack, idx *os.File
	gc        uint64 // Record.GC when the upload began

	committed bool // a record names it, or may do so later

	done   chan struct{} // closed when the following fields are valid
	result replog.Pack   // without Since
	err    error
}

// Quarantined implements receivepack.Shadow. It begins to upload the packs. Commit repeats uploads that have failed.
func (s *shadow) Quarantined(dir string) {
	if err := s.startUploads(dir); err != nil && !errors.Is(err, fs.ErrNotExist) { // Git moves the files meanwhile
		s.store.log.Info("cannot upload a push early", "repository_id", s.id, "error", err)
	}
}

// startUploads begins to upload the packs in a directory of objects that are not being uploaded yet.
func (s *shadow) startUploads(objects string) error {
	s.uploading.Lock()
	defer s.uploading.Unlock()
	paths, err := fs.Glob(os.DirFS(objects), "pack/pack-*.pack")
	if err != nil {
		return err
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".pack")
		if s.uploadOf(name) != nil {
			continue
		}
		u := &packUpload{name: name}
		if u.pack, err = os.Open(filepath.Join(objects, path)); err != nil {
			return err
		}
		if u.idx, err = os.Open(filepath.Join(objects, "pack", name+".idx")); err != nil {
			u.pack.Close()
			return err
		}
		s.uploads = append(s.uploads, u)
		s.start(u)
	}
	return nil
}

// uploadOf returns the upload of a pack, or nil.
func (s *shadow) uploadOf(name string) *packUpload {
	for _, u := range s.uploads {
		if u.name == name {
			return u
		}
	}
	return nil
}

// start begins an upload, perhaps once more.
func (s *shadow) start(u *packUpload) {
	u.done, u.err = make(chan struct{}), nil
	u.gc = s.known().record.GC // before the first byte: see CollectGarbage
	go func() {
		defer close(u.done)
		u.result, u.err = s.put(s.ctx, u)
	}()
}

// put uploads a pack and its index, under a key that is used once.
func (s *shadow) put(ctx context.Context, u *packUpload) (replog.Pack, error) {
	p := replog.Pack{Key: replog.PackKey(u.name, replog.NewID())}
	var err error
	if p.Objects, err = countObjects(u.pack); err != nil {
		return p, err
	}
	group, ctx := errgroup.WithContext(ctx)
	file := func(f *os.File, ext string, size *int64, sum *replog.Sum) {
		group.Go(func() (err error) {
			if *size, *sum, err = sumOf(ctx, f); err != nil {
				return err
			}
			return s.store.bucket.Put(ctx, "repos/"+s.id+"/"+p.Key+ext, f, *size, *sum)
		})
	}
	file(u.pack, ".pack", &p.Bytes, &p.SHA256)
	file(u.idx, ".idx", &p.IdxBytes, &p.IdxSHA256)
	return p, group.Wait()
}

// sumOf returns the size and the checksum of a file. The error is that of ctx if it ends meanwhile.
func sumOf(ctx context.Context, f *os.File) (size int64, sum replog.Sum, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, sum, err
	}
	hash, from := sha256.New(), contextReader{ctx, io.NewSectionReader(f, 0, info.Size())}
	_, err = io.CopyBuffer(struct{ io.Writer }{hash}, from, make([]byte, 256<<10))
	return info.Size(), replog.Sum(hash.Sum(nil)), err
}

// contextReader is a Reader that fails when ctx ends.
type contextReader struct {
	ctx  context.Context
	from io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.from.Read(p)
}

// uploaded waits for the uploads. It repeats those that have failed before, and those that a collection of garbage may
// have condemned.
func (s *shadow) uploaded(ctx context.Context) error {
	if err := s.startUploads(s.path("objects")); err != nil {
		return err
	}
	for _, u := range s.uploads {
		select {
		case <-u.done:
			if u.err != nil {
				s.start(u)
			}
		default:
		}
		for {
			select {
			case <-u.done:
			case <-ctx.Done():
				return ctx.Err()
			}
			if u.err != nil {
				s.store.health.doubt()
				return &fault.Error{Kind: fault.Unavailable, RetryAfter: fault.RetryLater, Err: u.err,
					Msg: "push not accepted: the objects cannot be stored; try again later"}
			}
			if u.gc == s.known().record.GC {
				break
			}
			s.start(u)
		}
	}
	return nil
}

// discard removes an upload that no record will name, so that refused pushes need no space until the next collection of
// garbage.
func (s *shadow) discard(u *packUpload) {
	key := "repos/" + s.id + "/" + u.result.Key
	ctx, cancel := context.WithTimeout(s.store.ctx, requestTimeout)
	defer cancel()
	if err := s.store.bucket.Delete(ctx, key+".idx", key+".pack"); err != nil {
		s.store.log.Info("cannot remove the upload of a push that was not made", "repository_id", s.id, "key", key, "error",
			err)
	}
}

// close closes the files.
func (u *packUpload) close() {
	<-u.done
	_ = cmp.Or(u.pack.Close(), u.idx.Close())
}
