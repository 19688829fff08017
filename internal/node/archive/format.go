package archive

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// level is the level of deflate, which is the default of git and gzip.
const level = 6

// compress writes a tar stream in the format of an archive. It reads the stream to its end.
func compress(w io.Writer, from io.Reader, s *Spec) error {
	var z io.WriteCloser
	switch s.Format {
	case Gzip:
		z, _ = gzip.NewWriterLevel(w, level) // without a name and a time
	case Zstd:
		z, _ = zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)) // in this goroutine: the same bytes on each machine
	case Zip:
		return writeZip(w, from, s)
	default:
		z = plain{w}
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{z}, struct{ io.Reader }{from}, make([]byte, writeSize)); err != nil {
		return err
	}
	return z.Close()
}

// plain does not compress.
type plain struct{ io.Writer }

func (plain) Close() error { return nil }

// zipEpoch is the first date of a zip file: 1980-01-01.
const zipEpoch = 1<<5 | 1

// writeZip writes the entries of a tar stream as a zip file.
func writeZip(w io.Writer, from io.Reader, s *Spec) error {
	z := zip.NewWriter(w)
	compressor, _ := flate.NewWriter(nil, level)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) {
		compressor.Reset(w) // the entries come one after the other
		return compressor, nil
	})
	if s.Commit {
		_ = z.SetComment(s.ID.String()) // as git does; it is short enough
	}
	entries := tar.NewReader(from)
	for {
		entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if entry.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := addEntry(z, entry, entries); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, from); err != nil { // the padding
		return err
	}
	return z.Close()
}

// addEntry adds an entry of a tar stream to a zip file.
func addEntry(z *zip.Writer, entry *tar.Header, content io.Reader) error {
	h := &zip.FileHeader{Name: entry.Name, Method: zip.Deflate, Modified: entry.ModTime.UTC()}
	if h.Modified.Year() < 1980 {
		h.Modified, h.ModifiedDate = time.Time{}, zipEpoch
	}
	h.SetMode(entry.FileInfo().Mode())
	switch entry.Typeflag {
	case tar.TypeSymlink:
		h.Method, content = zip.Store, strings.NewReader(entry.Linkname)
	case tar.TypeDir:
		h.Method = zip.Store
	}
	w, err := z.CreateHeader(h)
	if err == nil && entry.Typeflag != tar.TypeDir {
		_, err = io.Copy(w, content)
	}
	return err
}

// The header of a tar entry (POSIX pax, "ustar Interchange Format").
const (
	tarBlock = 512
	tarSize  = 124 // offset of the size, 12 bytes
	tarTime  = 136 // offset of the time, 12 bytes
	tarSum   = 148 // offset of the checksum, 8 bytes
)

// undated is a tar stream of git whose entries have the time 0. No entry of it has an extended header with a size.
type undated struct {
	r     *bufio.Reader
	block [tarBlock]byte
	head  []byte // the rest of the last header
	data  int64  // bytes until the next header
}

func (u *undated) Read(p []byte) (n int, err error) {
	if len(u.head) == 0 && u.data == 0 {
		if _, err := io.ReadFull(u.r, u.block[:]); err != nil {
			return 0, err
		}
		if err := u.parse(); err != nil {
			return 0, err
		}
	}
	if len(u.head) > 0 {
		n = copy(p, u.head)
		u.head = u.head[n:]
		return n, nil
	}
	n, err = u.r.Read(p[:min(int64(len(p)), u.data)])
	u.data -= int64(n)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// parse changes the header in block, and determines where the next one is.
func (u *undated) parse() error {
	b := &u.block
	if u.head = b[:]; *b == [tarBlock]byte{} { // the end
		return nil
	}
	size, err := strconv.ParseInt(string(bytes.Trim(b[tarSize:tarSize+12], " \x00")), 8, 64)
	if err != nil {
		return fmt.Errorf("git archive: invalid tar header: %w", err)
	}
	u.data = (size + tarBlock - 1) / tarBlock * tarBlock
	copy(b[tarTime:], "00000000000\x00")
	copy(b[tarSum:], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[tarSum:], fmt.Sprintf("%07o\x00", sum))
	return nil
}
