package githttp

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/rest"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

const (
	typeLines = "application/jsonl"
	typeText  = "text/plain; charset=utf-8"
	typeBytes = "application/octet-stream"
)

// answer answers the request in its form.
func (a *apiRequest) answer() {
	accept := a.r.Header.Get("Accept")
	_, isPatch := a.NewResponse().(*packhorsev1.PatchResponse)
	switch {
	case a.public && a.isCurrent():
	case a.Form == rest.Bytes, isPatch && strings.Contains(accept, "text/plain"):
		a.content()
	case a.Form == rest.Lines, strings.Contains(accept, typeLines):
		a.lines()
	default:
		a.document()
	}
}

// ask has a node answer the call of the request. receive gets each message of the response.
func (a *apiRequest) ask(receive func(proto.Message) error) error {
	if asked, ok := a.message.(*packhorsev1.ListRequest); ok {
		page, err := a.list(asked)
		if err != nil {
			return err
		}
		return receive(page)
	}
	a.request.Call(node.Call{Procedure: a.Procedure(), Reachable: a.reachable,
		HasRules: a.Needs == auth.Write && !a.RefRules.IsZero()}, a.IsChange(),
		func(repo git.RepoPath) []byte { return a.Encode(a.message, repo.String()) },
		func(text []byte) error {
			m := a.NewResponse()
			if err := proto.Unmarshal(text, m); err != nil {
				return fault.Wrap(fault.Internal, "the storage node sent an invalid message", err)
			}
			a.complete(m)
			return receive(m)
		})
	if a.Changed != nil && a.created != (git.RepoPath{}) {
		a.Changed(a.created)
	}
	return a.Err
}

var errDocument = fault.New(fault.Invalid,
	"the response is longer than %d bytes: ask for less, or for JSON lines with Accept: %s", rest.MaxDocument, typeLines)

// document sends one JSON document.
func (a *apiRequest) document() {
	rest.OnePage(a.message)
	var whole proto.Message
	size := 0
	var files []*packhorsev1.FileDiff
	err := a.ask(func(m proto.Message) error {
		n := proto.Size(m)
		if size += n; size > rest.MaxDocument {
			return errDocument
		}
		if err := a.memory.Grow(int64(n)); err != nil {
			return err
		}
		part, _ := m.(*packhorsev1.PatchResponse)
		switch {
		case part.GetFile() != nil:
			files = append(files, part.GetFile())
		case part.GetPatch() != nil && len(files) > 0:
			last := files[len(files)-1]
			last.Patch = append(last.Patch, part.GetPatch()...)
		case whole == nil:
			whole = m
		default:
			proto.Merge(whole, m)
		}
		return nil
	})
	if err != nil {
		a.fail(err)
		return
	}
	if whole == nil {
		whole = a.NewResponse()
	}
	o := rest.NewObject(whole, a.isRead())
	if _, ok := whole.(*packhorsev1.PatchResponse); ok {
		list := make([]any, len(files))
		for i, f := range files {
			list[i] = f.ProtoReflect()
		}
		o["files"] = list
	}
	rest.SetNext(o, a.message)
	if a.Err = refusal(whole); a.Err != nil {
		o["error"] = rest.NewError(a.Err)
	}
	text := rest.Append(make([]byte, 0, 2*size), o)
	if a.etag == "" {
		a.etag = etagOf(string(text))
	}
	if a.isRead() && a.isCurrent() {
		return
	}
	a.header()
	a.w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	status := http.StatusOK
	if a.Err != nil {
		status = gateway.StatusOf(fault.KindOf(a.Err))
	}
	a.send(status, typeJSON, text)
}

// refusal returns the error of a response which reports that nothing was changed.
func refusal(m proto.Message) error {
	if merged, ok := m.(interface {
		GetConflicts() []*packhorsev1.Conflict
	}); ok && len(merged.GetConflicts()) > 0 {
		return fault.New(fault.Precondition, "there are conflicts in %d paths, so that nothing was changed",
			len(merged.GetConflicts()))
	}
	var err error
	if updated, ok := m.(*packhorsev1.UpdateResponse); ok {
		for _, result := range updated.GetResults() {
			if result.GetFault() == nil {
				return nil
			}
			err = faultrpc.Fault(result.GetFault())
		}
	}
	return err
}

// stream sends a part of a response while the node answers. Before the first part it sends the header, and before
// others it moves the request to the lane of long responses, if it counts against a concurrency limit.
func (a *apiRequest) stream(contentType string, part []byte) error {
	if a.Status != 0 && a.seat != nil {
		if err := a.seat.Move(a.Lanes.Hit); err != nil {
			return err
		}
	} else if a.Status == 0 {
		a.header()
		a.w.Header().Set("Content-Type", contentType)
		a.begin(http.StatusOK)
	}
	n, err := a.w.Write(part)
	a.Sent(n)
	return err
}

// endStream ends a response that may have begun. If it has, last is sent after an error, and the connection is cut.
func (a *apiRequest) endStream(err error, contentType string, last []byte) {
	switch {
	case err == nil && a.Status == 0: // nothing was sent
		a.Err = a.stream(contentType, nil)
	case err != nil && a.Status == 0:
		a.fail(err)
	case err != nil:
		_, _ = a.w.Write(last)
		_ = http.NewResponseController(a.w).Flush()
		a.abort()
	}
}

// lines sends JSON lines. An error after the first one is the last line.
func (a *apiRequest) lines() {
	err := a.ask(func(m proto.Message) error { return a.stream(typeLines, rest.Encode(rest.NewObject(m, false))) })
	a.endStream(err, typeLines, rest.Encode(rest.Object{"error": rest.NewError(err)}))
}

// content sends the bytes of a file, or a text.
func (a *apiRequest) content() {
	kind := typeText
	err := a.ask(func(m proto.Message) error {
		var data []byte
		switch m := m.(type) {
		case *packhorsev1.BlobResponse:
			if data = m.GetData(); m.Header != nil {
				kind = a.contentType(m)
			}
		case *packhorsev1.PatchResponse:
			data = append(m.GetFile().GetPatch(), m.GetPatch()...)
		case interface{ GetData() []byte }:
			data = m.GetData()
		}
		err := a.stream(kind, data)
		if err == nil && a.r.Method == http.MethodHead {
			err = errEnough
		}
		return err
	})
	if err == errEnough {
		a.Err = nil
		return
	}
	a.endStream(err, kind, nil)
}

// errEnough ends a call whose client needs only the header.
var errEnough = fault.New(fault.Cancelled, "the client needs no more of the response")

// contentType returns the content type of a file by its first lines, and announces the length of the whole.
func (a *apiRequest) contentType(m *packhorsev1.BlobResponse) string {
	size, data := m.GetHeader().GetSize(), m.GetData()
	if q, ok := a.message.(*packhorsev1.BlobRequest); ok && q.GetOffset() == 0 && q.GetLength() == 0 {
		a.w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		a.Bytes.Announce(size)
	}
	if int64(len(data)) < size { // it may be cut within a character
		data = data[:bytes.LastIndexByte(data, '\n')+1]
	}
	if utf8.Valid(data) {
		return typeText
	}
	return typeBytes
}
