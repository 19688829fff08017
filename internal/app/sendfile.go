package app

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/bulk"
	"github.com/packhorse-git/packhorse/internal/fault"
)

// The headers by which a worker has a file sent.
const (
	headerSendfile = "X-Sendfile"       // with the file's path
	headerRedirect = "X-Accel-Redirect" // with a path below FileRoot.URI
)

// root is a directory that files are sent from. What is opened in it never leads out of it.
type root struct {
	FileRoot
	dir *os.Root
}

func openRoots(o *Options) (roots []root, err error) {
	switch o.FileHeader {
	case "", headerSendfile, headerRedirect:
	default:
		return nil, fault.New(fault.Invalid, "%q has no file sent: it is %s, or %s", o.FileHeader, headerSendfile, headerRedirect)
	}
	for _, f := range o.Files {
		f.Dir = filepath.Clean(f.Dir)
		switch {
		case !filepath.IsAbs(f.Dir):
			err = fault.New(fault.Invalid, "%q: files are sent from a directory with an absolute path", f.Dir)
		case o.FileHeader == headerRedirect && (len(f.URI) < 2 || f.URI[0] != '/' || f.URI[len(f.URI)-1] != '/'):
			err = fault.New(fault.Invalid, "%q: what names a directory of files begins and ends with a slash, as in /protected/", f.URI)
		}
		dir := (*os.Root)(nil)
		if err == nil {
			if dir, err = os.OpenRoot(f.Dir); err != nil {
				err = fmt.Errorf("app.send_file_roots: %w", err)
			}
		}
		if err != nil {
			closeRoots(roots)
			return nil, err
		}
		roots = append(roots, root{f, dir})
	}
	return roots, nil
}

func closeRoots(roots []root) {
	for _, r := range roots {
		r.dir.Close()
	}
}

// appendFiles tells a worker how it may have files sent, as Rack::Sendfile wants it said.
func (p *Proxy) appendFiles(b []byte) []byte {
	b = appendField(b, "X-Sendfile-Type", p.FileHeader)
	if p.FileHeader != headerRedirect {
		return b
	}
	for i, r := range p.roots {
		if i == 0 {
			b = append(b, "X-Accel-Mapping: "...)
		} else {
			b = append(b, ", "...)
		}
		b = append(b, r.Dir...)
		b = append(b, "/="...)
		b = append(b, r.URI...)
		if i == len(p.roots)-1 {
			b = append(b, "\r\n"...)
		}
	}
	return b
}

// sendFile sends the file that a worker names, in the place of its answer's body.
func (c *call) sendFile(a *answer) error {
	e := c.e
	in := a.incoming(c)
	keep := false
	if a.hasBody(e.r.Method) {
		keep = !a.close && discard(in)
	} else {
		keep = a.ends(e.r.Method)
	}
	c.end(keep, balance.OK)
	switch a.status {
	case http.StatusNoContent, http.StatusNotModified: // there is no body to be in the place of
		e.begin(a)
		return nil
	case http.StatusPartialContent: // which part it is of what is decided here
		a.status = http.StatusOK
	}
	f, info, err := e.p.open(a.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Err = err
		e.text(http.StatusNotFound, "there is no such file")
		return nil
	case err != nil:
		e.note("a file that an application worker wanted sent is not", slog.Any("error", err))
		return fault.Wrap(fault.Internal, "the application wanted something sent that may not be", err)
	}
	defer f.Close()
	header := e.w.Header()
	setFields(header, a.fields)
	for _, name := range []string{"Accept-Ranges", "Content-Range"} { // they are about the worker's own body
		delete(header, name)
	}
	if header["Content-Type"] == nil {
		header.Set("Content-Type", "application/octet-stream")
	}
	modified := info.ModTime()
	if t, err := http.ParseTime(header.Get("Last-Modified")); err == nil {
		modified = t
	}
	if header["Etag"] == nil {
		header.Set("Etag", `"`+strconv.FormatInt(info.ModTime().UnixNano(), 36)+"-"+strconv.FormatInt(info.Size(), 36)+`"`)
	}
	e.File = true
	w := &fileWriter{ResponseWriter: e.w, e: e, file: f, status: a.status}
	w.content = io.NewSectionReader(f, 0, info.Size())
	http.ServeContent(w, ranged(e.r, a.status), "", modified, w)
	if w.err != nil {
		return fault.Wrap(fault.Cancelled, "sending a file", w.err)
	}
	return nil
}

