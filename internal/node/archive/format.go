package archive

import (
	"archive/tar"
	"archive/zip"
	"errors"
	"io"
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
	_ = z.SetComment(s.Commit.String()) // as git does; it is short enough
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
