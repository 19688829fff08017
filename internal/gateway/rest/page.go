package rest

import (
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Limits of a page of a log.
const (
	usualLog = 100
	maxLog   = 1000
)

// A cursor of a list that a revision determines is the ID of its object, a colon, and the position. So all pages are of
// the same commit.

// useCursor uses the cursor in the parameters of such a list.
func (r *Request) useCursor(m proto.Message, revisions []string, query url.Values) error {
	cursor := query.Get("cursor")
	id, position, ok := strings.Cut(cursor, ":")
	switch m := m.(type) {
	case *packhorsev1.LogRequest:
		skip, err := strconv.ParseInt(position, 10, 32)
		ok = ok && err == nil
		m.Skip = int32(skip)
	case *packhorsev1.TreeRequest:
		m.PageToken = position
	default:
		return nil
	}
	query.Del("cursor")
	switch {
	case ok:
		revisions[0] = id
	case cursor != "":
		return fault.InField("cursor", fault.New(fault.Invalid, "it is not from an earlier response"))
	}
	return nil
}

// OnePage limits the response to one page. A log needs one commit more, which shows that there is a next page.
func OnePage(m proto.Message) {
	switch m := m.(type) {
	case *packhorsev1.LogRequest:
		if m.Limit == 0 {
			m.Limit = usualLog
		}
		m.Limit = min(m.Limit, maxLog) + 1
	case *packhorsev1.PatchRequest:
		if m.MaxBytes == 0 {
			m.MaxBytes = MaxDocument / 2 // escapes need room
		}
	}
}

// SetNext sets the cursor of the next page in a response, and returns it. It removes the additional commit of a log.
func SetNext(o Object, request proto.Message) string {
	next, _ := o["next"].(string)
	switch m := request.(type) {
	case *packhorsev1.TreeRequest:
		if next != "" {
			next = m.GetPath().GetRevision() + ":" + next
		}
	case *packhorsev1.LogRequest:
		if commits := o["commits"].([]any); len(commits) == int(m.Limit) {
			o["commits"] = commits[:len(commits)-1]
			next = m.Revisions[0] + ":" + strconv.Itoa(int(m.Skip+m.Limit)-1)
		}
	}
	if next != "" {
		o["next"] = next
	}
	return next
}

// MaxDocument is the maximum size of the messages of a document in bytes.
const MaxDocument = 16 << 20
