package packcache

import (
	"context"
	"io"
	"os"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// OpenedFile is a complete file. The caller closes it with Close.
type OpenedFile struct {
	*os.File // to be read at offsets: others may have the same one
	Size     int64
	Result   packsource.Result
	pack     packsource.Pack
}

// Close ends the use of the file. The entry can then be evicted.
func (f *OpenedFile) Close() error { return f.pack.Close() }

// OpenFile returns a complete file that is not a pack, such as an archive. It has a place in the cache like a pack, in
// the same directory and budget, until Drop is called for its repository. The content depends on the key only.
//
// A file that is not in the cache is made first, once for all callers that wait for it. write writes the content: at
// least frameHead bytes, in pieces of some size. It can outlive the call, and ends Options.Grace after the last caller
// has gone. Errors are those of write, and Full if there is no room.
func (c *Cache) OpenFile(ctx context.Context, key packsource.Key, incarnation string,
	write func(ctx context.Context, w io.Writer) error) (*OpenedFile, error) {
	spec := &packsource.Spec{Repo: packsource.Repository{Incarnation: incarnation}}
	pack, err := c.openKey(ctx, key, spec, fileSource{write})
	if err != nil {
		return nil, err
	}
	opened := &OpenedFile{pack: pack}
	switch p := pack.(type) {
	case *hit:
		opened.File, opened.Size, opened.Result = p.file, p.e.size, packsource.Hit
	case *follower:
		opened.Result = p.result
		opened.File, opened.Size, err = p.whole()
	default: // by pass
		err = fault.Retry(fault.Unavailable, fault.RetrySoon, "a file of the server's cache cannot be read at present")
	}
	if err != nil {
		pack.Close()
		return nil, err
	}
	return opened, nil
}

// whole waits for the end of the fill, and returns its file. The file stays open until the reader leaves.
func (r *follower) whole() (*os.File, int64, error) {
	f := r.f
	select {
	case <-f.done:
	case <-r.ctx.Done():
		return nil, 0, r.ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != complete {
		return nil, 0, f.err
	}
	return f.file, f.stored, nil
}

// fileSource is the Source of one File. Its Pack is not framed.
type fileSource struct {
	write func(ctx context.Context, w io.Writer) error
}

// isFramed reports whether the packs of a source consist of packets.
func isFramed(source packsource.Source) bool {
	_, isFile := source.(fileSource)
	return !isFile
}

// Open implements packsource.Source.
func (s fileSource) Open(context.Context, *packsource.Spec) (packsource.Pack, error) { return s, nil }

// Send implements packsource.Pack.
func (s fileSource) Send(ctx context.Context, out packsource.Output) error { return s.write(ctx, out) }

// Size implements packsource.Pack.
func (s fileSource) Size() int64 { return -1 }

// Info implements packsource.Pack.
func (s fileSource) Info() packsource.Info { return packsource.Info{} }

// Close implements packsource.Pack.
func (s fileSource) Close() error { return nil }
