package app

import (
	"cmp"
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

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// Files configures the files that workers may have sent.
type Files struct {
	Header string // by which a worker names a file: X-Sendfile or X-Accel-Redirect; empty: none
	Roots  []FileRoot
}

// FileRoot is a directory that files are sent from.
type FileRoot struct {
	Dir string
	URI string // prefix that stands for the directory in X-Accel-Redirect, as in "/protected/"
}

// The values of Files.Header.
const (
	headerSendfile = "X-Sendfile"       // with the path of the file
	headerRedirect = "X-Accel-Redirect" // with a path below FileRoot.URI
)

// root is an open FileRoot. Paths that are opened in it never lead out of it.
type root struct {
	FileRoot
	dir *os.Root
}

func openRoots(o *Files) (roots []root, err error) {
	switch o.Header {
	case "", headerSendfile, headerRedirect:
	default:
		return nil, fault.New(fault.Invalid, "header %q: must be %s or %s", o.Header, headerSendfile, headerRedirect)
	}
	for _, f := range o.Roots {
		f.Dir = filepath.Clean(f.Dir)
		switch {
		case !filepath.IsAbs(f.Dir):
			err = fault.New(fault.Invalid, "directory %q: the path must be absolute", f.Dir)
		case o.Header == headerRedirect && (len(f.URI) < 2 || f.URI[0] != '/' || f.URI[len(f.URI)-1] != '/'):
			err = fault.New(fault.Invalid, "prefix %q: must begin and end with a slash, as in /protected/", f.URI)
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

// announceFiles sets the fields by which Rack::Sendfile lets a worker have files sent.
func (p *Proxy) announceFiles(header http.Header) {
	if p.Files.Header == "" {
		return
	}
	header["X-Sendfile-Type"] = []string{p.Files.Header}
	if p.Files.Header != headerRedirect {
		return
	}
	var mapping []string
	for _, r := range p.roots {
		mapping = append(mapping, r.Dir+"/="+r.URI)
	}
	header["X-Accel-Mapping"] = []string{strings.Join(mapping, ", ")}
}

// fileResponse is a response of a worker that names a file. It is an error so that ReverseProxy does not send the
// worker's body.
type fileResponse struct {
	name     string
	response *http.Response
}

func (*fileResponse) Error() string { return "the response is a file" }

// sendFile sends the file that a worker names instead of the worker's body.
func (e *exchange) sendFile(r *fileResponse) {
	header, status := e.w.Header(), r.response.StatusCode
	if status != http.StatusNoContent && status != http.StatusNotModified {
		r.response.Header.Del("Content-Length")
	}
	for name, values := range r.response.Header {
		if !isOfConnection(name) {
			header[name] = values
		}
	}
	switch status {
	case http.StatusNoContent, http.StatusNotModified: // without a body
		e.w.WriteHeader(status)
		return
	case http.StatusPartialContent: // the part is chosen here
		status = http.StatusOK
	}
	f, info, err := e.p.open(r.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		clear(header)
		e.Err = err
		e.text(http.StatusNotFound, "the file does not exist")
		return
	case err != nil:
		clear(header)
		e.warn("application file not sent", slog.Any("error", err))
		e.fail(fault.Wrap(fault.Internal, "the application named a file that may not be sent", err))
		return
	}
	defer f.Close()
	for _, name := range []string{"Accept-Ranges", "Content-Range"} { // of the worker's own body
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
	w := &fileWriter{client: &e.w, file: f, status: status}
	w.content = io.NewSectionReader(f, 0, info.Size())
	http.ServeContent(w, withRange(e.r, status), "", modified, w)
	if w.err != nil {
		e.Cut, e.Err = true, fault.Wrap(fault.Cancelled, "sending a file", w.err)
	}
}

// isOfConnection reports whether a field is about the connection to the worker.
func isOfConnection(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Authenticate", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// withRange returns the request that decides which part of a file is sent. Conditions and ranges only apply to the
// successful response to a GET or HEAD. For others the whole file is sent, with the worker's status (RFC 9110, sections
// 13.2.1 and 14.2).
func withRange(r *http.Request, status int) *http.Request {
	if status == http.StatusOK && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		return r
	}
	plain := *r
	plain.Header = r.Header.Clone()
	for _, name := range []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since",
		"If-Unmodified-Since"} {
		plain.Header.Del(name)
	}
	return &plain
}

// open opens the file that a worker names.
func (p *Proxy) open(named string) (*os.File, fs.FileInfo, error) {
	if strings.IndexByte(named, 0) >= 0 {
		return nil, nil, errors.New("a file name contains a NUL")
	}
	if p.Files.Header == headerRedirect {
		path, _, _ := strings.Cut(named, "?")
		path, err := url.PathUnescape(path)
		if err != nil {
			return nil, nil, err
		}
		named = path
	}
	if strings.IndexByte(named, 0) >= 0 || !fs.ValidPath(strings.Trim(named, "/")) {
		return nil, nil, fmt.Errorf("%q is not a clean path", fault.Short(named))
	}
	for _, r := range p.roots {
		prefix := r.URI
		if p.Files.Header == headerSendfile {
			prefix = strings.TrimSuffix(r.Dir, "/") + "/"
		}
		if rest, ok := strings.CutPrefix(named, prefix); ok && rest != "" {
			return openBelow(r.dir, rest)
		}
	}
	return nil, nil, fmt.Errorf("%q is not in a directory that files are sent from", fault.Short(named))
}

// openBelow opens a regular file. It neither waits for a pipe nor opens a device.
func openBelow(dir *os.Root, path string) (*os.File, fs.FileInfo, error) {
	info, err := dir.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%q is not a regular file", fault.Short(path))
	}
	f, err := dir.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%q is not a regular file", fault.Short(path))
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// fileWriter is the writer and the content for http.ServeContent. Parts of the file are sent by the kernel.
type fileWriter struct {
	*client
	file    *os.File
	content *io.SectionReader
	status  int // instead of 200
	err     error
}

func (w *fileWriter) Seek(offset int64, whence int) (int64, error) {
	return w.content.Seek(offset, whence)
}
func (w *fileWriter) Read(p []byte) (int, error) { return w.content.Read(p) }

func (w *fileWriter) WriteHeader(status int) {
	if status == http.StatusOK && w.status != status {
		status = w.status
		delete(w.Header(), "Accept-Ranges") // an error page has no parts
	}
	w.client.WriteHeader(status)
}

func (w *fileWriter) Write(p []byte) (int, error) {
	n, err := w.client.Write(p)
	w.err = cmp.Or(w.err, err)
	return n, err
}

// ReadFrom lets the connection send a part of the file as a bulk.Section.
func (w *fileWriter) ReadFrom(r io.Reader) (int64, error) {
	limited, ok := r.(*io.LimitedReader)
	to, can := readerFrom(w.client.ResponseWriter)
	at, err := w.content.Seek(0, io.SeekCurrent)
	if !ok || !can || limited.R != io.Reader(w) || err != nil {
		return io.Copy(writerOnly{w}, r)
	}
	section := &bulk.Section{File: w.file, Offset: at, N: limited.N}
	n, err := to.ReadFrom(section)
	w.client.e.Kernel += section.KernelBytes()
	limited.N -= n
	if err == nil && limited.N > 0 {
		err = io.ErrUnexpectedEOF // the file has become shorter
	}
	w.client.e.Out += n
	w.err = cmp.Or(w.err, err)
	return n, err
}

// readerFrom finds the io.ReaderFrom of the connection below wrapping writers.
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