// ranged is the request that decides how much of a file is sent. Conditions and ranges are about what a GET finds: where the worker has done something else, or says
// that something is wrong, all of the file goes, with the worker's status (RFC 9110, sections 13.2.1 and 14.2).
func ranged(r *http.Request, status int) *http.Request {
	if status == http.StatusOK && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		return r
	}
	plain := *r
	plain.Header = r.Header.Clone()
	for _, name := range []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"} {
		plain.Header.Del(name)
	}
	return &plain
}

// discard takes what a worker sends beside the name of a file off its connection, if it is short.
func discard(in *incoming) bool {
	var buf [4 << 10]byte
	for range 16 {
		if _, err := in.read(buf[:], true); err != nil {
			return err == io.EOF
		}
	}
	return false
}

// open opens what a worker names.
func (p *Proxy) open(named string) (*os.File, fs.FileInfo, error) {
	if strings.IndexByte(named, 0) >= 0 {
		return nil, nil, errors.New("a NUL in a file's name")
	}
	if p.FileHeader == headerRedirect {
		path, _, _ := strings.Cut(named, "?")
		path, err := url.PathUnescape(path)
		if err != nil {
			return nil, nil, err
		}
		named = path
	}
	if strings.IndexByte(named, 0) >= 0 || !fs.ValidPath(strings.Trim(named, "/")) {
		return nil, nil, fmt.Errorf("%.200q is no clean path", named)
	}
	for _, r := range p.roots {
		prefix := r.URI
		if p.FileHeader == headerSendfile {
			prefix = strings.TrimSuffix(r.Dir, "/") + "/"
		}
		if rest, ok := strings.CutPrefix(named, prefix); ok && rest != "" {
			return openBelow(r.dir, rest)
		}
	}
	return nil, nil, fmt.Errorf("%.200q is in no directory that files are sent from", named)
}

// openBelow opens a regular file. It does not wait, as for a pipe, and touches no device.
func openBelow(dir *os.Root, path string) (*os.File, fs.FileInfo, error) {
	info, err := dir.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%.200q is no regular file", path)
	}
	f, err := dir.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%.200q is no regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// fileWriter is what http.ServeContent sees: it is the answer, which has the kernel send parts of the file, and the file's content.
type fileWriter struct {
	http.ResponseWriter
	e       *exchange
	file    *os.File
	content *io.SectionReader
	status  int // in the place of 200
	err     error
}

func (w *fileWriter) Seek(offset int64, whence int) (int64, error) {
	return w.content.Seek(offset, whence)
}
func (w *fileWriter) Read(p []byte) (int, error) { return w.content.Read(p) }

func (w *fileWriter) WriteHeader(status int) {
	if status == http.StatusOK && w.status != status {
		status = w.status
		delete(w.Header(), "Accept-Ranges") // of an error's page no part is sent
	}
	w.e.Status, w.e.began = status, true
	w.ResponseWriter.WriteHeader(status)
}

func (w *fileWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.sent(int64(n), err)
	return n, err
}

func (w *fileWriter) sent(n int64, err error) {
	w.e.Out += n
	if err != nil && w.err == nil {
		w.err = err
	}
}

// ReadFrom has the kernel send what ServeContent copies of the file: the connection does it with a bulk.Section.
func (w *fileWriter) ReadFrom(r io.Reader) (int64, error) {
	limited, ok := r.(*io.LimitedReader)
	to, can := readerFrom(w.ResponseWriter)
	at, err := w.content.Seek(0, io.SeekCurrent)
	if !ok || !can || limited.R != io.Reader(w) || err != nil {
		return io.Copy(writerOnly{w}, r)
	}
	section := &bulk.Section{File: w.file, Offset: at, N: limited.N}
	n, err := to.ReadFrom(section)
	w.e.Kernel += section.KernelBytes()
	limited.N -= n
	if err == nil && limited.N > 0 {
		err = io.ErrUnexpectedEOF // somebody has made it shorter
	}
	w.sent(n, err)
	return n, err
}

// readerFrom finds what has the connection copy, below writers that only count and note.
func readerFrom(w http.ResponseWriter) (io.ReaderFrom, bool) {
	for {
		if to, ok := w.(io.ReaderFrom); ok {
			return to, true
		}
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return nil, false
		}
		w = outer.Unwrap()
	}
}

// writerOnly hides ReadFrom from io.Copy.
type writerOnly struct{ io.Writer }
