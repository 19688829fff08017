package edit

import (
	"bufio"
	"os"
	"slices"

	"golang.org/x/sys/unix"

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
	content []byte   // of the blob that is not complete
	large   *os.File // the same, if it is large; otherwise nil
	size    int64    // of large

	kept   int64    // bytes of them in memory
	file   *os.File // with compressed blobs; nil: there are none
	inFile []stored
	end    int64 // of file
	mapped []byte
}

// stored is a compressed blob in a file.
type stored struct {
	blob     *write.Object
	from, to int64
}

// Write adds to the content of the current blob.
func (b *Blobs) Write(p []byte) (int, error) {
	if b.total += int64(len(p)); b.Limit > 0 && b.total > b.Limit {
		return 0, fault.InField("changes", fault.New(fault.Invalid,
			"the contents have more than %d bytes, the limit of a push", b.Limit))
	}
	if b.large == nil && len(b.content)+len(p) <= maxContent {
		b.content = append(b.content, p...)
		return len(p), nil
	}
	if b.large == nil {
		var err error
		if b.large, err = b.temporary(); err != nil {
			return 0, err
		}
		if err := b.spill(b.content); err != nil {
			return 0, err
		}
		b.content = nil
	}
	return len(p), b.spill(p)
}

func (b *Blobs) spill(p []byte) error {
	b.size += int64(len(p))
	_, err := b.large.Write(p)
	return diskError(err)
}

// temporary makes a file without a name.
func (b *Blobs) temporary() (*os.File, error) {
	if b.Dir != "" {
		if err := os.MkdirAll(b.Dir, 0o700); err != nil {
			return nil, diskError(err)
		}
	}
	f, err := os.CreateTemp(b.Dir, "content")
	if err != nil {
		return nil, diskError(err)
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, diskError(err)
	}
	return f, nil
}

func diskError(err error) error {
	return fault.Wrap(fault.Unavailable, "cannot keep the content of a large change on the disk", err)
}

// End returns the current blob, whose content is complete. Its Deflate may be missing until Finish.
func (b *Blobs) End() (*write.Object, error) {
	if b.large != nil {
		return b.endLarge()
	}
	o := write.NewObject(b.Format, git.Blob, slices.Clip(b.content))
	b.content = nil
	size := int64(len(o.Data) + len(o.Deflate))
	if b.kept+size <= maxBlobMemory || o.Size <= maxSmallBlob {
		b.kept += size
		return o, b.Memory.Grow(size)
	}
	if err := b.open(); err != nil {
		return nil, err
	}
	if _, err := b.file.Write(o.Deflate); err != nil {
		return nil, diskError(err)
	}
	b.note(o, int64(len(o.Deflate)))
	o.Data, o.Deflate = nil, nil
	return o, nil
}

// endLarge is End for a content in a file.
func (b *Blobs) endLarge() (*write.Object, error) {
	if err := b.open(); err != nil {
		return nil, err
	}
	if _, err := b.large.Seek(0, 0); err != nil {
		return nil, diskError(err)
	}
	w := bufio.NewWriter(b.file)
	id, err := write.Compress(w, b.Format, git.Blob, b.large, b.size)
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		return nil, diskError(err)
	}
	o := &write.Object{ID: id, Type: git.Blob, Size: b.size}
	_ = b.large.Close()
	b.large, b.size = nil, 0
	end, err := b.file.Seek(0, 1)
	if err != nil {
		return nil, diskError(err)
	}
	b.note(o, end-b.end)
	return o, nil
}

// open opens the file for compressed blobs, unless it is open.
func (b *Blobs) open() (err error) {
	if b.file == nil {
		b.file, err = b.temporary()
	}
	return err
}

// note notes a blob that was written to the file.
func (b *Blobs) note(o *write.Object, size int64) {
	b.inFile = append(b.inFile, stored{o, b.end, b.end + size})
	b.end += size
}

// Finish completes all blobs.
func (b *Blobs) Finish() error {
	if b.end == 0 {
		return nil
	}
	var err error
	if b.mapped, err = unix.Mmap(int(b.file.Fd()), 0, int(b.end), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return diskError(os.NewSyscallError("mmap", err))
	}
	for _, s := range b.inFile {
		s.blob.Deflate = b.mapped[s.from:s.to:s.to]
	}
	return nil
}

// Close removes the files. The blobs must not be used any more.
func (b *Blobs) Close() {
	for _, f := range []*os.File{b.large, b.file} {
		if f != nil {
			_ = f.Close()
		}
	}
	if b.mapped != nil {
		_ = unix.Munmap(b.mapped)
	}
	b.Memory.Shrink(0)
}
