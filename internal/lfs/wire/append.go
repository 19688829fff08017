package wire

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

// BatchWriter makes the response to a batch request whose actions all have URLs of the same form. It appends parts of
// the document to a buffer: Begin, Append for each object, End. It does not use reflection, because a response may have
// 10,000 objects. Its fields are set before Begin.
type BatchWriter struct {
	Transfer string
	Upload   bool   // the operation is Upload
	Objects  string // URL below which the objects are: actions are requests to Objects/OID/SIZE
	Verify   string // URL of the request after an upload; "": none
	// Authorization is the value of the Authorization header that clients have to send. "" means that clients use their
	// own credentials.
	Authorization string
	// Expires is the remaining lifetime of Authorization, or of Query. Zero means that they do not expire.
	Expires time.Duration
	// Query returns the query of the URL of an action, which needs no escapes in JSON: of OID/SIZE, or of "verify". ""
	// means none. Nil means that no URL has one.
	Query func(action string) string
	// Status returns the status of HTTP for an error.
	Status func(error) int

	href    []byte // the beginning of the URL of an action, with its quote
	verify  []byte // the action Verify with the comma before it
	further []byte // the fields of an action after its URL, with the closing brace
	count   int    // of the objects
}

// Begin appends the beginning of the document.
func (w *BatchWriter) Begin(p []byte) []byte {
	w.href = appendString(nil, w.Objects+"/")
	w.href = w.href[:len(w.href)-1]
	w.further = nil
	if w.Authorization != "" {
		w.further = append(appendString([]byte(`,"header":{"Authorization":`), w.Authorization), '}')
	}
	if w.Expires > 0 {
		w.further = strconv.AppendInt(append(w.further, `,"expires_in":`...), int64(w.Expires/time.Second), 10)
	}
	w.further = append(w.further, '}')
	if w.Verify != "" {
		w.verify = appendString([]byte(`,"verify":{"href":`), w.Verify)
		w.verify = append(w.appendQuery(w.verify[:len(w.verify)-1], "verify"), '"')
		w.verify = append(w.verify, w.further...)
	}
	return append(appendString(append(p, `{"transfer":`...), w.Transfer), `,"objects":[`...)
}

// Append appends an object with its state.
func (w *BatchWriter) Append(p []byte, o lfs.Object, s *lfs.Status) []byte {
	if w.count++; w.count > 1 {
		p = append(p, ',')
	}
	p = appendOID(append(p, `{"oid":"`...), o.OID)
	p = strconv.AppendInt(append(p, `","size":`...), o.Size, 10)
	switch {
	case s.State == lfs.Refused:
		p = strconv.AppendInt(append(p, `,"error":{"code":`...), int64(w.Status(s.Err)), 10)
		return append(appendString(append(p, `,"message":`...), fault.Message(s.Err)), "}}"...)
	case s.State == lfs.Missing && !w.Upload:
		return append(p, `,"error":{"code":404,"message":"this repository does not have the object"}}`...)
	case s.State == lfs.Present && w.Upload:
		return append(p, '}')
	}
	if w.Authorization != "" {
		p = append(p, `,"authenticated":true`...)
	}
	if w.Upload {
		return append(append(w.appendAction(append(p, `,"actions":{"upload":`...), o), w.verify...), "}}"...)
	}
	return append(w.appendAction(append(p, `,"actions":{"download":`...), o), "}}"...)
}

func (w *BatchWriter) appendAction(p []byte, o lfs.Object) []byte {
	p = append(append(p, `{"href":`...), w.href...)
	start := len(p)
	p = strconv.AppendInt(append(appendOID(p, o.OID), '/'), o.Size, 10)
	p = w.appendQuery(p, string(p[start:]))
	return append(append(p, '"'), w.further...)
}

// appendQuery appends the query of the URL of an action.
func (w *BatchWriter) appendQuery(p []byte, action string) []byte {
	if w.Query == nil {
		return p
	}
	query := w.Query(action)
	if query == "" {
		return p
	}
	return append(append(p, '?'), query...)
}

// End appends the end of the document.
func (w *BatchWriter) End(p []byte) []byte { return append(p, `],"hash_algo":"sha256"}`+"\n"...) }

func appendOID(p []byte, id lfs.OID) []byte {
	const digits = "0123456789abcdef"
	for _, b := range id {
		p = append(p, digits[b>>4], digits[b&15])
	}
	return p
}

// appendString appends a string of JSON.
func appendString(p []byte, s string) []byte {
	text, _ := json.Marshal(s) // never fails
	return append(p, text...)
}

// NewLock returns the document of a lock.
func NewLock(l *lfs.Lock) Lock {
	return Lock{ID: l.ID, Path: l.Path, LockedAt: l.Time.UTC().Truncate(time.Second), Owner: &Owner{l.Owner}}
}
