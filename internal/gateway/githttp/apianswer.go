package githttp

import (
	"bytes"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/rest"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

const (
	typeLines = "application/jsonl"
	typeText  = "text/plain; charset=utf-8"
)

// accepts reports whether the client names a media type.
func (a *apiRequest) accepts(kind string) bool {
	return strings.Contains(a.r.Header.Get("Accept"), kind)
}

// answer answers the request in its form.
func (a *apiRequest) answer() {
	if a.etag != "" && a.Form != rest.Raw && a.isCurrent(a.etag) {
		return
	}
	switch isLines := a.accepts(typeLines) || a.accepts("application/x-ndjson"); {
	case a.Form == rest.Raw:
		a.raw()
	case a.Form == rest.Text, a.Form == rest.Patch && a.accepts("text/plain"):
		a.text()
	case a.Form == rest.Lines, isLines:
		a.lines()
	default:
		a.document()
	}
}

// objects has a node answer, and passes the messages of the response to emit. The parts of a file's patch are joined.
func (a *apiRequest) objects(emit func(proto.Message) error) error {
	var file *packhorsev1.FileDiff
	flush := func() error {
		if file == nil {
			return nil
		}
		whole := &packhorsev1.PatchResponse{Part: &packhorsev1.PatchResponse_File{File: file}}
		file = nil
		return emit(whole)
	}
	a.ask(func(text []byte) error {
		m := a.NewResponse()
		if err := proto.Unmarshal(text, m); err != nil {
			return fault.Wrap(fault.Internal, "the storage node sent an invalid message", err)
		}
		part, ok := m.(*packhorsev1.PatchResponse)
		switch {
		case !ok:
			return emit(m)
		case part.GetPatch() != nil && file != nil:
			if file.Patch = append(file.Patch, part.GetPatch()...); len(file.Patch) > rest.MaxDocument {
				return errDocument
			}
			return nil
		}
		if err := flush(); err != nil {
			return err
		}
		if file = part.GetFile(); file == nil {
			return emit(m)
		}
		return nil
	})
	if a.Err == nil {
		a.Err = flush()
	}
	return a.Err
}

var errDocument = fault.New(fault.Invalid,
	"the response is longer than %d bytes: ask for less, or for JSON lines with Accept: %s", rest.MaxDocument, typeLines)

// document sends one JSON document.
func (a *apiRequest) document() {
	rest.OnePage(a.message)
	whole, size := a.NewResponse(), 0
	files := []any{}
	err := a.objects(func(m proto.Message) error {
		n := proto.Size(m)
		if size += n; size > rest.MaxDocument {
			return errDocument
		}
		if err := a.memory.Grow(int64(n)); err != nil {
			return err
		}
		if part, ok := m.(*packhorsev1.PatchResponse); ok && part.GetFile() != nil {
			files = append(files, rest.NewObject(part.GetFile(), false))
			return nil
		}
		proto.Merge(whole, m)
		return nil
	})
	if err != nil {
		a.fail(err)
		return
	}
	isRead := a.r.Method == http.MethodGet || a.r.Method == http.MethodHead
	o := rest.NewObject(whole, isRead)
	if a.Form == rest.Patch {
		o["files"] = files
	}
	status := a.outcome(whole, o)
	if next := rest.SetNext(o, a.message); next != "" {
		query := a.r.URL.Query()
		query.Set("cursor", next)
		link := url.URL{Path: a.r.URL.Path, RawPath: a.r.URL.RawPath, RawQuery: query.Encode()}
		a.w.Header().Set("Link", "<"+link.String()+`>; rel="next"`)
	}
	text := append(rest.Encode(o), '\n')
	if a.etag == "" {
		if a.etag = etagOf(string(text)); isRead && a.isCurrent(a.etag) {
			return
		}
	}
	a.header(a.etag)
	a.w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	a.send(status, typeJSON, text)
}

// outcome returns the status of a response, and adds the error of one that reports that nothing was changed.
func (a *apiRequest) outcome(m proto.Message, o rest.Object) (status int) {
	var err error
	if merged, ok := m.(interface {
		GetConflicts() []*packhorsev1.Conflict
	}); ok && len(merged.GetConflicts()) > 0 {
		err = fault.New(fault.Precondition, "there are conflicts in %d paths, so that nothing was changed",
			len(merged.GetConflicts()))
		o["error"] = rest.NewError(err)
		o["error"].(rest.Object)["kind"] = "conflict"
	} else if updated, ok := m.(*packhorsev1.UpdateResponse); ok {
		for _, result := range updated.GetResults() {
			if result.GetFault() == nil {
				return http.StatusOK
			}
		}
		if len(updated.GetResults()) > 0 {
			err = faultrpc.Fault(updated.GetResults()[0].GetFault())
			o["error"] = rest.NewError(err)
		}
	}
	if err == nil {
		return http.StatusOK
	}
	a.Err = err
	return gateway.StatusOf(fault.KindOf(err))
}

// stream begins a response that is sent while the node answers, before its first part, and moves the request to the
// lane of long responses before its second one.
func (a *apiRequest) stream(contentType string) error {
	if a.Status != 0 {
		return a.seat.Move(a.Lanes.Hit)
	}
	a.header(a.etag)
	a.w.Header().Set("Content-Type", contentType)
	a.begin(http.StatusOK)
	return nil
}

// write sends a part of a stream.
func (a *apiRequest) write(p []byte) error {
	n, err := a.w.Write(p)
	a.Sent(n)
	return err
}

// lines sends JSON lines. An error after the first one is the last line.
func (a *apiRequest) lines() {
	err := a.objects(func(m proto.Message) error {
		if err := a.stream(typeLines); err != nil {
			return err
		}
		return a.write(append(rest.Encode(rest.NewObject(m, false)), '\n'))
	})
	if a.endStream(err, typeLines) {
		_ = a.write(append(rest.Encode(rest.Object{"error": rest.NewError(err)}), '\n'))
		_ = http.NewResponseController(a.w).Flush()
	}
}

// endStream ends a stream, and reports whether it is cut because of an error.
func (a *apiRequest) endStream(err error, contentType string) (isCut bool) {
	switch {
	case err == nil && a.Status == 0: // nothing was sent
		err = a.stream(contentType)
		a.Err = err
	case err != nil && a.Status == 0:
		a.fail(err)
	case err != nil:
		a.abort()
		return true
	}
	return false
}

// text sends the texts of the messages.
func (a *apiRequest) text() {
	a.ask(func(text []byte) error {
		m := a.NewResponse()
		if err := proto.Unmarshal(text, m); err != nil {
			return fault.Wrap(fault.Internal, "the storage node sent an invalid message", err)
		}
		data := []byte(nil)
		switch m := m.(type) {
		case *packhorsev1.PatchResponse:
			data = append(m.GetFile().GetPatch(), m.GetPatch()...)
		case interface{ GetData() []byte }:
			data = m.GetData()
		}
		if err := a.stream(typeText); err != nil {
			return err
		}
		return a.write(data)
	})
	a.endStream(a.Err, typeText)
}

// raw sends a blob, or a part of it.
func (a *apiRequest) raw() {
	m, first := a.message.(*packhorsev1.BlobRequest), true
	partial := ""
	if a.r.Method == http.MethodHead || len(a.r.Header["Range"]) > 0 {
		h := a.blobHeader(m)
		if h == nil {
			return
		}
		if condition := a.r.Header.Get("If-Range"); condition == "" || condition == `"`+h.GetOid()+`"` {
			asked := parseRange(a.r.Header["Range"])
			offset, length, ok := asked.Of(h.GetSize())
			if !ok {
				a.w.Header().Set("Content-Range", "bytes */"+strconv.FormatInt(h.GetSize(), 10))
				a.refuse(http.StatusRequestedRangeNotSatisfiable, "the file does not have the bytes of this range")
				return
			}
			if asked.Set {
				m.Offset, m.Length = offset, length
				partial = "bytes " + strconv.FormatInt(offset, 10) + "-" + strconv.FormatInt(offset+length-1, 10) + "/" +
					strconv.FormatInt(h.GetSize(), 10)
			}
		}
	}
	a.ask(func(text []byte) error {
		var part packhorsev1.BlobResponse
		if err := proto.Unmarshal(text, &part); err != nil {
			return fault.Wrap(fault.Internal, "the storage node sent an invalid message", err)
		}
		if first {
			first = false
			a.beginRaw(m, part.GetHeader(), part.GetData(), partial)
		} else if err := a.seat.Move(a.Lanes.Hit); err != nil {
			return err
		}
		if a.Status == http.StatusNotModified || a.r.Method == http.MethodHead {
			return errEnough
		}
		return a.write(part.GetData())
	})
	if a.Err == errEnough {
		a.Err = nil
	}
	if err := a.Err; err != nil && a.Status == 0 {
		a.fail(err)
	} else if err != nil {
		a.abort()
	}
}

// errEnough ends a call whose client needs no more of the response.
var errEnough = fault.New(fault.Cancelled, "the client needs no more of the response")

// blobHeader asks for the size of a blob. It returns nil after an error, which the client gets.
func (a *apiRequest) blobHeader(m *packhorsev1.BlobRequest) (h *packhorsev1.BlobHeader) {
	m.Length = 1
	a.ask(func(text []byte) error {
		var part packhorsev1.BlobResponse
		err := proto.Unmarshal(text, &part)
		if part.Header != nil {
			h = part.Header
		}
		return err
	})
	m.Length = 0
	if a.Err == nil && h == nil {
		a.Err = fault.New(fault.Internal, "the storage node sent no header of a blob")
	}
	if a.Err != nil {
		a.fail(a.Err)
		return nil
	}
	return h
}

// sniffed is the number of bytes at the beginning of a file that decide whether it is a text, as in Git.
const sniffed = 8000

// beginRaw sends the header of a blob that begins with data.
func (a *apiRequest) beginRaw(m *packhorsev1.BlobRequest, h *packhorsev1.BlobHeader, data []byte, partial string) {
	tag := `"` + h.GetOid() + `"`
	if partial == "" && a.isCurrent(tag) {
		return
	}
	a.header(tag)
	header, status, size := a.w.Header(), http.StatusOK, h.GetSize()
	header.Set("Accept-Ranges", "bytes")
	if partial != "" {
		status, size = http.StatusPartialContent, m.GetLength()
		header.Set("Content-Range", partial)
	}
	header.Set("Content-Length", strconv.FormatInt(size, 10))
	a.Bytes.Announce(size)
	header.Set("Content-Type", typeText)
	if partial != "" || !isText(data[:min(len(data), sniffed)], int64(len(data)) < h.GetSize()) {
		header.Set("Content-Type", "application/octet-stream")
		header.Set("Content-Disposition", mime.FormatMediaType("attachment",
			map[string]string{"filename": path.Base("/" + m.GetPath().GetPath())}))
	}
	a.begin(status)
}

// isText reports whether data, the beginning of a file, is UTF-8 without NUL. It may end within a character if isCut is
// set.
func isText(data []byte, isCut bool) bool {
	for n := 1; (isCut || len(data) == sniffed) && n < utf8.UTFMax && n <= len(data); n++ {
		if utf8.RuneStart(data[len(data)-n]) {
			data = data[:len(data)-n]
			break
		}
	}
	return utf8.Valid(data) && bytes.IndexByte(data, 0) < 0
}
