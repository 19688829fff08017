package edit

import (
	"bufio"
	"io"
	"os"
	"slices"

	"github.com/klauspost/compress/zlib"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/write"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
)

// Limits of what a request has in memory, in bytes. The rest is in files.
const (
	maxContent    = 1 << 20 // one content
	maxBlobMemory = 8 << 20 // all blobs
	maxSmallBlob  = 1 << 10 // a blob whose content is always in memory, such as the pointer file of an LFS object
)

// Blobs makes the blobs of a request, whose contents come in parts. Close it when the request has ended. It is not safe
// for concurrent use.
type Blobs struct {
	Format git.ObjectFormat
	Dir    string // for temporary files, which have no names; "": that of the system
	Limit  int64  // maximum size of all contents in bytes; 0: none
	Memory *admit.Holding

	total   int64
	size    int64        // of the current blob
	content []byte       // of the current blob, unless it is large
	large   *zlib.Writer // of the current blob, if it is large; otherwise nil

	kept int64    // bytes of blobs in memory
	file *os.File // with compressed blobs; nil: there are none
	out  *bufio.Writer
	end  int64 // of the last complete blob in file
}

// Write adds to the content of the current blob.
func (b *Blobs) Write(p []byte) (int, error) {
	if b.total += int64(len(p)); b.Limit > 0 && b.total > b.Limit {
		return 0, fault.InField("changes", fault.New(fault.Invalid,
			"the contents have more than %d bytes, the limit of a push", b.Limit))
	}
	b.size += int64(len(p))
	if b.size <= maxContent {
		b.content = append(b.content, p...)
		return len(p), nil
	}
	if b.large == nil {
		if err := b.open(); err != nil {
			return 0, err
		}
		b.large = zlib.NewWriter(b.out)
		if _, err := b.large.Write(b.content); err != nil {
			return 0, diskError(err)
		}
		b.content = nil
	}
	n, err := b.large.Write(p)
	return n, diskError(err)
}

// open opens the file, which has no name, unless it is open.
func (b *Blobs) open() (err error) {
	if b.file != nil {
		return nil
	}
	if b.Dir != "" {
		if err := os.MkdirAll(b.Dir, 0o700); err != nil {
			return diskError(err)
		}
	}
	if b.file, err = os.CreateTemp(b.Dir, "content"); err != nil {
		return diskError(err)
	}
	b.out = bufio.NewWriter(b.file)
	return diskError(os.Remove(b.file.Name()))
}

func diskError(err error) error {
	return fault.Wrap(fault.Unavailable, "cannot keep the content of a large change on the disk", err)
}

// End returns the current blob, whose content is complete.
func (b *Blobs) End() (*write.Object, error) {
	content, large, size := b.content, b.large, b.size
	b.content, b.large, b.size = nil, nil, 0
	if large != nil {
		o := &write.Object{Type: git.Blob, Size: size}
		return o, diskError(b.endLarge(o, large))
	}
	o := write.NewObject(b.Format, git.Blob, slices.Clip(content))
	inMemory := size + o.StreamSize()
	if b.kept+inMemory <= maxBlobMemory || size <= maxSmallBlob {
		b.kept += inMemory
		return o, b.Memory.Grow(inMemory)
	}
	if err := b.open(); err != nil {
		return nil, err
	}
	_, err := b.out.Write(o.Deflate)
	o.Data, o.Deflate = nil, nil
	if err == nil {
		err = b.written(o)
	}
	return o, diskError(err)
}

// endLarge ends a large blob. Its ID depends on its size, which was not known before.
func (b *Blobs) endLarge(o *write.Object, compressor *zlib.Writer) error {
	if err := compressor.Close(); err != nil {
		return err
	}
	if err := b.written(o); err != nil {
		return err
	}
	content, err := zlib.NewReader(o.Stream())
	if err == nil {
		o.ID, err = write.Hash(b.Format, git.Blob, content, o.Size)
	}
	return err
}

// written sets the part of the file that was written for a blob.
func (b *Blobs) written(o *write.Object) error {
	if err := b.out.Flush(); err != nil {
		return err
	}
	end, err := b.file.Seek(0, io.SeekCurrent)
	o.File = io.NewSectionReader(b.file, b.end, end-b.end)
	b.end = end
	return err
}

// Close removes the file. The blobs must not be used any more.
func (b *Blobs) Close() {
	if b.file != nil {
		_ = b.file.Close()
	}
	b.Memory.Shrink(0)
}
