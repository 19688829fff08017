package rest

import (
	"cmp"
	"strconv"

	"google.golang.org/protobuf/proto"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Limits of a page of a log.
const (
	usualLog = 100
	maxLog   = 1000
)

// MaxDocument is the maximum size of the messages of a document in bytes.
const MaxDocument = 16 << 20

// OnePage limits the response to one page.
func OnePage(m proto.Message) {
	switch m := m.(type) {
	case *packhorsev1.LogRequest:
		m.Limit = min(cmp.Or(m.Limit, usualLog), maxLog)
	case *packhorsev1.PatchRequest:
		m.MaxBytes = cmp.Or(m.MaxBytes, MaxDocument/2) // escapes need room
	}
}

// SetNext sets the cursor of the next page in a response. The cursor of a list that a revision determines is the ID of
// its object, a colon, and the position. So all pages are of the same commit. The last page may be empty.
func SetNext(o Object, request proto.Message) {
	switch m := request.(type) {
	case *packhorsev1.TreeRequest:
		if o["next"] != nil {
			o["next"] = m.GetPath().GetRevision() + ":" + o["next"].(string)
		}
	case *packhorsev1.LogRequest:
		if len(o["commits"].([]any)) == int(m.Limit) {
			o["next"] = m.Revisions[0] + ":" + strconv.Itoa(int(m.Skip+m.Limit))
		}
	}
}
