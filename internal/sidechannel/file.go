package sidechannel

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/packhorse-git/packhorse/internal/bulk"
)

// takeFile takes the file that came with the last header, of n bytes.
func (r *Receiver) takeFile(n int64) error {
	l := r.c.line
	r.file, l.file = l.file, nil
	var offset [offsetSize]byte
	if err := l.readFull(offset[:]); err != nil {
		return r.broken(err)
	}
	at := int64(binary.BigEndian.Uint64(offset[:]))
	info, err := r.file.Stat()
	switch {
	case err != nil:
		return r.wrong(err)
	case !info.Mode().IsRegular() || at < 0 || at > maxLength || info.Size() < at+n:
		return r.wrong(errors.New("a FILE without a regular file that has so many bytes"))
	}
	r.section = bulk.Section{File: r.file, Offset: at, N: n}
	r.left = n
	return nil
}

// runFile hands the rest of the file's run to w. The node need not wait for that: if it is all, its END is taken in before, and acknowledged.
func (r *Receiver) runFile(w io.Writer) (n int64, err error) {
	defer r.dropFile()
	left := r.left
	r.left, r.got = 0, r.got+left
	if r.length >= 0 && r.got == r.length {
		if err := r.next(); err != nil && err != io.EOF { //nolint:errorlint // next gives it as it is
			return 0, err
		}
		r.c.acknowledge()
	}
	if to, ok := w.(io.ReaderFrom); ok {
		n, err = to.ReadFrom(&r.section)
	} else {
		n, err = io.Copy(w, &r.section)
	}
	kernel := r.section.KernelBytes()
	r.c.line.limits.metrics.countReceived(kernel, left-r.section.N-kernel)
	if err == nil && r.section.N > 0 {
		err = io.ErrShortWrite
	}
	return n, err
}

// readFile reads some of the file.
func (r *Receiver) readFile(p []byte) (int, error) {
	n, err := r.section.Read(p)
	r.left -= int64(n)
	r.got += int64(n)
	r.c.line.limits.metrics.countReceived(0, int64(n))
	if r.left == 0 {
		r.dropFile()
	}
	if err != nil {
		err = r.broken(err)
	}
	return n, err
}

// dropFile closes the file.
func (r *Receiver) dropFile() {
	if r.file != nil {
		r.file.Close()
		r.file, r.section = nil, bulk.Section{}
	}
}
